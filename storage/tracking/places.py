"""Where the store is, and where in its pages something stands."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote, unquote

from storage.errors import TrackingError
from storage.home import local_home
from storage.tracking.views import START

STORE = "REREAD_MLFLOW_STORE"       # tells MLflow's server where the store is; others can read its command line
TRAINING = "workflowType=machine_learning"      # an address without it may open among MLflow's pages for GenAI


def default_uri() -> str:
    """`MLFLOW_TRACKING_URI`, or SQLite in the home (its local part when the home is a URL)."""
    place = re.sub("%(?=[0-9a-fA-F]{2})", "%25", f"{local_home()}/mlflow.db").replace("?", "%3F")
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{place}"


def sqlite_file(uri: str) -> Path | None:
    """The file of an SQLite database, as SQLAlchemy reads its URI; None for another store."""
    if not uri.startswith("sqlite:///"):
        return None
    return Path(unquote(uri.removeprefix("sqlite:///").partition("?")[0]))


def absolute(uri: str) -> str:
    """SQLite paths made absolute, since workers run in other folders; a folder is no store any more."""
    if uri.startswith("sqlite:///"):
        return f"sqlite:///{os.path.abspath(uri.removeprefix('sqlite:///'))}"
    if "://" not in uri or uri.startswith("file:"):
        raise TrackingError(f"MLFLOW_TRACKING_URI {uri!r} names a folder, which MLflow no longer writes to; use "
                            "sqlite:////absolute/path/mlflow.db or the http address of an MLflow server")
    return uri


def experiment_link(experiment: str, view: str = START) -> str:
    """Where the runs of an experiment are, after the server's address, in one of `views.VIEWS`; the bare page would
    show empty traces."""
    return f"#/experiments/{experiment}/runs?{TRAINING}&viewStateShareKey={view}"


def run_link(experiment: str, run_id: str, file: str = "") -> str:
    """Where a run is, or a file or folder among its artifacts, after the server's address."""
    return f"#/experiments/{experiment}/runs/{run_id}" + (f"/artifacts/{quote(file)}" if file else "") + f"?{TRAINING}"


def model_link(name: str, number: str | None = None) -> str:
    """Where a registered model, or a version of it, is, after the server's address."""
    return f"#/models/{quote(name, safe='')}" + (f"/versions/{number}" if number else "") + f"?{TRAINING}"
