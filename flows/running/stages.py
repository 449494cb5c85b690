"""The stages as Prefect tasks: one task per kind, the same wrapper around each.

The work is a plain function in `tasks/`. The wrapper gives it a store and a tracked run, passes its log on to Prefect,
keeps the note file fresh, and drains Prefect's log queue before Ray ends the process.
"""

from __future__ import annotations

from flows import environment

environment.prepare()

from collections.abc import Iterator  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from prefect import get_run_logger, task  # noqa: E402
from prefect.cache_policies import NO_CACHE  # noqa: E402
from prefect.states import Failed  # noqa: E402

from flows.running.limits import RETRY_SECONDS, may_pass  # noqa: E402
from flows.running.schedule import PRIORITY  # noqa: E402
from flows.running.work import Order, perform  # noqa: E402
from flows.showing.notes import noting  # noqa: E402
from flows.showing.progress import progress_page  # noqa: E402
from flows.showing.run_log import run_log  # noqa: E402
from storage.errors import RereadError  # noqa: E402
from storage.masked import masked  # noqa: E402


def worth_retrying(task, task_run, state) -> bool:
    """Prefect asks this about a stage that failed."""
    try:
        state.result()
    except Exception as error:  # noqa: BLE001 - whatever else it was, the first failure is the one to show
        return may_pass(error)
    return False


@contextmanager
def reporting(order: Order) -> Iterator[None]:
    """Log lines to the Prefect run, progress to its page and the note file; nothing lost when the process ends."""
    with run_log(get_run_logger()), progress_page(order.title) as hear, noting(Path(order.note) if order.note else None, hear):
        yield


def _stage(kind: str):
    """A Prefect task of that name. `made_from` only draws the edges of the run graph."""

    def stage(title: str, order: Order, made_from: dict[str, Any] | None = None) -> Any:
        with reporting(order):
            try:
                outcome = perform(order)
                get_run_logger().info("%s in %.1f s: %s", title, outcome.seconds, outcome.artifact)
                return outcome
            except RereadError as error:
                return Failed(message=masked(str(error)), data=error)      # so its page begins with the sentence
            except Exception as error:
                if not may_pass(error):
                    get_run_logger().error("%s: %s", title, type(error).__name__, exc_info=True)
                raise

    stage.__name__ = stage.__qualname__ = kind
    return task(name=kind, task_run_name="{title}", retries=len(RETRY_SECONDS), retry_delay_seconds=list(RETRY_SECONDS),
                cache_policy=NO_CACHE, retry_condition_fn=worth_retrying, persist_result=False)(stage)


TASKS = {kind: _stage(kind) for kind in PRIORITY}
