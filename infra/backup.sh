#!/bin/sh
# sh infra/backup.sh FOLDER: both databases into FOLDER/<time>, then the bucket into FOLDER/bucket, which only grows, so
# that every earlier dump can be restored with it. In this order all that a dump names is in the copy, since files are
# stored before they are named. Nothing has to stop meanwhile; do not prune until it has ended.
#   PREFECT_DATABASE, MLFLOW_DATABASE   postgresql://user:password@host:port/name
#   BUCKET, AWS_*                       the bucket and how to reach it
set -eu
folder=${1:?usage: sh infra/backup.sh FOLDER}
dumps=$folder/$(date -u +%Y%m%dT%H%M%SZ)
mkdir -p "$dumps"
pg_dump --format custom --no-owner --file "$dumps/prefect.dump" "$PREFECT_DATABASE"
pg_dump --format custom --no-owner --file "$dumps/mlflow.dump" "$MLFLOW_DATABASE"
python -m infra.bucket save "$BUCKET" "$folder/bucket"
touch "$dumps/complete"
echo "$dumps"
