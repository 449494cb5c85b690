#!/bin/sh
# sh infra/restore.sh FOLDER [TIME]: the bucket, then both databases as of TIME, by default the last complete back-up.
# The databases are emptied first; what only the bucket has stays. Stop Prefect, MLflow and the workers before, start
# them afterwards. Variables as for backup.sh.
set -eu
folder=${1:?usage: sh infra/restore.sh FOLDER [TIME]}
last=$(ls -d "$folder"/*/complete 2> /dev/null | tail -n 1)
dumps=${2:+$folder/$2}
dumps=${dumps:-${last%/complete}}
test -f "$dumps/complete" || { echo "$folder ${2:-} holds no complete back-up: backup.sh did not get to its end" >&2; exit 1; }

python -m infra.bucket load "$folder/bucket" "$BUCKET"
restore() {
    psql --quiet --no-psqlrc --set ON_ERROR_STOP=1 --command 'drop schema if exists public cascade' "$1"
    psql --quiet --no-psqlrc --set ON_ERROR_STOP=1 --command 'create schema public' "$1"
    pg_restore --exit-on-error --no-owner --dbname "$1" "$2"
}
restore "$PREFECT_DATABASE" "$dumps/prefect.dump"
restore "$MLFLOW_DATABASE" "$dumps/mlflow.dump"
echo "$dumps"
