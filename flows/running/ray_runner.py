"""Ray for one command: a cluster by RAY_ADDRESS, else a small local one of our own that leaves nothing behind.

Ray ends its processes itself when the driver ends, but two agents outlive a driver that was killed. So each driver
notes its descendants in `<home>/services/session-<pid>.json` while it works, and the next command ends those of
drivers that no longer live.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from flows.services.local import ORDER, folder, running
from flows.services.processes import ProcessId, adopt_orphans, descendants, stop
from storage import logs
from storage.errors import ServiceError
from storage.home import make_folder

OBJECT_STORE_BYTES = 256 << 20
START_ATTEMPTS = 5           # its node must be up within 30 s, which a busy machine misses
OUT_OF_MEMORY_RETRIES = "0"  # the flow itself tries again, with a pause between

log = logs.get("flows.ray")


def settings() -> tuple[str, dict[str, Any]]:
    """Address and keyword arguments for `ray.init`, and so for RayTaskRunner."""
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    address = os.environ.get("RAY_ADDRESS")
    if address:
        return address, quiet
    return "local", {**quiet, "num_cpus": cores(), "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}


def cores() -> int:
    """Logical cores of the embedded Ray: at least two, so that a driver and its child can both run."""
    return max(2, len(os.sched_getaffinity(0)))


def task_runner():
    """The Prefect task runner for stages; it starts Ray with the first of them."""
    from flows.running.lazy_ray import LazyRay

    return LazyRay()


def start() -> None:
    """Ray for this process, on record; RayTaskRunner and tasks.parallel then use it. Nothing if it runs already.

    :raises ServiceError: RAY_ADDRESS names a cluster that cannot be reached, or Ray does not start
    """
    os.environ.setdefault("RAY_task_oom_retries", OUT_OF_MEMORY_RETRIES)     # Ray's own choice is for ever
    import ray

    if ray.is_initialized():
        return
    session()
    address, arguments = settings()
    for attempt in range(START_ATTEMPTS):
        before = set(descendants())
        try:
            _init(address, arguments)
            break
        except Exception as error:  # Ray raises a bare Exception when its node is slow to start
            shut_down()
            stop([process for process in descendants() if process not in before])
            if address != "local" or attempt == START_ATTEMPTS - 1:
                raise ServiceError(f"Ray at {address} did not start or cannot be reached: {error}") from error
            log.warning("Ray did not start, trying again: %s", error)
    session().refresh()


def is_running() -> bool:
    """Whether this process has Ray; asked without importing it."""
    import sys

    return "ray._raylet" in sys.modules and sys.modules["ray"].is_initialized()


def shut_down() -> None:
    if is_running():
        import ray

        ray.shutdown()
    _over.set()


@contextmanager
def local_ray() -> Iterator[None]:
    """Ray for a command that runs its stages in this process, without Prefect."""
    session()
    try:
        start()
        yield
    finally:
        shut_down()
        session().end()


def _init(address: str, arguments: dict[str, Any]) -> None:
    """`ray.init` in a thread. In the main one it would replace the handler of SIGTERM by its own, which ends the process
    abruptly and by which Prefect no longer knows that a run was cancelled; and it could not be interrupted."""
    import ray

    logging.getLogger("ray._private.worker").addFilter(lambda record: "SIGTERM handler" not in str(record.msg))
    raised: list[Exception] = []
    begun = threading.Event()
    _over.clear()

    def begin() -> None:
        try:
            ray.init(address, **arguments)
        except Exception as error:  # noqa: BLE001 - raised again below
            raised.append(error)
            return
        finally:
            begun.set()
        _over.wait()            # the kernel ends Ray's processes with the thread that started them

    threading.Thread(target=begin, name="ray", daemon=True).start()
    begun.wait()
    _handlers_again()
    if raised:
        raise raised[0]


def _handlers_again() -> None:
    """Below Python Ray has put itself before the handler of SIGTERM, to print a C++ stack first; put Python's back."""
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


_over = threading.Event()


def served() -> bool:
    """Whether this process runs one flow that somebody triggered on Prefect's pages, and Prefect looks after it."""
    return "PREFECT__FLOW_RUN_ID" in os.environ


def interruptible() -> None:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does; in a process that Prefect started, Prefect's own handler stays,
    since only with it does a cancelled run end as cancelled."""
    if threading.current_thread() is threading.main_thread() and not served():
        def interrupt(number, frame):
            raise KeyboardInterrupt
        signal.signal(signal.SIGTERM, interrupt)


class Session:
    """The processes that descend from this one, on record while it works and ended at the latest when it ends."""

    def __init__(self) -> None:
        adopt_orphans()
        self.me = ProcessId.of(psutil.Process())
        self.path = folder() / f"session-{os.getpid()}.json"
        self.seen: set[ProcessId] = set()
        self.ray_folder: str | None = None

    def refresh(self) -> None:
        """Look again who is there; cheap enough for every few seconds."""
        spared = {record.process.pid for name in ORDER if (record := running(name))}
        now = {identity for identity in descendants() if identity.pid not in spared}
        if self.ray_folder is None:
            self.ray_folder = _ray_folder()
        if now <= self.seen and self.path.exists():
            return
        self.seen |= now
        make_folder(self.path.parent)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({"driver": [self.me.pid, self.me.started], "ray": self.ray_folder,
                                       "processes": [[p.pid, p.started] for p in self.seen]}))
        os.replace(partial, self.path)

    def end(self, keep_logs: bool = False) -> None:
        """End what is left of it, and remove Ray's own session folder unless its logs may be wanted."""
        self.refresh()
        stop(list(self.seen), grace=5)
        if self.ray_folder and not keep_logs:
            shutil.rmtree(self.ray_folder, ignore_errors=True)
        self.path.unlink(missing_ok=True)
        self.seen.clear()


def session() -> Session:
    """The session of this process; what killed processes left behind is cleared away when it begins."""
    global _session
    if _session is None or _session.me.pid != os.getpid() or _session.path.parent != folder():
        clean_up()
        _session = Session()
        _session.refresh()
        atexit.register(_session.end)
    return _session


_session: Session | None = None


def _ray_folder() -> str | None:
    """Ray's session folder of this driver, where it keeps logs; only ours is ever removed."""
    if not is_running() or os.environ.get("RAY_ADDRESS"):
        return None
    import ray

    with suppress(AttributeError):
        return ray._private.worker.global_worker.node.get_session_dir_path()
    return None


def clean_up() -> list[int]:
    """End what killed drivers left behind, by recorded pid and start time. Returns the pids ended."""
    ended = []
    for path in folder().glob("session-*.json"):
        try:
            data = json.loads(path.read_text())
            driver = ProcessId(*data["driver"])
            left = [ProcessId(*item) for item in data["processes"]]
        except (OSError, ValueError, TypeError, KeyError):
            path.unlink(missing_ok=True)
            continue
        if driver.alive:
            continue
        ended += stop(left, grace=3)
        if data.get("ray") and Path(data["ray"]).name.startswith("session_"):
            shutil.rmtree(data["ray"], ignore_errors=True)
        path.unlink(missing_ok=True)
    return ended
