"""What we ask of MLflow, and the only import of it. Every method may raise `Away` or `Refused`, and nothing else.

`MlflowClient` with an explicit URI only: no active run, no global tracking URI. MLflow is imported with the first
connection (1.4 s), never at import time.
"""

from __future__ import annotations

import fcntl
import functools
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from storage.tracking import views
from storage.tracking.limits import BATCH, DIGEST, VALUE, cut, cut_whole, parts
from storage.tracking.places import sqlite_file

CONTINUED = ("RUNNING", "SCHEDULED", "FAILED", "KILLED")
REFUSALS = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE",
            "BAD_REQUEST")
ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
               # the defaults, 7 tries of 120 s, would hold a training loop for a quarter of an hour
               "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "15"}


class Away(Exception):
    """The store does not work at the moment: unreachable, locked, full, damaged."""


class Refused(Exception):
    """The store works and refuses this request because of what it says."""


def _translated(method: Callable) -> Callable:
    """Turn what MLflow and the libraries below it raise into `Away` or `Refused`."""

    @functools.wraps(method)
    def call(*args, **kwargs):
        with translation():
            return method(*args, **kwargs)

    return call


@contextmanager
def translation() -> Iterator[None]:
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except MlflowException as error:
        if error.error_code in REFUSALS:
            raise Refused(error.message) from error
        raise Away(_first_line(error)) from error
    except (SQLAlchemyError, OSError) as error:
        raise Away(_first_line(error)) from error


