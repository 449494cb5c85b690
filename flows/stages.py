"""The stages as Prefect tasks: one task per kind, the same wrapper around each.

The work is a plain function in `tasks/`. The wrapper gives it a store and a tracked run, passes its log on to Prefect,
keeps the note file fresh, and drains Prefect's log queue before Ray ends the process.
"""

from __future__ import annotations

from flows import environment

environment.prepare()

import logging  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from prefect import get_run_logger, task  # noqa: E402
from prefect.cache_policies import NO_CACHE  # noqa: E402

from flows.notes import noting  # noqa: E402
from flows.schedule import PRIORITY  # noqa: E402
from flows.work import Order, Outcome, perform  # noqa: E402
from storage.logs import configure_logging  # noqa: E402


def worth_retrying(task, task_run, state) -> bool:
    """A disk or connection that failed may work the second time; anything else fails the same way again."""
    try:
        state.result()
    except OSError:
        return True
    except Exception:  # noqa: BLE001 - whatever else it was, the first failure is the one to show
        return False
    return False


@contextmanager
def reporting(order: Order) -> Iterator[None]:
    """Log lines of `reread.*` to the Prefect run and to the note file; nothing lost when the process ends."""
    from prefect.logging.handlers import APILogWorker

    configure_logging()
    handler = _ToRun(get_run_logger())
    logging.getLogger("reread").addHandler(handler)
    try:
        with noting(Path(order.note) if order.note else None):
            yield
    finally:
        logging.getLogger("reread").removeHandler(handler)
        APILogWorker.drain_all(timeout=5)


class _ToRun(logging.Handler):
    def __init__(self, target) -> None:
        super().__init__(logging.INFO)
        self.target = target

    def emit(self, record: logging.LogRecord) -> None:
        self.target.log(record.levelno, record.getMessage())


def _stage(kind: str):
    """A Prefect task of that name. `made_from` only draws the edges of the run graph."""

    def stage(title: str, order: Order, made_from: dict[str, Any] | None = None) -> Outcome:
        with reporting(order):
            outcome = perform(order)
            get_run_logger().info("%s in %.1f s: %s", title, outcome.seconds, outcome.artifact)
            return outcome

    stage.__name__ = stage.__qualname__ = kind
    return task(name=kind, task_run_name="{title}", retries=1, retry_delay_seconds=2, cache_policy=NO_CACHE,
                retry_condition_fn=worth_retrying, persist_result=False)(stage)


TASKS = {kind: _stage(kind) for kind in PRIORITY}
