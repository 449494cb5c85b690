#!/bin/sh
# sh infra/backup.sh FOLDER: both databases, then the bucket. In this order everything that a dump names is in the copy,
# since files are stored before they are named. Nothing has to stop meanwhile; do not prune until it has ended.
#   PREFECT_DATABASE, MLFLOW_DATABASE   postgresql://user:password@host:port/name
#   BUCKET, AWS_*                       the bucket and how to reach it
set -eu
folder=${1:?usage: sh infra/backup.sh FOLDER}
mkdir -p "$folder"
for name in prefect mlflow; do
    case $name in prefect) database=$PREFECT_DATABASE ;; *) database=$MLFLOW_DATABASE ;; esac
    pg_dump --format custom --no-owner --file "$folder/.$name.partial" "$database"
    mv "$folder/.$name.partial" "$folder/$name.dump"
done
python -m infra.bucket save "$BUCKET" "$folder/bucket"
date -u +%Y-%m-%dT%H:%M:%SZ > "$folder/complete"
