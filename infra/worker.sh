#!/bin/sh
# A Prefect worker that drives flows. A Ray driver must stand on a node of the cluster: join it, with no cores to lend.
set -eu
ray start --address "$RAY_ADDRESS" --num-cpus 0 --num-gpus 0 --disable-usage-stats
prefect work-pool inspect reread > /dev/null 2>&1 || prefect work-pool create reread --type process
prefect --no-prompt deploy --all
exec prefect worker start --pool reread --limit "${WORKER_LIMIT:-4}" --install-policy never
