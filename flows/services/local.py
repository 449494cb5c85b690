"""The local services: Prefect's API, MLflow's pages, and the process that serves our flows as deployments.

Each is one child process on loopback with a record in `<home>/services`. A study that finds no Prefect server starts
one and ends it (here); `reread up` starts all three and leaves them until `reread down` (flows/services/fleet.py).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from flows.services import servers
from flows.services.pages import Prefect
from flows.services.processes import Record, answers, stop
from flows.services.servers import LOOK_SECONDS, MLFLOW_PORT, PREFECT_PORT, Start, folder
from storage.errors import ServiceError
from storage.home import make_folder
from storage.masked import masked, parted

ORDER = ("prefect", "mlflow", "deployments")      # shown in this order, stopped in the opposite one

Report = Callable[[str], None]


def running(name: str) -> Record | None:
    """The record of a service whose process is alive."""
    record = Record.load(folder(), name)
    return record if record is not None and record.process.alive else None


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
        check_external(given)
        meanwhile()
        yield given
        return
    with _user_of("prefect"):
        with exclusive():
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


def check_external(api: str) -> None:
    """:raises ServiceError: nothing answers at PREFECT_API_URL, or not with a welcome"""
    if why := Prefect(api, timeout=10).well():
        raise ServiceError(f"PREFECT_API_URL is {masked(api)} but nothing answers there ({why}); start that server, or unset "
                           "the variable to let this command start one of its own")


def start_prefect(owner: str, meanwhile: Callable[[], None] = lambda: None) -> Record:
    """Start the API server; returns when it answers."""
    start = Start(servers.prefect, owner, PREFECT_PORT)
    try:
        meanwhile()
    except BaseException:
        start.abandon()
        raise
    return start.wait()


def _stop_if_last() -> None:
    with exclusive():
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
def exclusive(stopped: Callable[[], bool] = lambda: False, report: Report = lambda text: None) -> Iterator[None]:
    """One command at a time starts or stops services here; KeyboardInterrupt when `stopped` says so meanwhile."""
    make_folder(folder())
    with open(folder() / ".start.lock", "a") as lock:
        told = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    report("waiting for another command that starts or stops them")
                    told = True
                if stopped():
                    raise KeyboardInterrupt from None
                time.sleep(LOOK_SECONDS)
        yield


def in_use(name: str) -> bool:
    """Whether some command holds the service, see `prefect_api`."""
    with suppress(FileNotFoundError), open(folder() / f".{name}.users") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


# ---------------------------------------------------------------------------------------------------------- addresses
def external() -> dict[str, str]:
    """Addresses of the services that run elsewhere and are not ours to start: name -> URL of its pages, without a name and
    password in it, since it is shown."""
    found = {}
    if api := external_api():
        found["prefect"] = parted(os.environ.get("PREFECT_UI_URL") or api.removesuffix("/api"))[0]
    tracking = os.environ.get("MLFLOW_TRACKING_URI", "")
    if tracking.startswith("http"):
        found["mlflow"] = parted(tracking.rstrip("/"))[0]
    return found


def external_api() -> str | None:
    return (os.environ.get("PREFECT_API_URL") or "").rstrip("/") or None


def health_page(name: str, url: str) -> str:
    """The address that answers when the service at `url` is well."""
    return f"{url}/api/health" if name == "prefect" else f"{url}/health"


def mlflow_url() -> str:
    """Where MLflow's pages are, or will be after `reread up`."""
    given = os.environ.get("REREAD_MLFLOW_URL") or os.environ.get("MLFLOW_TRACKING_URI", "")
    if given.startswith("http"):
        return parted(given.rstrip("/"))[0]
    record = running("mlflow")
    return record.url if record and record.url else f"http://127.0.0.1:{MLFLOW_PORT}"
