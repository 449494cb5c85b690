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
import urllib.request
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlparse

import psutil

from storage.errors import ServiceError

GRACE_SECONDS = 10.0
LOG_BYTES = 10_000_000            # a longer log is put aside when its service starts again
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
        """:raises ServiceError: it cannot be written, for example since the disk is full"""
        partial = folder / f".{self.name}.{os.getpid()}.partial"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            partial.touch(mode=0o600)                    # an address may hold a password
            partial.write_text(json.dumps(asdict(self), indent=1))
            os.replace(partial, folder / f"{self.name}.json")
        except OSError as error:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise ServiceError(f"the record of {self.name} cannot be written under {folder}: {error.strerror}; free some "
                               "space there, or set REREAD_HOME to a folder that can be written") from error

    @classmethod
    def load(cls, folder: Path, name: str) -> Record | None:
        """The record if there is one that can be read; a half-written or foreign file counts as none."""
        try:
            data = json.loads((folder / f"{name}.json").read_text())
            record = cls(**{**data, "process": ProcessId(**data["process"])})
            return record if record.name == name and record.sensible else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    @property
    def sensible(self) -> bool:
        """Whether every field is what it should be, whoever wrote it. ValueError for a port that is no number."""
        words = all(one is None or isinstance(one, str) for one in (self.url, self.log))
        return (isinstance(self.process.pid, int) and self.process.pid > 0 and isinstance(self.process.started, (int, float))
                and words and isinstance(self.extra, dict) and (urlparse(self.url or "").port or 0) >= 0)

    @property
    def orphans(self) -> list[ProcessId]:
        """What an earlier process of this service has begun and left, as far as it still works."""
        found = []
        with suppress(TypeError, ValueError):
            found = [ProcessId(int(pid), float(started)) for pid, started in self.extra.get("orphans", ())]
        return [one for one in found if one.alive]

    def forget(self, folder: Path) -> None:
        (folder / f"{self.name}.json").unlink(missing_ok=True)


def session_of(leader: ProcessId) -> list[ProcessId]:
    """What lives of the session that `launch` began with this process, also when the process itself has ended.

    The kernel gives its number to nobody else as long as the session has a member.
    """
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        if abs(psutil.Process(leader.pid).create_time() - leader.started) >= 0.5:
            return []                                    # the session has ended, and the number is another's
    members = []
    for pid in psutil.pids():
        with suppress(OSError, psutil.NoSuchProcess, psutil.AccessDenied):
            if os.getsid(pid) == leader.pid and pid != os.getpid():
                member = ProcessId.of(psutil.Process(pid))
                if member.started >= leader.started - 0.5 and member.alive:
                    members.append(member)
    return members


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
    left = _wait(processes, grace)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _wait(left, 3)


def _wait(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that have not ended by then. A zombie has: where nobody reaps the orphans it stays for ever."""
    deadline = time.monotonic() + seconds
    left = [process for process in processes if not _ended(process)]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [process for process in left if not _ended(process)]
    return left


def _ended(process: psutil.Process) -> bool:
    with suppress(psutil.TimeoutExpired):
        process.wait(0)                                  # reaps our own children
        return True
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


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
    """Start a process in a session of its own (a Ctrl-C at the terminal does not reach it), output to `log`.

    :raises ServiceError: the system refuses
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > LOG_BYTES:
            os.replace(log, log.with_suffix(".old.log"))
        with open(log, "ab") as output:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, **(environment or {})})
    except OSError as error:
        raise ServiceError(f"{' '.join(command[:3])} cannot be started with its log in {log}: {error.strerror}") from error


def answers(url: str, timeout: float = 1.0) -> bool:
    """Whether an HTTP GET is answered with a success."""
    try:
        with opener(url).open(url, timeout=timeout) as response:
            return response.status < 400
    except (HTTPException, OSError, ValueError):
        return False


def opener(url: str) -> urllib.request.OpenerDirector:
    """Through the proxy that the environment names, except to this machine."""
    local = urlparse(url).hostname in ("127.0.0.1", "localhost", "::1")
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))


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
