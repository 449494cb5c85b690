"""`reread up`, `down`, `status`."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from typing import Any

from flows.commands.output import document, say, size, table
from flows.running.ray_runner import clean_up
from flows.services import fleet, health, local, pages, status, supervisor
from storage.errors import ServiceError
from storage.home import local_home, make_folder


def bring_up(detach: bool) -> None:
    _check_place()
    _check_nights()
    began = time.monotonic()
    with supervisor.Interrupts().heeded() as interrupts:
        up = fleet.up(_tell, interrupts.asked)
        try:
            _announce(up, time.monotonic() - began, detach)
        except OSError:                                  # whoever read this has gone, and nobody will look after them
            fleet.down(up.started)
            raise
        if not up.started:
            return
        if detach and interrupts.asked():
            fleet.down(up.started)
            raise KeyboardInterrupt
        if detach:
            return
        stopped = supervisor.watch(up, interrupts)
    if stopped:
        say(f"stopped {', '.join(record.name for record in stopped)}")


def _announce(up: fleet.Up, seconds: float, detach: bool) -> None:
    for name in up.records:
        if name not in up.started:
            _tell(f"{name} runs already", "")
    if up.started:
        _tell(f"all answer after {seconds:.0f} s", "")
    _links(up)
    say("\nnothing to start; stop them with: reread down" if not up.started else
        "\nrunning in the background; stop with: reread down" if detach else
        "\nCtrl-C stops them; or from elsewhere: reread down")


def _check_nights() -> None:
    """A time of nights that cannot be read is told before anything starts; the usual one needs no look."""
    from flows.nights.clock import CRON, TIMEZONE, Clock

    if os.environ.get(CRON) or os.environ.get(TIMEZONE):
        Clock.from_settings()


def _tell(text: str, end: str = " ...") -> None:
    sys.stderr.write(text + end + "\n")


def _check_place() -> None:
    """Can anything be kept here? Said before anything starts."""
    place = make_folder(local_home())
    finding = health.disk(place)
    if not finding.ok:
        raise ServiceError(f"{finding.message}; {finding.remedy}")
    try:
        with tempfile.TemporaryFile(dir=make_folder(local.folder())):
            pass
    except OSError as error:
        raise ServiceError(f"nothing can be written under {place}: {error.strerror}; set REREAD_HOME to a folder that "
                           "can be written") from error
    if finding.remedy:
        _tell(f"warning: only {finding.message}; {finding.remedy}", "")


def _links(up: fleet.Up) -> None:
    found = {**{name: record.url for name, record in up.records.items()}, **local.external()}
    say(f"Prefect   {found['prefect']}/v2/deployments   run a flow: pick one, then Run > Custom run")
    say(f"runs      {found['prefect']}/v2/runs   what runs, ran and is scheduled")
    try:
        say(f"MLflow    {pages.MLflow(found['mlflow'], timeout=20).runs_page()}")
    except ServiceError:
        say(f"MLflow    {found['mlflow']}")


def bring_down() -> None:
    stopped = fleet.down(report=_tell)
    left = clean_up()
    for record in stopped:
        say(f"stopped {record.name} (pid {record.process.pid})")
    if left:
        say(f"ended {len(left)} processes of killed commands")
    if not stopped and not left:
        say("nothing was running")


def show_status(json: bool) -> None:
    """Print it.

    :raises ServiceError: after printing, when something that should run does not, or a check is not well
    """
    found = status.gather()
    if json:
        document(found)
    else:
        tell(found)
    bad = [one["check"] for one in found["findings"] if not one["ok"]]
    if bad:
        raise ServiceError(f"not well: {', '.join(bad)}")


def tell(found: dict[str, Any]) -> None:
    table(["service", "state", "page", "version", "up", "memory", "pid", "log"], [
        [one["service"], one["state"], one["page"], one["server_version"], _duration(one["uptime_seconds"]),
         size(one["memory_bytes"]) if one["memory_bytes"] else None, one["pid"], one["log"]]
        for one in found["services"]])
    say("\nversions  " + ", ".join(f"{name} {number}" for name, number in found["versions"].items()))
    if queue := found["queue"]:
        following = f"; next {queue['next']['name']} at {queue['next']['at']}" if queue["next"] else ""
        say(f"queue     {queue['running']} running, {queue['pending']} pending, {queue['late']} late, "
            f"{queue['scheduled'] - queue['late']} scheduled{following}")
    disk = found["disk"]
    kept = {"artifacts": disk["artifacts_bytes"], "MLflow's files": disk["mlflow_artifacts_bytes"],
            "Prefect's database": disk["prefect_db_bytes"], "MLflow's database": disk["mlflow_db_bytes"]}
    say(f"disk      {disk['home']}: {size(disk['free_bytes'])} free of {size(disk['total_bytes'])}; "
        + ", ".join(f"{name} {size(count)}" for name, count in kept.items() if count is not None)
        + ("" if disk["artifacts_counted_whole"] else " (artifacts: at least)"))
    if found["memory_bytes"]:
        say(f"memory    {size(found['memory_bytes'])}")
    say()
    for one in found["findings"]:
        word = "ok     " if one["ok"] and not one["remedy"] else "warning" if one["ok"] else "BAD    "
        say(f"{word} {one['message']}" + (f"\n        {one['remedy']}" if one["remedy"] else ""))


def _duration(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"
