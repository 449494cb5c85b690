"""`up` and `down`: the three services together, each kept, started or ended as it needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import urlparse

from flows.services import servers
from flows.services.local import (
    ORDER,
    Report,
    check_external,
    exclusive,
    external,
    external_api,
    health_page,
    in_use,
    running,
)
from flows.services.processes import Record, answers, session_of, stop
from flows.services.servers import LOOK_SECONDS, MLFLOW_PORT, PREFECT_PORT, Start, folder

SILENT_SECONDS = 20.0                             # a living server that says nothing for so long is replaced


@dataclass(frozen=True)
class Up:
    """What runs after `up`, and what of it that call has started."""

    records: dict[str, Record]
    started: tuple[str, ...]


def up(report: Report = lambda text: None, stopped: Callable[[], bool] = lambda: False) -> Up:
    """Start what does not run yet of the three services; what runs is kept, and from now on stays until `down`.

    All start side by side; the deployments import what they need meanwhile and wait for Prefect themselves. When one
    fails, or `stopped` says so (KeyboardInterrupt then), what this call has started is ended.
    """
    with exclusive(stopped, report):
        api, wanted = external_api(), [name for name in ORDER if name not in external()]
        if api and running("deployments") is None:
            check_external(api)
        records = {name: record for name in wanted if name != "deployments" and (record := _kept(name, stopped))}
        starts: dict[str, Start] = {}
        try:
            while True:
                for name in wanted:
                    if name in records or name in starts:
                        continue
                    if name == "deployments":
                        api = _api(records, starts) or api
                        if kept := _kept(name, stopped, api):
                            records[name] = kept
                            continue
                    report(f"starting {name}")
                    starts[name] = _begin(name, api)
                late = starts.get("deployments")
                if late and late.server.extra["api"] != (_api(records, starts) or api):     # Prefect lost its port
                    late.abandon()
                    records.pop(starts.pop("deployments").server.name, None)
                for name, start in starts.items():
                    if name not in records and (record := start.poll()):
                        records[name] = record
                        if start.moved:
                            report(f"{name} uses port {urlparse(record.url).port}: {_preferred(name)} is taken")
                if len(records) == len(wanted):
                    return Up({name: records[name] for name in wanted}, tuple(starts))
                if stopped():
                    raise KeyboardInterrupt
                time.sleep(LOOK_SECONDS)
        except BaseException:
            stop([start.record.process for start in starts.values()], grace=3)
            for start in starts.values():
                start.record.forget(folder())
            raise


def _api(records: dict[str, Record], starts: dict[str, Start]) -> str | None:
    """Where our own Prefect answers, or will; None: it is elsewhere."""
    url = records["prefect"].url if "prefect" in records else starts["prefect"].server.url if "prefect" in starts else None
    return f"{url}/api" if url else None


def _begin(name: str, api: str | None) -> Start:
    if name == "prefect":
        return Start(servers.prefect, "up", _last_port(name))
    if name == "mlflow":
        return Start(servers.mlflow, "up", _last_port(name))
    return Start(lambda port: servers.deployments(api), "up", None)


def _preferred(name: str) -> int:
    return {"prefect": PREFECT_PORT, "mlflow": MLFLOW_PORT}[name]


def _last_port(name: str) -> int:
    """The port of one that died, so that its addresses stay right; else the usual one."""
    record = Record.load(folder(), name)
    return (urlparse(record.url).port if record and record.url else None) or _preferred(name)


def _kept(name: str, stopped: Callable[[], bool], api: str | None = None) -> Record | None:
    """The record of a sound service, now owned by `up`; one that is deaf, half started or of another API is ended."""
    record = running(name)
    if record is None:
        return None
    sound = record.extra.get("ready", True) and (api is None or record.extra.get("api", api) == api)
    if not sound or not _speaks(record, stopped):
        _stop(record)
        return None
    if record.owner != "up":
        record = replace(record, owner="up")
        record.save(folder())
    return record


def _speaks(record: Record, stopped: Callable[[], bool]) -> bool:
    if record.url is None:
        return True
    deadline = time.monotonic() + SILENT_SECONDS
    while not answers(health_page(record.name, record.url), timeout=5):
        if not record.process.alive or time.monotonic() > deadline:
            return False
        if stopped():
            raise KeyboardInterrupt
        time.sleep(LOOK_SECONDS)
    return True


def down(only: tuple[str, ...] = ORDER, report: Report = lambda text: None) -> list[Record]:
    """Stop what `up` started, and servers left behind by killed commands; a study under way keeps its own.

    Records of what had died, and of writers that were killed half-way, are taken away.
    """
    stopped = []
    with exclusive(report=report):
        for name in reversed(ORDER):
            record = Record.load(folder(), name)
            if record is None or name not in only or (record.owner == "run" and record.process.alive and in_use(name)):
                continue
            if _stop(record):
                stopped.append(record)
        (folder() / ".deployments.ready").unlink(missing_ok=True)
        for partial in folder().glob(".*.partial"):
            partial.unlink(missing_ok=True)
    return stopped


def _stop(record: Record) -> list[int]:
    """End a service and what it has begun, also when itself has died; its record goes with it. Pids that were ended."""
    ended = stop([record.process])
    ended += stop([*session_of(record.process), *record.orphans], grace=5)
    record.forget(folder())
    return ended
