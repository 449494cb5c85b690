"""`reread up`, `down`, `status`."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from flows import services
from flows.commands.output import document, say, table
from flows.processes import Record, tail
from flows.ray_runner import clean_up
from storage.artifacts import Store
from storage.errors import ServiceError

LOOK_SECONDS = 1.0


def bring_up(detach: bool) -> None:
    records = services.up(lambda text: sys.stderr.write(text + " ...\n"))
    _links(records)
    if detach:
        say("\nrunning in the background; stop with: reread down")
        return
    say("\nCtrl-C stops them; or from elsewhere: reread down")
    _stay(records)


def _links(records: dict[str, Record]) -> None:
    from storage.tracking import Tracking

    pages = services.links(records)
    if "prefect" in pages:
        say(f"Prefect   {pages['prefect']}   run a flow: pick one, then Run > Custom run")
    if "mlflow" in pages:
        say(f"MLflow    {pages['mlflow']}")
        tracking = Tracking()
        for name, experiment in _experiments(tracking):
            say(f"          {name}: {records['mlflow'].url}/{tracking.experiment_link(experiment)}")


def _experiments(tracking) -> list[tuple[str, str]]:
    """Names and ids of the experiments of studies that were finished here, newest first."""
    names = dict.fromkeys(manifest.spec["name"] for manifest in reversed(Store().list("report")))
    return [(name, tracking.experiment(name)) for name in names]


def _stay(records: dict[str, Record]) -> None:
    """Watch until Ctrl-C or SIGTERM (then stop them), `reread down` (then nothing is left to do), or a death."""
    def interrupt(number, frame):
        raise KeyboardInterrupt
    signal.signal(signal.SIGTERM, interrupt)
    try:
        while True:
            time.sleep(LOOK_SECONDS)
            dead = [record for record in records.values() if not record.process.alive]
            if not dead:
                continue
            time.sleep(LOOK_SECONDS)          # `down` needs a moment to take the records away
            if all(Record.load(services.folder(), record.name) is None for record in dead):
                return
            services.down()
            raise ServiceError(f"{dead[0].name} ended by itself. The end of {dead[0].log}:\n{tail_of(dead[0])}")
    except KeyboardInterrupt:
        stopped = services.down()
        say(f"stopped {', '.join(record.name for record in stopped)}")


def tail_of(record: Record) -> str:
    return tail(Path(record.log)) if record.log else "(no log)"


def bring_down() -> None:
    stopped = services.down()
    left = clean_up()
    for record in stopped:
        say(f"stopped {record.name} (pid {record.process.pid})")
    if left:
        say(f"ended {len(left)} processes of killed commands")
    if not stopped and not left:
        say("nothing was running")


def show_status(json: bool) -> None:
    records = {name: record for name in services.ORDER if (record := services.running(name))}
    pages = services.links(records)
    found = [{"service": name, "running": name in records, "pid": records[name].process.pid if name in records else None,
              "kept_by": records[name].owner if name in records else None, "page": pages.get(name),
              "log": records[name].log if name in records else None} for name in services.ORDER]
    if json:
        document(found)
        return
    table(["service", "running", "pid", "page", "log"],
          [[one["service"], "yes" if one["running"] else "no", one["pid"], one["page"], one["log"]] for one in found])
