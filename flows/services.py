"""The local servers: Prefect's API, MLflow's pages, and the process that serves our flows as deployments.

Each is one child process on loopback with a record in `<home>/services`. A study that finds no Prefect server starts
one and ends it; `reread up` starts all three and leaves them until `reread down`.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flows.processes import ProcessId, Record, answers, free_port, launch, port_free, stop, tail, wait_until_answers
from storage.errors import ServiceError
from storage.home import local_home, make_folder

PREFECT_PORT, MLFLOW_PORT = 4200, 5050
ORDER = ("prefect", "mlflow", "deployments")      # started in this order, stopped in the opposite one


def folder() -> Path:
    return local_home() / "services"


def running(name: str) -> Record | None:
    """The record of a service whose process is alive; the record of a dead one is removed."""
    record = Record.load(folder(), name)
    if record is not None and not record.process.alive:
        record.forget(folder())
        return None
    return record


# --------------------------------------------------------------------------------------------------- embedded Prefect
@contextmanager
def prefect_api(meanwhile: Callable[[], None] = lambda: None) -> Iterator[str]:
    """A Prefect API for the time of one command: PREFECT_API_URL if set, a running local server, or one of our own.

    `meanwhile` is called once, while our server starts, which takes 5 to 12 seconds.
    The server of a killed command is adopted. Several commands may share one: each holds a lock that the kernel
    releases when it ends, however it ends, and only the last one stops the server.
    """
    given = os.environ.get("PREFECT_API_URL")
    if given:
        if not answers(f"{given.rstrip('/')}/health", timeout=10):
            raise ServiceError(f"PREFECT_API_URL is {given} but nothing answers there; start that server, or unset "
                               "the variable to let this command start one of its own")
        meanwhile()
        yield given
        return
    with _user_of("prefect"):
        with _exclusive("start"):
            record = running("prefect")
            if record is None or not answers(f"{record.url}/api/health", timeout=10):
                if record is not None:
                    stop([record.process])
                record = start_prefect("run", meanwhile)
            else:
                meanwhile()
        os.environ["PREFECT_API_URL"] = f"{record.url}/api"
        try:
            yield os.environ["PREFECT_API_URL"]
        finally:
            os.environ.pop("PREFECT_API_URL", None)
            _stop_if_last()


def _stop_if_last() -> None:
    with _exclusive("start"):
        record = running("prefect")
        if record is not None and record.owner == "run" and not _other_users("prefect"):
            stop([record.process])
            record.forget(folder())


@contextmanager
def _user_of(name: str) -> Iterator[None]:
    """Hold a shared lock for as long as this process uses the service."""
    make_folder(folder())
    with open(folder() / f".{name}.users", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        _held[name] = lock
        try:
            yield
        finally:
            del _held[name]


_held: dict[str, object] = {}


def _other_users(name: str) -> bool:
    """Whether another process holds the shared lock; ours is turned exclusive for the test, and back."""
    lock = _held[name]
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(lock, fcntl.LOCK_SH)
        return True
    fcntl.flock(lock, fcntl.LOCK_SH)
    return False


@contextmanager
def _exclusive(name: str) -> Iterator[None]:
    make_folder(folder())
    with open(folder() / f".{name}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ------------------------------------------------------------------------------------------------------------ starting
def start_prefect(owner: str, meanwhile: Callable[[], None] = lambda: None) -> Record:
    """Start the API server on SQLite in `<home>/prefect`; returns when it answers."""
    def start(port: int) -> Record:
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        url = f"http://127.0.0.1:{port}"
        return _start("prefect", command, owner, url, f"{url}/api/health",
                      {"PREFECT_API_URL": f"{url}/api", "PREFECT_HOME": os.environ["PREFECT_HOME"]}, meanwhile)
    return _on_a_port(PREFECT_PORT, start)


def start_mlflow(owner: str) -> Record:
    """Start MLflow's pages over the same SQLite file that runs write to directly."""
    home = make_folder(local_home())

    def start(port: int) -> Record:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
                   "--backend-store-uri", f"sqlite:///{home / 'mlflow.db'}",
                   "--default-artifact-root", f"file://{home / 'mlflow-artifacts'}"]
        url = f"http://127.0.0.1:{port}"
        return _start("mlflow", command, owner, url, f"{url}/health", {})
    return _on_a_port(MLFLOW_PORT, start)


