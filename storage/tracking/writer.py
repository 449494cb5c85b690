"""Writing to the tracking store without ever stopping the work that it watches.

Every write is first an operation in a journal on local disk, then delivered, metrics in batches. Operations are
idempotent (see `delivery`), so delivering one twice changes nothing. If the store fails, operations stay in the journal
and are tried again later, by this process or, after its death, by the next one (`replay`).
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from storage import logs
from storage.errors import TrackingError
from storage.home import local_home
from storage.tracking.client import Away, Client, Refused, connect
from storage.tracking.delivery import PENDING, Delivery
from storage.tracking.limits import BATCH, model_name, valid_name
from storage.tracking.places import absolute, default_uri, experiment_link, run_link
from storage.tracking.spool import Journal, replay_orphans
from storage.tracking.tables import table_text

SECONDS = 5.0           # a value waits at most this long for its batch, as long as metrics keep coming
RETRY_SECONDS = 30.0    # pause after a failure before the store is tried again; doubles with each failure in a row,
LONGEST_PAUSE = 600.0   # up to this: a try may block for MLflow's 20 s (SQLite locked) or 30 s (server that hangs)

log = logs.get("storage.tracking")


class Tracking:
    """Writes runs to one MLflow store. May be sent to another process, where it writes to the same store.

    uri    tracking URI; None = `default_uri()`
    spool  folder of the journals; None = `<home>/spool/<hash of the URI>`
    """

    def __init__(self, uri: str | None = None, spool: str | os.PathLike | None = None) -> None:
        self.uri = absolute(uri or default_uri())
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
                return client.experiment(name, self._delivery.artifact_location())
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
                return self._delivery.start(client, operation)
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
                return client.find(self._delivery.experiment_id(client, experiment),
                                   {key: str(value) for key, value in tags.items()})
        except Away:
            return []

    def link(self, run_id: str, file: str = "") -> str:
        """`run_link` for a run whose experiment is not at hand; while the store is away, or does not know it, a link to the
        start."""
        try:
            with self._store() as client:
                run_id = self._delivery.run_id(client, run_id)
                return run_link(client.experiment_of(run_id), run_id, file)
        except (Away, TrackingError):       # nobody's work ends for want of a link
            return "#/"

    def experiment_link(self, experiment: str) -> str:
        """`experiment_link`, for symmetry."""
        return experiment_link(experiment)

    # --------------------------------------------------------------------------------------------- numbers, files
    def metrics(self, run_id: str, values: Mapping[str, float], step: int, tokens: int | None = None) -> None:
        """Log values at a step; `tokens` seen so far go with them as a metric of that name. Buffered."""
        values = {valid_name(key): float(value) for key, value in values.items()}
        with self._lock:
            self._check_process()
            if tokens is not None and self._tokens_at.get(run_id) != step:      # once a step, however many calls
                values["tokens"] = float(tokens)
                self._tokens_at[run_id] = step
            self._journal.append({"op": "metrics", "run": run_id, "step": int(step), "time": _now(), "values": values})
            self._waiting += len(values)
            if self._waiting >= BATCH or time.monotonic() - self._flushed >= SECONDS:
                self.flush()

    def last_step(self, run_id: str, key: str) -> int | None:
        """The last step of a metric in the store; None when it has none there, or the store is away."""
        self.flush()
        try:
            with self._store() as client:
                return max(client.steps(self._delivery.run_id(client, run_id), valid_name(key)), default=None)
        except Away:
            return None

    def artifacts(self, run_id: str, path: str | os.PathLike, subfolder: str | None = None, move: bool = False) -> None:
        """Copy a file, or what is in a folder, to the artifacts of a run. move: delete it here once it is there."""
        path = Path(path).absolute()
        if not path.exists():
            raise TrackingError(f"{path} cannot be logged to run {run_id}: there is no such file or folder")
        self._submit({"op": "artifacts", "run": run_id, "path": str(path), "subfolder": subfolder, "move": move})

    def table(self, run_id: str, rows: Iterable[Mapping[str, Any]], name: str) -> None:
        """Log rows as `<name>.json`, which the interface shows as a table. Replaces an earlier one of that name."""
        self._submit({"op": "table", "run": run_id, "name": name.removesuffix(".json") + ".json", "text": table_text(rows)})

    def text(self, run_id: str, text: str, name: str) -> None:
        """Log a text as a file of that name, for example `report.html`."""
        self._submit({"op": "text", "run": run_id, "name": name, "text": text})

    def inputs(self, run_id: str, datasets: Sequence[Mapping[str, Any]]) -> None:
        """Name the data that a run reads. Each: name, digest, context (training, evaluation ...), source (where it is)
        and profile (counts); the interface shows them in the runs table and on the run's page."""
        self._submit({"op": "inputs", "run": run_id, "datasets": [
            {**{key: str(one[key]) for key in ("name", "digest", "context", "source")},
             "profile": json.dumps(one.get("profile", {}), default=str)} for one in datasets]})

    def register(self, name: str, run_id: str, artifact_path: str, tags: Mapping[str, Any] | None = None,
                 description: str = "", family: str = "") -> str:
        """Register files of a run as a version of model `name`; returns the version, "" while the store is away.

        description  of the version
        family       of the model, if this is its first version
        """
        operation = {"op": "register", "run": run_id, "name": model_name(name), "path": artifact_path,
                     "tags": {key: str(value) for key, value in (tags or {}).items()}, "description": description,
                     "family": family}
        self.flush()
        try:
            with self._store() as client:
                return client.register(self._delivery.run_id(client, run_id), operation["name"], artifact_path,
                                       operation["tags"], description, family)
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
                    self._delivery.deliver(client, self._journal.operations)
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
                        replayed = replay_orphans(self.spool, partial(self._delivery.deliver, client, orphaned=True))
            except Away:
                return 0
            if replayed:
                log.info("replayed %d tracking operations of an earlier process", replayed)
            self.flush()
            return replayed

    def close(self) -> None:
        """Deliver what waits, pause or not, and let go of the journal. Happens by itself when the process ends."""
        with self._lock:
            self._check_process()
            self._away_until = 0.0
            self.flush()
            self._journal.close()

    def _submit(self, operation: dict[str, Any]) -> None:
        with self._lock:
            self._check_process()
            self._journal.append(operation)
            self.flush()

    # ------------------------------------------------------------------------------------------------- connection
    def _open(self) -> None:
        self._lock = threading.RLock()
        self._client: Client | None = None
        self._journal = Journal(self.spool)
        self._delivery = Delivery(self.uri, self.spool)
        self._waiting, self._flushed = 0, time.monotonic()
        self._tokens_at: dict[str, int] = {}            # run -> step whose tokens are logged
        self._away_until = 0.0
        self._failures = 0                              # in a row
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
                if self._failures:
                    self._failures = 0
                    log.info("tracking store %s works again", self.uri)
            except Refused as refusal:
                raise TrackingError(f"tracking store {self.uri} refuses: {refusal}") from refusal
            except Away as away:
                self._away_until = time.monotonic() + min(RETRY_SECONDS * 2 ** self._failures, LONGEST_PAUSE)
                self._failures += 1
                if self._failures == 1:
                    log.warning("tracking store %s does not work (%s); work goes on, numbers wait in %s", self.uri,
                                away, self.spool)
                raise

def _close(reference: weakref.ref) -> None:
    tracking = reference()
    if tracking is not None:
        tracking.close()


def _now() -> int:
    """Milliseconds since 1970, MLflow's unit."""
    return int(time.time() * 1000)
