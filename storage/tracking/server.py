"""MLflow's web pages in one process: `python -m storage.tracking.server PORT ARTIFACTS`, with the store's URI in
REREAD_MLFLOW_STORE, since it may hold a password and a command line is there for all to read.

`mlflow server` loads everything twice, once to look at the store and once more in a child that answers, and needs ten
seconds to notice that it should end. This runs the application of the same package under uvicorn directly: half the
start, half the memory. The names of the variables that tell it where the store is are MLflow's own affair; with an
MLflow that has others its command is run instead.
"""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

from storage.tracking.client import one_at_a_time
from storage.tracking.first_visit import serve_first_page
from storage.tracking.places import STORE, default_uri

HOST = "127.0.0.1"
LINGER_SECONDS = 2           # for requests that are being answered when it is asked to end


def main(port: int, store: str, artifacts: str) -> None:
    """Serve until asked to end.

    store      URI of the backend store: sqlite, postgresql
    artifacts  URI below which runs of new experiments keep their files
    """
    import uvicorn  # before MLflow, which guards against foreign hosts only if it sees a server loaded

    try:
        settings = _settings(store, artifacts)
    except (ImportError, AttributeError):
        os.environ["MLFLOW_BACKEND_STORE_URI"] = store
        os.execv(sys.executable, by_command(port, artifacts))
    os.environ.update(settings)
    from mlflow.server.handlers import initialize_backend_stores

    with one_at_a_time(store):
        initialize_backend_stores(store, store, artifacts)
    from mlflow.server import app as pages
    from mlflow.server.fastapi_app import app

    serve_first_page(app, Path(pages.static_folder) / "index.html")
    uvicorn.run(app, host=HOST, port=port, access_log=False, log_level="warning",
                timeout_graceful_shutdown=LINGER_SECONDS)


def by_command(port: int, artifacts: str) -> list[str]:
    """The same by MLflow's own command, which finds the store in its own variable."""
    return [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1",
            "--default-artifact-root", artifacts]


def _settings(store: str, artifacts: str) -> dict[str, str]:
    from mlflow import environment_variables
    from mlflow.server import constants

    return {
        constants.BACKEND_STORE_URI_ENV_VAR: store,
        constants.REGISTRY_STORE_URI_ENV_VAR: store,
        constants.ARTIFACT_ROOT_ENV_VAR: artifacts,
        constants.ARTIFACTS_DESTINATION_ENV_VAR: artifacts,
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
        environment_variables._MLFLOW_SGI_NAME.name: "uvicorn",
        environment_variables._MLFLOW_SERVER_BOOT_ID.name: uuid.uuid4().hex,
        environment_variables._MLFLOW_IN_JOB_EXECUTOR.name: "false",
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), os.environ.get(STORE) or default_uri(), sys.argv[2])
