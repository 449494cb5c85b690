"""Writing to the tracking store without ever stopping the work that it watches.

Every write is first an operation in a journal on local disk, then delivered, metrics in batches. Operations are
idempotent, so delivering one twice changes nothing: MLflow knows a metric point by (run, key, step, time, value), and
steps that a run had before this process continued it are dropped. If the store fails, operations stay in the journal
and are tried again later, by this process or, after its death, by the next one (`replay`).
"""

from __future__ import annotations

import atexit
import json
import os
import re
import threading
import time
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from storage import logs
from storage.errors import TrackingError
from storage.home import local_home
from storage.tracking.client import BATCH, Away, Client, Refused, connect, name_of_metric
from storage.tracking.spool import Journal, replay_orphans, set_aside

SECONDS = 5.0           # a value waits at most this long for its batch, as long as metrics keep coming
RETRY_SECONDS = 30.0    # pause after a failure before the store is tried again
PENDING = "pending-"    # start of the ids given out while the store is away

log = logs.get("storage.tracking")


def default_uri() -> str:
    """`MLFLOW_TRACKING_URI`, or SQLite in the home (its local part when the home is a URL)."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{local_home()}/mlflow.db"


def experiment_link(experiment: str) -> str:
    """Where the runs of an experiment are, after the server's address; the bare page would show empty traces."""
    return f"#/experiments/{experiment}/runs?workflowType=machine_learning"


def run_link(experiment: str, run_id: str) -> str:
    """Where a run is, after the server's address."""
    return f"#/experiments/{experiment}/runs/{run_id}"


