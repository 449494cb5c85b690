"""CPU, memory, disk, network and GPU of the machine while a run goes on: MLflow's own readings, through our journal.

MLflow's monitor logs past the journal and gives up when the store is away for a moment, so that only what it reads is
used. The first reading comes after one interval: a short run has none and pays nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from storage import logs
from storage.tracking.writer import Tracking

SECONDS = 15.0
SHORTEST = 10.0
SETTING = "REREAD_SYSTEM_METRICS"       # seconds between two readings, at least 10; `off` = none
STEP = "system/cpu_utilization_percentage"

log = logs.get("storage.tracking")


@contextmanager
def watched(tracking: Tracking, run_id: str) -> Iterator[None]:
    """While inside, readings go to `system/...` of the run, one a interval; a run that is continued goes on counting."""
    seconds = interval()
    if seconds is None:
        yield
        return
    end = threading.Event()
    thread = threading.Thread(target=_read, args=(tracking, run_id, seconds, end), name="system-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def interval() -> float | None:
    """Seconds between two readings; None = no readings."""
    text = os.environ.get(SETTING, "")
    if text.lower() in ("off", "0", "false"):
        return None
    try:
        return max(SHORTEST, float(text)) if text else SECONDS
    except ValueError:
        log.warning("%s is %r; expected seconds or off; taking %g s", SETTING, text, SECONDS)
        return SECONDS


def _read(tracking: Tracking, run_id: str, seconds: float, end: threading.Event) -> None:
    import psutil

    psutil.cpu_percent()            # counts from the last time that this thread asked; the first time says 0
    if end.wait(seconds):
        return
    try:
        from storage.tracking.client import machine

        readings = machine()
        last = tracking.last_step(run_id, STEP)
        step = 0 if last is None else last + 1
        while not end.is_set():
            tracking.metrics(run_id, {f"system/{name}": value for name, value in readings().items()}, step)
            step += 1
            end.wait(seconds)
    except Exception as error:              # noqa: BLE001  a thread of its own: nobody else would hear of it
        log.warning("no more readings of the machine for run %s (%s: %s)", run_id, type(error).__name__, error)
