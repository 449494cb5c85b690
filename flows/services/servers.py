"""How each local server is launched, and when it counts as ready: Prefect's API, MLflow's pages, the deployments."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import psutil

from flows.services import prefect_database
from flows.services.processes import (
    ProcessId,
    Record,
    answers,
    free_port,
    launch,
    listens,
    port_free,
    session_of,
    stop,
    tail,
)
from storage.errors import ServiceError
from storage.home import local_home, make_folder
from storage.tracking import default_uri
from storage.tracking.places import STORE

PREFECT_PORT, MLFLOW_PORT = 4200, 5050
READY_SECONDS = 600.0        # a first start on a busy machine: thousands of files to compile, a hundred migrations
LOOK_SECONDS = 0.1
MOVES = 3                    # to another port, while a server starts


def folder() -> Path:
    """Where the records of services lie."""
    return local_home() / "services"


@dataclass(frozen=True)
class Server:
    """One server as it is launched."""

    name: str
    command: list[str]
    url: str | None = None                                       # of its pages; None: it has none
    health: str | None = None                                    # address that answers when it is ready
    ready: Callable[[], bool] = lambda: True                     # what must hold besides
    environment: dict[str, str] = field(default_factory=dict)
    extra: dict = field(default_factory=dict)                    # goes into the record


def prefect(port: int) -> Server:
    """The API server, on SQLite in `<home>/prefect` unless Prefect's own variables name another database."""
    url = f"http://127.0.0.1:{port}"
    prefect_database.provide(Path(os.environ["PREFECT_HOME"]))
    environment = {"PREFECT_API_URL": f"{url}/api", "PREFECT_HOME": os.environ["PREFECT_HOME"]}
    if not _can_unpack_pages():
        environment["PREFECT_UI_STATIC_DIRECTORY"] = str(Path(os.environ["PREFECT_HOME"]) / "pages")
    return Server("prefect", [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
                  url, f"{url}/api/health", environment=environment)


def _can_unpack_pages() -> bool:
    """Prefect unpacks its pages beside its own code, and has none where it may not write there."""
    place = find_spec("prefect").submodule_search_locations[0]
    return bool(os.environ.get("PREFECT_UI_STATIC_DIRECTORY")) or os.access(os.path.join(place, "server"), os.W_OK)


def mlflow(port: int) -> Server:
    """MLflow's pages over the database that runs write to directly."""
    home = make_folder(local_home())
    url = f"http://127.0.0.1:{port}"
    return Server("mlflow", [sys.executable, "-m", "storage.tracking.server", str(port), f"file://{home / 'mlflow-artifacts'}"],
                  url, f"{url}/health", environment={STORE: default_uri()})


def deployments(api: str) -> Server:
    """The process that serves every flow as a deployment and runs what is triggered on the pages."""
    told = folder() / ".deployments.ready"
    told.unlink(missing_ok=True)

    def ready() -> bool:
        if not told.exists():
            return False
        told.unlink(missing_ok=True)
        return True

    return Server("deployments", [sys.executable, "-m", "flows.deployments", str(told)], ready=ready,
                  environment={"PREFECT_API_URL": api, "PYTHONUNBUFFERED": "1"}, extra={"api": api})


def left_behind(dead: Record | None) -> list[list[float]]:
    """What a service that died had begun and still works, such as a flow run: its successor's record names it too, so that
    `down` ends it."""
    if dead is None or dead.process.alive:
        return []
    return [[one.pid, one.started] for one in (*session_of(dead.process), *dead.orphans)]


class Start:
    """A server on its way up. It is on record from its first moment, with `ready` false until it answers.

    build      makes the server for a port
    owner      "up" or "run", see `Record`
    preferred  a port; when it is taken, now or by the time the server wants it, another is used. None: needs no port
    """

    def __init__(self, build: Callable[[int], Server], owner: str, preferred: int | None) -> None:
        self._build, self._owner, self._preferred, self._moves = build, owner, preferred, 0
        self._launch(free_port(preferred) if preferred is not None else 0)

    def _launch(self, port: int) -> None:
        self._port = port
        self.server = self._build(port)
        self._log = local_home() / "logs" / f"{self.server.name}.log"
        self._deadline = time.monotonic() + READY_SECONDS
        orphans = left_behind(Record.load(folder(), self.server.name))
        self._process: subprocess.Popen = launch(self.server.command, self._log, self.server.environment)
        self.record = Record(self.server.name, ProcessId.of(psutil.Process(self._process.pid)), self._owner,
                             self.server.url, str(self._log), {**self.server.extra, "ready": False, "orphans": orphans})
        try:
            self.record.save(folder())
        except BaseException:
            self.abandon()
            raise

    @property
    def moved(self) -> bool:
        """Whether it has another port than the preferred one."""
        return bool(self._preferred) and self._port != self._preferred

    def poll(self) -> Record | None:
        """The record once it is ready.

        :raises ServiceError: it ended or took too long; the end of its log is told, and nothing is left of it
        """
        name, health = self.server.name, self.server.health
        if self._process.poll() is not None:
            if self._lost_its_port():
                self._moves += 1
                self._launch(free_port(0))
                return None
            self._fail(f"{name} ended with status {self._process.returncode} before it was ready")
        if time.monotonic() > self._deadline:
            self._fail(f"{name} was not ready within {READY_SECONDS:.0f} s")
        if health and not (answers(health) and listens(self._process.pid, self._port)):
            return None
        if not self.server.ready():
            return None
        self.record = replace(self.record, extra={**self.record.extra, "ready": True})
        self.record.save(folder())
        return self.record

    def _lost_its_port(self) -> bool:
        """To somebody who was faster while it started; who may have gone since."""
        return (self._preferred is not None and self._moves < MOVES
                and (not port_free(self._port) or "already in use" in tail(self._log)))

    def wait(self) -> Record:
        """`poll` until it is ready; whatever interrupts that ends the server."""
        try:
            while (record := self.poll()) is None:
                time.sleep(LOOK_SECONDS)
            return record
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """End it and take its record away."""
        stop([self.record.process], grace=3)
        self.record.forget(folder())

    def _fail(self, what: str) -> None:
        self.abandon()
        raise ServiceError(f"{what}. The end of {self._log}:\n{tail(self._log)}")
