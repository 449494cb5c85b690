"""Environment variables that every entry point sets before it imports Prefect, Ray or MLflow.

Each value was measured; a variable the caller has set already always wins. Importing this module costs nothing: it
must stay free of heavy imports, since `reread --help` goes through it.
"""

from __future__ import annotations

import os
import sys

from storage.home import home, local_home

QUIET_AND_LOCAL = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",      # without it the server tries to reach the internet
    "DO_NOT_TRACK": "1",
    "PREFECT_LOGGING_TO_API_BATCH_INTERVAL": "0.25",  # log batches of 2 s are lost when Ray ends with the flow
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    "PREFECT_RUNNER_POLL_FREQUENCY": "2",             # seconds until a run that was submitted is noticed; else 10
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",                           # one thread per training process unless a spec says more
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",    # eight helper processes that we do not use
    "GIT_PYTHON_REFRESH": "quiet",
    "TOKENIZERS_PARALLELISM": "false",
}


def prepare() -> None:
    """Set what is not set yet. Call it first in every entry point; calling it again changes nothing."""
    for name, value in QUIET_AND_LOCAL.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("REREAD_HOME", home())
    os.environ.setdefault("PREFECT_HOME", str(local_home() / "prefect"))
    if "RAY_ADDRESS" not in os.environ:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")     # loopback only; a cluster keeps its tokens
    if not os.path.exists("/dev/nvidiactl"):
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    binaries = os.path.dirname(sys.executable)                 # ninja, ray and mlflow of this environment
    if binaries not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([binaries, os.environ.get("PATH", "")])