def connect(uri: str) -> Client:
    """Open the store, creating an SQLite database if there is none; `Away` if that fails."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient

    for name in ("alembic", "mlflow.store.db.utils", "mlflow.store.model_registry.sqlalchemy_store"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with translation(), one_at_a_time(uri):
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_experiments(max_results=1)
    return Client(client)


@contextmanager
def one_at_a_time(uri: str) -> Iterator[None]:
    """Two processes that create the same SQLite database at once would race in its migrations."""
    database = sqlite_file(uri)
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with open(database.with_name(database.name + ".lock"), "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


class Client:
    """A connected store."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    def raw(self) -> Any:
        """MLflow's own client; to be used within `translation()`."""
        return self._client

    @_translated
    def experiment(self, name: str, artifact_location: str | None) -> str:
        """Id by name; created, or brought back if it was deleted."""
        found = self._client.get_experiment_by_name(name)
        if found is None:
            tags = {"mlflow.experimentKind": "custom_model_development"}
            try:
                self._client.create_experiment(name, artifact_location=artifact_location, tags=tags)
            except self._exception() as error:
                if self._client.get_experiment_by_name(name) is None:       # else another process was faster
                    raise error
            found = self._client.get_experiment_by_name(name)
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        self._show(found)
        return found.experiment_id

    def _show(self, experiment: Any) -> None:
        """Put our views where the interface finds them; a note that somebody wrote stays."""
        wanted = views.tags()
        if experiment.tags.get(views.NOTE, "Views: ").startswith("Views: "):
            wanted[views.NOTE] = views.note(experiment.experiment_id)
        for key, value in wanted.items():
            if experiment.tags.get(key) != value:
                try:
                    self._client.set_experiment_tag(experiment.experiment_id, key, value)
                except self._exception() as error:
                    if "UniqueViolation" not in str(error):     # another process set the same tag at this moment
                        raise

    @_translated
    def start(self, experiment: str, name: str, tags: Mapping[str, str], parameters: Mapping[str, str],
              began: int) -> tuple[str, bool, list[str]]:
        """(run id, whether it existed, parameters that it has with another value). `began` in ms since 1970.

        An unfinished run with the same tag `fingerprint` is continued; otherwise one is created.
        """
        run = next(iter(self._same(experiment, tags, "fingerprint", CONTINUED)), None)
        existed = run is not None
        if run is None:
            run = self._client.create_run(experiment, start_time=began, tags=cut(tags), run_name=name)
        else:
            self._client.update_run(run.info.run_id, status="RUNNING")
            self.tag(run.info.run_id, tags)
        parameters = cut(parameters, VALUE)
        self._log_parameters(run.info.run_id, {key: value for key, value in parameters.items()
                                               if key not in run.data.params})
        changed = [key for key, value in parameters.items() if run.data.params.get(key, value) != value]
        return run.info.run_id, existed, changed

    @_translated
    def find(self, experiment: str | None, tags: Mapping[str, str]) -> list[str]:
        """Ids of active runs with all these tags, newest first; in any experiment for None."""
        return [run.info.run_id for run in self._search(experiment, tags)]

    @_translated
    def log(self, run_id: str, points: Sequence[tuple[str, float, int, int]]) -> None:
        """Points (key, value, time [ms], step). A point that the run has already is not added again."""
        from mlflow.entities import Metric

        for first in range(0, len(points), BATCH):
            batch = [Metric(key, value, time, step) for key, value, time, step in points[first:first + BATCH]]
            self._client.log_batch(run_id, metrics=batch, synchronous=True)

    @_translated
    def metric_names(self, run_id: str) -> set[str]:
        return set(self._client.get_run(run_id).data.metrics)

    @_translated
    def steps(self, run_id: str, key: str) -> set[int]:
        """All steps at which a run has a metric."""
        return {metric.step for metric in self._client.get_metric_history(run_id, key)}

    @_translated
    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        for part in parts(cut(tags)):
            self._client.log_batch(run_id, tags=[RunTag(key, value) for key, value in part], synchronous=True)

    @_translated
    def finish(self, run_id: str, status: str, ended: int) -> None:
        self._client.set_terminated(run_id, status, ended)

    @_translated
    def files(self, run_id: str, path: Path, subfolder: str | None) -> None:
        """Copy a file, or what is in a folder."""
        if not path.exists():
            raise Refused(f"{path} no longer exists")
        log = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
        log(run_id, str(path), subfolder)

    @_translated
    def text(self, run_id: str, name: str, text: str) -> None:
        """A text as a file."""
        self._write(run_id, name, text)

    def _write(self, run_id: str, name: str, text: str) -> None:
        folder, _, file = name.rpartition("/")
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch) / file
            place.write_text(text, encoding="utf-8")
            self._client.log_artifact(run_id, str(place), folder or None)

    @_translated
    def table(self, run_id: str, name: str, text: str) -> None:
        """A JSON table, with the tag that makes the interface offer it as one."""
        self._write(run_id, name, text)
        known = json.loads(self._client.get_run(run_id).data.tags.get("mlflow.loggedArtifacts", "[]"))
        entry = {"path": name, "type": "table"}
        if entry not in known:
            self._client.set_tag(run_id, "mlflow.loggedArtifacts", json.dumps([*known, entry]))

    @_translated
    def inputs(self, run_id: str, datasets: Sequence[Mapping[str, str]]) -> None:
        """Data that a run reads: name, digest, context, source (an address), profile (JSON). Naming one again changes
        nothing."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        self._client.log_inputs(run_id, [
            DatasetInput(Dataset(one["name"], one["digest"][-DIGEST:], "local" if one["source"].startswith("/") else "code",
                                 json.dumps({"uri": one["source"]}), profile=one["profile"]),
                         [InputTag("mlflow.data.context", one["context"])]) for one in datasets])

    @_translated
    def register(self, run_id: str, name: str, path: str, tags: Mapping[str, str], description: str = "",
                 family: str = "") -> str:
        """Version of model `name` for files of a run; the same files give the same version. family: describes a model that is
        new."""
        source = f"{self._client.get_run(run_id).info.artifact_uri.rstrip('/')}/{path}"
        try:
            self._client.create_registered_model(name, description=family or None)
        except self._exception() as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        for version in self._client.search_model_versions(f"name = '{quoted(name)}' and run_id = '{run_id}'"):
            if version.source == source:
                for key, value in cut(tags).items():
                    self._client.set_model_version_tag(name, version.version, key, value)
                return str(version.version)
        made = self._client.create_model_version(name, source, run_id, tags=cut(tags), await_creation_for=0,
                                                 description=cut_whole(description) or None)
        return str(made.version)

    @_translated
    def experiment_of(self, run_id: str) -> str:
        return self._client.get_run(run_id).info.experiment_id

    def _log_parameters(self, run_id: str, parameters: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        for part in parts(parameters):
            self._client.log_batch(run_id, params=[Param(key, value) for key, value in part], synchronous=True)

    def _same(self, experiment: str, tags: Mapping[str, str], key: str, states: Sequence[str]) -> list[Any]:
        if key not in tags:
            return []
        return [run for run in self._search(experiment, {key: tags[key]}) if run.info.status in states]

    def _search(self, experiment: str | None, tags: Mapping[str, str]) -> list[Any]:
        wanted = " and ".join(f"tags.`{key}` = '{quoted(value)}'" for key, value in tags.items())
        places = [experiment] if experiment else [e.experiment_id for e in self._client.search_experiments()]
        runs, token = [], None
        while True:
            page = self._client.search_runs(places, wanted, order_by=["attributes.start_time DESC"], page_token=token)
            runs += page
            token = page.token
            if not token:
                return runs

    @staticmethod
    def _exception() -> type[Exception]:
        from mlflow.exceptions import MlflowException

        return MlflowException


def machine() -> Callable[[], dict[str, float]]:
    """A function that reads CPU, memory, disk, network and, where there is one, GPU, since it was last called."""
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    monitors: list[Any] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
    with suppress(Exception):               # whatever is missing for it, there is no GPU to read
        monitors.append(GPUMonitor())

    def read() -> dict[str, float]:
        found: dict[str, float] = {}
        for monitor in monitors:
            monitor.collect_metrics()
            found |= monitor.aggregate_metrics()
            monitor.clear_metrics()
        return found

    return read


def quoted(value: str) -> str:
    """A value as a search takes it."""
    if "'" in value:
        raise Refused(f"cannot search for a value with a quote in it: {value}")
    return value


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0][:300]
