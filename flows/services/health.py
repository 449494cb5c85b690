"""Is it well? Each check is a plain function that returns a finding with a remedy; none raises.

`reread status` runs them all and ends with status 1 when one is not well, so that cron can mail what it printed.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from flows.commands.output import size
from flows.services import pages
from flows.services.processes import Record, tail
from storage.errors import ServiceError

FULL_BYTES = 50_000_000             # below, the databases of a first start do not fit
SCARCE_BYTES = 2_000_000_000        # below, say so: the study `quick` writes about 150 MB, a 360M checkpoint 4 GB
LATE_SECONDS = 300.0                # a run this late while nothing runs is stuck, not queueing
POLL_SECONDS = 90.0                 # whoever serves deployments asks for runs every 10 s


@dataclass(frozen=True)
class Finding:
    """What one check saw. `ok` with a remedy is a warning."""

    check: str
    ok: bool
    message: str
    remedy: str = ""


def disk(place: Path) -> Finding:
    """Free space where things are kept."""
    free = free_bytes(place)
    message, remedy = f"{size(free)} free under {place}", "free some (`reread prune` lists what can go), or set REREAD_HOME to a larger disk"
    if free < FULL_BYTES:
        return Finding("disk", False, f"the disk is full: {message}", remedy)
    return Finding("disk", True, message, remedy if free < SCARCE_BYTES else "")


def free_bytes(place: Path) -> int:
    """Free bytes where `place` is or would be."""
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def service(record: Record) -> Finding:
    """A service that `reread up` has started: its process lives and, where it has pages, answers."""
    name = record.name
    if not record.process.alive:
        return Finding(name, False, f"{name} (pid {record.process.pid}) died; the end of {record.log}:\n"
                       f"{tail(Path(record.log)) if record.log else '(no log)'}", "reread up starts it again")
    if record.url is None:
        return Finding(name, True, f"{name} runs")
    page = pages.Prefect(f"{record.url}/api") if name == "prefect" else pages.MLflow(record.url)
    return _answering(page, f"look into {record.log}; `reread down` and `reread up` start it anew")


def elsewhere(name: str, url: str) -> Finding:
    """A server that PREFECT_API_URL or MLFLOW_TRACKING_URI names."""
    page = pages.Prefect(url) if name == "prefect" else pages.MLflow(url)
    variable = "PREFECT_API_URL" if name == "prefect" else "MLFLOW_TRACKING_URI"
    return _answering(page, f"start that server, or correct {variable}")


def _answering(page: pages.Page, remedy: str) -> Finding:
    why = page.well()
    if why is None:
        return Finding(page.name.lower(), True, f"{page.name} answers at {page.url}")
    return Finding(page.name.lower(), False, f"{page.name} does not answer at {page.url}: {why}", remedy)


def served(api: pages.Prefect, begun: bool = False) -> Finding:
    """Somebody asks Prefect for the runs of our deployments: the process of `up`, or a worker. begun: a moment ago, so it
    may not have asked yet."""
    check = "deployments"
    try:
        found = api.deployments()
    except ServiceError as error:
        return Finding(check, False, f"unknown: {error}", "see prefect")
    polled = [one["polled"] for one in found if one["polled"] is not None]
    if not found:
        return Finding(check, False, f"Prefect at {api.url} has no deployments", "reread up serves them here; for a "
                       "work pool: prefect deploy --all, and a worker")
    if begun and (not polled or min(polled) > POLL_SECONDS):
        return Finding(check, True, f"{len(found)} deployments, served since a moment ago")
    if not polled or min(polled) > POLL_SECONDS:
        since = f"for {min(polled):.0f} s" if polled else "yet"
        return Finding(check, False, f"nobody has asked for the runs of the {len(found)} deployments {since}",
                       "reread up, or start the worker of their pool")
    return Finding(check, True, f"{len(found)} deployments, runs asked for {min(polled):.0f} s ago")


def late_runs(api: pages.Prefect) -> Finding:
    """Runs that should have begun. They queue while another runs; with nothing running something is stuck."""
    check = "late runs"
    try:
        queue, waited = api.queue(), api.longest_wait()
    except ServiceError as error:
        return Finding(check, False, f"unknown: {error}", "see prefect")
    if not queue["late"]:
        return Finding(check, True, "no run is late")
    message = f"{queue['late']} runs are late, the first by {waited / 60:.0f} minutes, {queue['running']} running"
    if waited > LATE_SECONDS and not queue["running"] and not queue["pending"]:
        return Finding(check, False, message, "is something serving their deployment? reread status tells; "
                       "cancel those that nobody wants any more on Prefect's page of runs")
    return Finding(check, True, message, "they wait for those that run")


# ------------------------------------------------------------------------------------------------------------------- Ray
def cluster(address: str) -> Finding:
    """The Ray cluster at RAY_ADDRESS. Connects as a driver for a moment, unless this process is one already."""
    if not listens(address):
        return Finding("ray", False, f"nothing listens at RAY_ADDRESS {address}", "start the head node: ray start --head")
    import ray

    mine = not ray.is_initialized()
    try:
        if mine:
            ray.init(address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
        return nodes(ray.nodes(), expected_nodes())
    except Exception as error:  # noqa: BLE001 - Ray raises bare exceptions, and a health check reports them all
        return Finding("ray", False, f"the Ray cluster at {address} does not answer: {str(error).splitlines()[0]}",
                       "see `ray status` on its head node")
    finally:
        if mine:
            ray.shutdown()


def expected_nodes() -> int:
    """How many nodes the cluster should have: REREAD_RAY_NODES; 0 = as many as there are."""
    try:
        return int(os.environ.get("REREAD_RAY_NODES") or 0)
    except ValueError:
        return 0


def nodes(found: Iterable[dict[str, Any]], expected: int = 0) -> Finding:
    """Judge Ray's list of nodes (`ray.nodes()`): one that stopped sending heartbeats is dead and was not replaced.

    expected  number of nodes there should be; 0 = unknown
    """
    found = list(found)
    alive = [node for node in found if node["Alive"]]
    here = {_place(node) for node in alive}
    lost = [node for node in found if not node["Alive"] and _place(node) not in here and not _left_orderly(node)]
    told = f"{len(alive)} Ray nodes alive"
    if lost:
        names = ", ".join(sorted({_told(node) for node in lost}))
        return Finding("ray", False, f"{told}, without heartbeats: {names}",
                       "start Ray there again (ray start --address=...), or restart the cluster to forget the node")
    if len(alive) < expected:
        return Finding("ray", False, f"{told}, {expected} expected (REREAD_RAY_NODES)", "start the missing workers: "
                       "ray start --address=<head>:6379")
    return Finding("ray", True, told)


def _place(node: dict[str, Any]) -> tuple[str, ...]:
    return (node.get("NodeManagerAddress", ""), node.get("NodeName", ""))


def _told(node: dict[str, Any]) -> str:
    return node.get("NodeName") or node.get("NodeManagerAddress") or node["NodeID"][:8]


def _left_orderly(node: dict[str, Any]) -> bool:
    """Stopped by `ray stop` or drained by an autoscaler, which is how a node should leave."""
    return str(node.get("DeathReason", "")) in ("1", "4", "EXPECTED_TERMINATION", "AUTOSCALER_DRAIN_IDLE")


def listens(address: str, timeout: float = 3) -> bool:
    """Whether something listens at host:port, `ray://` or not."""
    try:
        parts = urlparse(address if "//" in address else f"//{address}")
        with socket.create_connection((parts.hostname, parts.port or 10001), timeout=timeout):
            return True
    except (OSError, ValueError):
        return False