def start_deployments(owner: str, api: str, mlflow: str) -> Record:
    """Start the process that serves every flow as a deployment and runs what is triggered in the UI."""
    ready = folder() / ".deployments.ready"
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "flows.deployments", str(ready)]
    environment = {"PREFECT_API_URL": api, "REREAD_MLFLOW_URL": mlflow, "PYTHONUNBUFFERED": "1"}
    return _start("deployments", command, owner, None, ready.exists, environment)


def _on_a_port(preferred: int, start: Callable[[int], Record]) -> Record:
    """A server on the preferred port if that is free, else on another. One that loses the port to somebody else while
    it starts, which takes seconds, is started again elsewhere."""
    port = free_port(preferred)
    try:
        return start(port)
    except ServiceError:
        if port_free(port):
            raise
    return start(free_port(0))


def _start(name: str, command: list[str], owner: str, url: str | None, ready: str | Callable[[], bool],
           environment: dict[str, str], meanwhile: Callable[[], None] = lambda: None) -> Record:
    import psutil

    log = local_home() / "logs" / f"{name}.log"
    process = launch(command, log, environment)
    record = Record(name, ProcessId.of(psutil.Process(process.pid)), owner, url, str(log))
    record.save(folder())
    try:
        meanwhile()
        if isinstance(ready, str):
            wait_until_answers(ready, process, name, log)
        else:
            _wait_for(ready, process, name, log)
    except BaseException:
        stop([record.process])
        record.forget(folder())
        raise
    return record


def _wait_for(ready: Callable[[], bool], process, name: str, log: Path, timeout: float = 120.0) -> None:
    deadline = time.monotonic() + timeout
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise ServiceError(f"{name} did not get ready. The end of {log}:\n{tail(log)}")
        time.sleep(0.1)


# ------------------------------------------------------------------------------------------------------------- up, down
def up(report: Callable[[str], None] = lambda text: None) -> dict[str, Record]:
    """Start what does not run yet of the three services; what runs is kept, and from now on stays until `down`."""
    records: dict[str, Record] = {}
    with _exclusive("start"):
        external = os.environ.get("PREFECT_API_URL")
        if not external:
            records["prefect"] = _kept("prefect") or _told(report, "prefect", lambda: start_prefect("up"))
        api = external or f"{records['prefect'].url}/api"
        external_mlflow = os.environ.get("MLFLOW_TRACKING_URI", "")
        if not external_mlflow.startswith("http"):
            records["mlflow"] = _kept("mlflow") or _told(report, "mlflow", lambda: start_mlflow("up"))
        pages = external_mlflow if external_mlflow.startswith("http") else records["mlflow"].url
        records["deployments"] = _kept("deployments") or _told(
            report, "deployments", lambda: start_deployments("up", api, pages))
    return records


def _kept(name: str) -> Record | None:
    record = running(name)
    if record is None or record.owner == "up":
        return record
    taken = Record(record.name, record.process, "up", record.url, record.log, record.extra)
    taken.save(folder())
    return taken


def _told(report: Callable[[str], None], name: str, start: Callable[[], Record]) -> Record:
    report(f"starting {name}")
    return start()


def down() -> list[Record]:
    """Stop what `up` started, and servers left behind by killed commands; a study under way keeps its own."""
    stopped = []
    for name in reversed(ORDER):
        record = running(name)
        if record is None or (record.owner == "run" and _in_use(name)):
            continue
        stop([record.process])
        record.forget(folder())
        stopped.append(record)
    return stopped


def _in_use(name: str) -> bool:
    with suppress(FileNotFoundError), open(folder() / f".{name}.users") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def links(records: dict[str, Record] | None = None) -> dict[str, str]:
    """Pages a person opens."""
    records = records if records is not None else {n: r for n in ORDER if (r := running(n))}
    found = {}
    if "prefect" in records:
        found["prefect"] = f"{records['prefect'].url}/deployments"
    if "mlflow" in records:
        found["mlflow"] = f"{records['mlflow'].url}/#/experiments"
    return found


def mlflow_url() -> str:
    """Where MLflow's pages are, or will be after `reread up`."""
    external = os.environ.get("REREAD_MLFLOW_URL") or os.environ.get("MLFLOW_TRACKING_URI", "")
    if external.startswith("http"):
        return external.rstrip("/")
    record = running("mlflow")
    return record.url if record and record.url else f"http://127.0.0.1:{MLFLOW_PORT}"
