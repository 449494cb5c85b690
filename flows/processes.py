"""Operating-system processes that we start: identified by pid *and* start time, recorded in small files, stopped whole.

A pid alone is never trusted: the system reuses them. A record is a JSON file beside the artifacts, so that a later
command can stop exactly what an earlier one started, also when the earlier one was killed.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlparse

import psutil

from storage.errors import ServiceError

GRACE_SECONDS = 10.0
PR_SET_CHILD_SUBREAPER = 36      # linux/prctl.h


@dataclass(frozen=True)
class ProcessId:
    """A process that cannot be confused with a later one of the same pid."""

    pid: int
    started: float               # seconds since the epoch, as the kernel tells it

    @classmethod
    def of(cls, process: psutil.Process) -> ProcessId:
        return cls(process.pid, process.create_time())

    def process(self) -> psutil.Process | None:
        """The live process, or None when it ended (a zombie has ended) or the pid belongs to another one."""
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started) < 0.5 and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None

    @property
    def alive(self) -> bool:
        return self.process() is not None


@dataclass(frozen=True)
class Record:
    """One service as written to disk."""

    name: str
    process: ProcessId
    owner: str                   # "up": stays until `reread down`; "run": ends with the command that started it
    url: str | None = None
    log: str | None = None
    extra: dict = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{self.name}.{os.getpid()}"
        partial.write_text(json.dumps(asdict(self), indent=1))
        os.replace(partial, folder / f"{self.name}.json")

    @classmethod
    def load(cls, folder: Path, name: str) -> Record | None:
        """The record if there is one that can be read; a half-written or foreign file counts as none."""
        try:
            data = json.loads((folder / f"{name}.json").read_text())
            return cls(**{**data, "process": ProcessId(**data["process"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def forget(self, folder: Path) -> None:
        (folder / f"{self.name}.json").unlink(missing_ok=True)


def stop(processes: list[ProcessId], grace: float = GRACE_SECONDS) -> list[int]:
    """End these processes, then what is left of their descendants: SIGTERM, wait, SIGKILL.

    Returns the pids there were to end. This process is never among them.
    """
    roots = [found for identity in processes if (found := identity.process()) and found.pid != os.getpid()]
    family = {process.pid: process for process in roots}
    for process in roots:
        with suppress(psutil.NoSuchProcess):
            family |= {child.pid: child for child in process.children(recursive=True) if child.pid not in family}
    _end(roots, grace)
    _end(list(family.values()), grace)
    return sorted(family)


def _end(processes: list[psutil.Process], grace: float) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(processes, timeout=grace)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=3)


def descendants() -> list[ProcessId]:
    """Everything this process started, directly or not, that still runs."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found.append(ProcessId.of(child))
    return found


def adopt_orphans() -> None:
    """From now on a descendant whose parent dies becomes our child instead of init's, so `descendants` still finds it
    (Linux; elsewhere nothing happens)."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def launch(command: list[str], log: Path, environment: dict[str, str] | None = None) -> subprocess.Popen:
    """Start a process in a session of its own (a Ctrl-C at the terminal does not reach it), output to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **(environment or {})})


def answers(url: str, timeout: float = 1.0) -> bool:
    """Whether an HTTP GET is answered with a success."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            return response.status < 400
    except (urllib.error.URLError, OSError, ValueError):
        return False


def listens(pid: int, port: int | None) -> bool:
    """Whether this process or one that descends from it listens on the port; True where the system does not tell."""
    try:
        process = psutil.Process(pid)
        return any(connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
                   for one in (process, *process.children(recursive=True)) for connection in one.net_connections("tcp"))
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def wait_until_answers(url: str, process: subprocess.Popen, name: str, log: Path, timeout: float = 120.0) -> None:
    """Poll `url` until this process, not another that has the port, answers there. ServiceError with the end of the log when the process dies or time runs out."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServiceError(f"{name} ended with status {process.returncode} before it answered at {url}. "
                               f"The end of {log}:\n{tail(log)}")
        if answers(url) and listens(process.pid, urlparse(url).port):
            return
        time.sleep(0.1)
    raise ServiceError(f"{name} did not answer at {url} within {timeout:.0f} s. The end of {log}:\n{tail(log)}")


def tail(log: Path, lines: int = 8) -> str:
    with suppress(OSError):
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    return "(no log)"


def port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port(preferred: int) -> int:
    """`preferred` if nobody listens there, else (and for 0) one that the system picks."""
    if preferred and port_free(preferred):
        return preferred
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
