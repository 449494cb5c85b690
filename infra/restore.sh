#!/bin/sh
# sh infra/restore.sh FOLDER: the bucket, then both databases, which are emptied first. Stop Prefect, MLflow and the
# workers before, start them afterwards. Variables as for backup.sh.
set -eu
folder=${1:?usage: sh infra/restore.sh FOLDER}
test -f "$folder/complete" || { echo "$folder holds no complete back-up: backup.sh did not get to its end" >&2; exit 1; }
python -m infra.bucket load "$folder/bucket" "$BUCKET"
for name in prefect mlflow; do
    case $name in prefect) database=$PREFECT_DATABASE ;; *) database=$MLFLOW_DATABASE ;; esac
    psql --quiet --no-psqlrc --set ON_ERROR_STOP=1 --command 'drop schema if exists public cascade' "$database"
    # the dump brings the schema along only where its owner changed it
    psql --quiet --no-psqlrc --set ON_ERROR_STOP=1 --command 'create schema public' "$database"
    pg_restore --exit-on-error --no-owner --dbname "$database" "$folder/$name.dump"
done
