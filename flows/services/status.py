"""What there is to know about this installation while it runs: services, versions, queue, disk, memory, findings."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import psutil

from flows.services import health, pages
from flows.services.health import Finding
from flows.services.local import ORDER, external, external_api, folder
from flows.services.processes import Record, session_of
from storage.errors import ServiceError
from storage.home import home, is_url, local_home
from storage.masked import masked

LIBRARIES = ("reread", "prefect", "mlflow", "ray")
BEGUN_SECONDS = 60.0         # a process so young need not have asked Prefect for runs yet
SIZING_SECONDS = 2.0         # the sizes of what is kept are counted for so long at most


def gather() -> dict[str, Any]:
    """{ok, services, versions, queue, disk, memory_bytes, findings}; nothing is started, nothing raises.

    `ok` is false when something that should run does not answer, the disk is full, a Ray node is lost, or runs are
    stuck. Nothing has to run before `reread up`.
    """
    records = {name: record for name in ORDER if (record := Record.load(folder(), name))}
    outside = external()
    api = _api(records)
    findings = [health.disk(local_home())]
    judged: dict[str, Finding] = {}
    for name in ORDER:
        if name in outside:
            judged[name] = health.elsewhere(name, external_api() if name == "prefect" else outside[name])
        elif name in records and (records[name].owner == "up" or records[name].process.alive):
            judged[name] = health.service(records[name])
    api_well = api is not None and judged["prefect"].ok
    if api_well and ("deployments" in records or "prefect" in outside) and judged.get("deployments", _FINE).ok:
        process = records["deployments"].process if "deployments" in records else None
        judged["deployments"] = health.served(api, bool(process) and time.time() - process.started < BEGUN_SECONDS)
    findings += judged.values()
    if api_well:
        findings.append(health.late_runs(api))
    address = os.environ.get("RAY_ADDRESS")
    if address and address not in ("auto", "local"):
        findings.append(health.cluster(address))
    services = [_service(name, records.get(name), outside.get(name), judged.get(name)) for name in ORDER]
    return {"ok": all(finding.ok for finding in findings), "services": services, "versions": _versions(services),
            "queue": queue(api) if api_well else None, "disk": disk(),
            "memory_bytes": sum(one["memory_bytes"] or 0 for one in services),
            "findings": [{**asdict(finding), "message": masked(finding.message)} for finding in findings]}


_FINE = Finding("", True, "")


def _api(records: dict[str, Record]) -> pages.Prefect | None:
    if external_api():
        return pages.Prefect(external_api())
    record = records.get("prefect")
    return pages.Prefect(f"{record.url}/api") if record and record.process.alive else None


def _service(name: str, record: Record | None, outside: str | None, finding: Finding | None) -> dict[str, Any]:
    """One row. `state`: answers, silent, dead, external, not running."""
    alive = record is not None and record.process.alive
    if outside:
        state = "external" if finding.ok else "external, silent"
    elif finding is None:
        state = "not running"
    else:
        state = "answers" if finding.ok else "silent" if alive else "dead"
    mine = record if alive and not outside else None
    url = outside or (mine.url if mine else None)
    return {"service": name, "state": state, "running": alive or bool(outside and finding.ok), "page": url,
            "port": _port(url), "pid": mine.process.pid if mine else None,
            "kept_by": record.owner if record and not outside else None, "server_version": _server_version(name, url, finding),
            "uptime_seconds": round(time.time() - mine.process.started) if mine else None,
            "memory_bytes": memory(mine) if mine else None, "log": record.log if record and not outside else None}


def _port(url: str | None) -> int | None:
    with suppress(ValueError):
        return urlparse(url).port if url else None
    return None


def _server_version(name: str, url: str | None, finding: Finding | None) -> str | None:
    if url is None or finding is None or not finding.ok:
        return None
    with suppress(ServiceError, ValueError):
        return pages.MLflow(url).version() if name == "mlflow" else pages.Prefect(external_api() or f"{url}/api").version()
    return None


def _versions(services: list[dict[str, Any]]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def queue(api: pages.Prefect) -> dict[str, Any] | None:
    """`pages.Prefect.queue`, or None when it does not answer."""
    with suppress(ServiceError):
        return api.queue()
    return None


def memory(record: Record) -> int:
    """Bytes of a service and of what it has begun; pages that several processes share are counted once."""
    members = {process.pid: process for identity in session_of(record.process) if (process := identity.process())}
    with suppress(psutil.NoSuchProcess):
        members |= {child.pid: child for child in psutil.Process(record.process.pid).children(recursive=True)}
    return sum(_proportional(process) for process in members.values())


def _proportional(process: psutil.Process) -> int:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        info = process.memory_full_info()
        return getattr(info, "pss", info.uss)
    return 0


def disk() -> dict[str, Any]:
    """Bytes: free, of the disk, of Prefect's and MLflow's databases, of artifacts (None where they are at a URL)."""
    place = local_home()
    deadline = time.monotonic() + SIZING_SECONDS
    existing = place
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    usage = shutil.disk_usage(existing)
    artifacts, whole = (None, True) if is_url(home()) else _size(place / "artifacts", deadline)
    return {"home": home(), "free_bytes": usage.free, "total_bytes": usage.total,
            "prefect_db_bytes": _database(place / "prefect" / "prefect.db"), "mlflow_db_bytes": _database(place / "mlflow.db"),
            "mlflow_artifacts_bytes": _size(place / "mlflow-artifacts", deadline)[0], "artifacts_bytes": artifacts,
            "artifacts_counted_whole": whole}


def _database(path: Path) -> int:
    """An SQLite file with its journal; 0 where another database is used."""
    return sum(file.stat().st_size for file in path.parent.glob(path.name + "*") if file.is_file())


def _size(folder: Path, deadline: float) -> tuple[int, bool]:
    """Bytes below a folder, and whether time sufficed to count all."""
    total, waiting = 0, [folder]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                else:
                    total += entry.stat(follow_symlinks=False).st_size
        if time.monotonic() > deadline:
            return total, False
    return total, True
