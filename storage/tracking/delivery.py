"""Carrying out journalled operations: each may be delivered twice and takes effect once.

    start      a run begun while the store was away is known by the tag `reread.pending`
    metrics    MLflow knows a point by (run, key, step, time, value); steps that a run had before this process wrote to
               it, because an earlier one got that far before it died, are dropped
    others     set what they say, so that repeating them changes nothing
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from storage import logs
from storage.tracking.client import Client, Refused
from storage.tracking.places import sqlite_file
from storage.tracking.spool import set_aside

PENDING = "pending-"    # start of the ids given out while the store is away

log = logs.get("storage.tracking")


class Delivery:
    """Knows which ids are pending and which steps were there before. Raises `Away` if the store fails on the way."""

    def __init__(self, uri: str, spool: Path) -> None:
        self.uri, self.spool = uri, spool
        self._seen: dict[str, Steps] = {}
        self._real: dict[str, str] = {}                 # pending id -> run id

    def deliver(self, client: Client, operations: list[dict[str, Any]], orphaned: bool = False) -> None:
        """Carry out operations, those of one run in order; orphaned ones belong to a process that is dead."""
        seen = {} if orphaned else self._seen
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

    def _deliver_points(self, client: Client, operations: list[dict[str, Any]], seen: dict[str, Steps]) -> None:
        """Metrics of one run in one go; one by one if the store refuses something among them."""
        if not operations:
            return
        try:
            run_id = self.run_id(client, operations[0]["run"])
            had = seen.setdefault(run_id, Steps(client, run_id))
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
            self.start(client, operation)
            return
        run_id = self.run_id(client, operation["run"])
        if kind == "tags":
            client.tag(run_id, operation["tags"])
        elif kind == "finish":
            client.finish(run_id, operation["status"], operation["time"])
        elif kind == "artifacts":
            self._files(client, run_id, operation)
        elif kind == "table":
            client.table(run_id, operation["name"], operation["text"])
        elif kind == "text":
            client.text(run_id, operation["name"], operation["text"])
        elif kind == "inputs":
            client.inputs(run_id, operation["datasets"])
        elif kind == "register":
            client.register(run_id, operation["name"], operation["path"], operation["tags"],
                            operation.get("description", ""), operation.get("family", ""))

    @staticmethod
    def _files(client: Client, run_id: str, operation: dict[str, Any]) -> None:
        """One that is to be moved and is no longer here was delivered before."""
        path, move = Path(operation["path"]), operation.get("move", False)
        if move and not path.exists():
            return
        client.files(run_id, path, operation["subfolder"])
        if move:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def start(self, client: Client, operation: dict[str, Any]) -> str:
        """The run of a start operation: continued, found again, or created."""
        tags = dict(operation["tags"])
        if "mlflow.parentRunId" in tags:
            tags["mlflow.parentRunId"] = self.run_id(client, tags["mlflow.parentRunId"])
        pending = operation.get("run")
        if pending:
            tags["reread.pending"] = pending
            for run_id in client.find(None, {"reread.pending": pending}):    # delivered by an attempt that heard no answer
                self._real[pending] = run_id
                return run_id
        run_id, existed, changed = client.start(self.experiment_id(client, operation["experiment"]),
                                                operation["name"], tags, operation["params"], operation["time"])
        if changed:
            log.warning("run %s keeps its earlier values of %s", run_id, ", ".join(changed))
        self._seen[run_id] = Steps(client if existed else None, run_id)
        if pending:
            self._real[pending] = run_id
        return run_id

    def artifact_location(self) -> str | None:
        """Where a new experiment keeps its files: beside an SQLite database; with a server, it decides."""
        database = sqlite_file(self.uri)
        return None if database is None else (database.absolute().parent / "mlflow-artifacts").as_uri()

    def experiment_id(self, client: Client, experiment: str) -> str:
        """The store's id for an experiment named while the store was away."""
        if experiment.startswith(PENDING):
            return client.experiment(experiment.removeprefix(PENDING), self.artifact_location())
        return experiment

    def run_id(self, client: Client, run: str) -> str:
        """The store's id for a run that was started while the store was away."""
        if run.startswith(PENDING) and run not in self._real:
            found = client.find(None, {"reread.pending": run})
            if not found:
                raise Refused(f"there is no run {run}")
            self._real[run] = found[0]
        return self._real.get(run, run)


class Steps:
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
