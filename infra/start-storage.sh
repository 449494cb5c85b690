#!/bin/sh
# SeaweedFS in one process with its S3 gateway; one account, from the environment. The file with its key stays in memory.
set -eu
umask 077
config=/dev/shm/s3.json
printf '{"identities": [{"name": "reread", "credentials": [{"accessKey": "%s", "secretKey": "%s"}], %s}]}' \
    "$S3_KEY" "$S3_SECRET" '"actions": ["Admin", "Read", "Write", "List", "Tagging"]' > "$config"
exec weed server -dir /data -ip.bind 0.0.0.0 -volume.max 0 -master.volumeSizeLimitMB 1024 \
    -filer -s3 -s3.port 8333 -s3.config "$config" -s3.iam=false -s3.port.iceberg 0 -s3.port.lance 0