class Tracking:
    """Writes runs to one MLflow store. May be sent to another process, where it writes to the same store.

    uri    tracking URI; None = `default_uri()`
    spool  folder of the journals; None = `<home>/spool/<hash of the URI>`
    """

    def __init__(self, uri: str | None = None, spool: str | os.PathLike | None = None) -> None:
        self.uri = uri or default_uri()
        named = sha256(self.uri.encode()).hexdigest()[:8]
        self.spool = Path(spool).absolute() if spool else local_home() / "spool" / named
        self._open()

    def __repr__(self) -> str:
        return f"Tracking({self.uri!r})"

    def __getstate__(self) -> dict:
        return {"uri": self.uri, "spool": self.spool}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._open()

    # ------------------------------------------------------------------------------------------------------- runs
    def experiment(self, name: str) -> str:
        """Id of the experiment, created if need be."""
        try:
            with self._store() as client:
                return client.experiment(name, self._artifact_location())
        except Away:
            return PENDING + name

    def start(self, experiment: str, name: str, tags: Mapping[str, Any] | None = None,
              params: Mapping[str, Any] | None = None, parent: str | None = None) -> str:
        """Id of a new run, or of the unfinished run with the same tag `fingerprint`, which is then continued.

        parent  id of the run under which the interface shows this one
        """
        tags = {key: str(value) for key, value in (tags or {}).items()}
        if parent:
            tags["mlflow.parentRunId"] = parent
        operation = {"op": "start", "experiment": experiment, "name": name, "tags": tags, "time": _now(),
                     "params": {key: str(value) for key, value in (params or {}).items()}}
        self.replay()
        try:
            with self._store() as client:
                return self._start(client, operation)
        except Away:
            operation["run"] = PENDING + uuid.uuid4().hex
            self._submit(operation)
            return operation["run"]

    def finish(self, run_id: str, status: str = "FINISHED") -> None:
        """End a run: FINISHED, FAILED or KILLED."""
        self._submit({"op": "finish", "run": run_id, "status": status, "time": _now()})

    def tag(self, run_id: str, tags: Mapping[str, Any]) -> None:
        self._submit({"op": "tags", "run": run_id, "tags": {key: str(value) for key, value in tags.items()}})

    def find(self, experiment: str, tags: Mapping[str, Any]) -> list[str]:
        """Ids of the runs of an experiment with all these tags, newest first; none while the store is away."""
        try:
            with self._store() as client:
                return client.find(self._experiment_id(client, experiment),
                                   {key: str(value) for key, value in tags.items()})
        except Away:
            return []

    def link(self, run_id: str) -> str:
        """`run_link` for a run whose experiment is not at hand."""
        try:
            with self._store() as client:
                run_id = self._run_id(client, run_id)
                return run_link(client.experiment_of(run_id), run_id)
        except Away:
            return "#/"

    # --------------------------------------------------------------------------------------------- numbers, files
    def metrics(self, run_id: str, values: Mapping[str, float], step: int, tokens: int | None = None) -> None:
        """Log values at a step; `tokens` seen so far go with them as a metric of that name. Buffered."""
        values = {name_of_metric(key): float(value) for key, value in values.items()}
        if tokens is not None:
            values["tokens"] = float(tokens)
        with self._lock:
            self._check_process()
            self._journal.append({"op": "metrics", "run": run_id, "step": int(step), "time": _now(), "values": values})
            self._waiting += len(values)
            if self._waiting >= BATCH or time.monotonic() - self._flushed >= SECONDS:
                self.flush()

    def last_step(self, run_id: str, key: str) -> int | None:
        """The last step of a metric in the store; None when it has none there, or the store is away."""
        self.flush()
        try:
            with self._store() as client:
                return max(client.steps(self._run_id(client, run_id), name_of_metric(key)), default=None)
        except Away:
            return None

    def artifacts(self, run_id: str, path: str | os.PathLike, subfolder: str | None = None) -> None:
        """Copy a file, or what is in a folder, to the artifacts of a run."""
        path = Path(path).absolute()
        if not path.exists():
            raise TrackingError(f"{path} cannot be logged to run {run_id}: there is no such file or folder")
        self._submit({"op": "artifacts", "run": run_id, "path": str(path), "subfolder": subfolder})

    def table(self, run_id: str, rows: Iterable[Mapping[str, Any]], name: str) -> None:
        """Log rows as `<name>.json`, which the interface shows as a table. Replaces an earlier one of that name."""
        rows = list(rows)
        columns = list(dict.fromkeys(key for row in rows for key in row))
        text = json.dumps({"columns": columns, "data": [[row.get(column) for column in columns] for row in rows]},
                          ensure_ascii=False, default=str)
        self._submit({"op": "table", "run": run_id, "name": name.removesuffix(".json") + ".json", "text": text})

    def register(self, name: str, run_id: str, artifact_path: str, tags: Mapping[str, Any] | None = None) -> str:
        """Register files of a run as a version of model `name`; returns the version, "" while the store is away."""
        operation = {"op": "register", "run": run_id, "name": re.sub(r"[/:']", "-", name), "path": artifact_path,
                     "tags": {key: str(value) for key, value in (tags or {}).items()}}
        self.flush()
        try:
            with self._store() as client:
                return client.register(self._run_id(client, run_id), operation["name"], artifact_path,
                                       operation["tags"])
        except Away:
            self._submit(operation)
            return ""

    # --------------------------------------------------------------------------------------------------- delivery
    def flush(self) -> bool:
        """Deliver what waits; False when the store is away and it has to wait on."""
        with self._lock:
            self._check_process()
            self._waiting, self._flushed = 0, time.monotonic()
            if not self._journal.operations:
                return True
            try:
                with self._store() as client:
                    self._deliver(client, self._journal.operations, self._seen)
            except Away:
                return False
            self._journal.clear()
            return True

    def replay(self) -> int:
        """Deliver the journals of dead processes, then our own; returns how many operations the former held."""
        with self._lock:
            self._check_process()
            replayed = 0
            try:
                if any(self.spool.glob("*.jsonl")):
                    with self._store() as client:
                        replayed = replay_orphans(self.spool, lambda operations: self._deliver(client, operations, {}))
            except Away:
                return 0
            if replayed:
                log.info("replayed %d tracking operations of an earlier process", replayed)
            self.flush()
            return replayed

    def close(self) -> None:
        """Deliver what waits and let go of the journal. Happens by itself when the process ends."""
        with self._lock:
            self._check_process()
            self.flush()
            self._journal.close()

    def _submit(self, operation: dict[str, Any]) -> None:
        with self._lock:
            self._check_process()
            self._journal.append(operation)
            self.flush()

    def _deliver(self, client: Client, operations: list[dict[str, Any]], seen: dict[str, _Steps]) -> None:
        """Carry out operations, those of one run in order. `seen`: what runs had before this process wrote to them."""
        points: dict[str, list[dict[str, Any]]] = {}
        for operation in operations:
            if operation["op"] == "metrics":
                points.setdefault(operation["run"], []).append(operation)
                continue
            self._deliver_points(client, points.pop(operation["run"], []), seen)
            try:
                self._carry_out(client, operation)
            except Refused as refusal:
                set_aside(self.spool, operation, str(refusal))
        for waiting in points.values():
            self._deliver_points(client, waiting, seen)

    def _deliver_points(self, client: Client, operations: list[dict[str, Any]], seen: dict[str, _Steps]) -> None:
        """Metrics of one run in one go; one by one if the store refuses something among them."""
        if not operations:
            return
        try:
            run_id = self._run_id(client, operations[0]["run"])
            had = seen.setdefault(run_id, _Steps(client, run_id))
            client.log(run_id, [(key, value, operation["time"], operation["step"]) for operation in operations
                                for key, value in operation["values"].items() if operation["step"] not in had.of(key)])
        except Refused as refusal:
            if len(operations) == 1:
                set_aside(self.spool, operations[0], str(refusal))
                return
            for operation in operations:
                self._deliver_points(client, [operation], seen)

    def _carry_out(self, client: Client, operation: dict[str, Any]) -> None:
        kind = operation["op"]
        if kind == "start":
            self._start(client, operation)
            return
        run_id = self._run_id(client, operation["run"])
        if kind == "tags":
            client.tag(run_id, operation["tags"])
        elif kind == "finish":
            client.finish(run_id, operation["status"], operation["time"])
        elif kind == "artifacts":
            client.files(run_id, Path(operation["path"]), operation["subfolder"])
        elif kind == "table":
            client.table(run_id, operation["name"], operation["text"])
        elif kind == "register":
            client.register(run_id, operation["name"], operation["path"], operation["tags"])

    def _start(self, client: Client, operation: dict[str, Any]) -> str:
        tags = dict(operation["tags"])
        if "mlflow.parentRunId" in tags:
            tags["mlflow.parentRunId"] = self._run_id(client, tags["mlflow.parentRunId"])
        pending = operation.get("run")
        if pending:
            tags["reread.pending"] = pending
        run_id = (client.find(None, {"reread.pending": pending}) if pending else None) or None
        if run_id:                                      # delivered before, by an attempt that heard no answer
            self._real[pending] = run_id[0]
            return run_id[0]
        run_id, existed, changed = client.start(self._experiment_id(client, operation["experiment"]),
                                                operation["name"], tags, operation["params"], operation["time"])
        if changed:
            log.warning("run %s keeps its earlier values of %s", run_id, ", ".join(changed))
        self._seen[run_id] = _Steps(client if existed else None, run_id)
        if pending:
            self._real[pending] = run_id
        return run_id

    # ------------------------------------------------------------------------------------------------- connection
    def _open(self) -> None:
        self._lock = threading.RLock()
        self._client: Client | None = None
        self._journal = Journal(self.spool)
        self._seen: dict[str, _Steps] = {}
        self._real: dict[str, str] = {}                 # pending id -> run id
        self._waiting, self._flushed = 0, time.monotonic()
        self._away_until = 0.0
        atexit.register(_close, weakref.ref(self))

    def _check_process(self) -> None:
        """After a fork the child starts afresh: journal and connection are its parent's."""
        if self._journal.owner != os.getpid():
            self._open()

    @contextmanager
    def _store(self) -> Iterator[Client]:
        """The client. After a failure (`Away`) the store is left alone for a while; a refusal is the caller's mistake."""
        with self._lock:
            self._check_process()
            if time.monotonic() < self._away_until:
                raise Away
            try:
                if self._client is None:
                    self._client = connect(self.uri)
                yield self._client
            except Refused as refusal:
                raise TrackingError(f"tracking store {self.uri} refuses: {refusal}") from refusal
            except Away as away:
                self._away_until = time.monotonic() + RETRY_SECONDS
                log.warning("tracking store %s does not work (%s); work goes on, numbers wait in %s", self.uri, away,
                            self.spool)
                raise

    def _artifact_location(self) -> str | None:
        """Where a new experiment keeps its files: beside an SQLite database; with a server, it decides."""
        if not self.uri.startswith("sqlite:///"):
            return None
        return (Path(self.uri.removeprefix("sqlite:///")).absolute().parent / "mlflow-artifacts").as_uri()

    def _experiment_id(self, client: Client, experiment: str) -> str:
        if experiment.startswith(PENDING):
            return client.experiment(experiment.removeprefix(PENDING), self._artifact_location())
        return experiment

    def _run_id(self, client: Client, run: str) -> str:
        """The store's id for a run that was started while the store was away."""
        if run.startswith(PENDING) and run not in self._real:
            found = client.find(None, {"reread.pending": run})
            if not found:
                raise Refused(f"there is no run {run}")
            self._real[run] = found[0]
        return self._real.get(run, run)


class _Steps:
    """The steps that a run had per metric before this process wrote to it, looked up once per metric."""

    def __init__(self, client: Client | None, run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self._names: set[str] | None = None if client else set()
        self._steps: dict[str, set[int]] = {}

    def of(self, key: str) -> set[int]:
        if key not in self._steps:
            if self._names is None:
                self._names = self._client.metric_names(self._run_id)
            self._steps[key] = self._client.steps(self._run_id, key) if key in self._names else set()
        return self._steps[key]


def _close(reference: weakref.ref) -> None:
    tracking = reference()
    if tracking is not None:
        tracking.close()


def _now() -> int:
    """Milliseconds since 1970, MLflow's unit."""
    return int(time.time() * 1000)
