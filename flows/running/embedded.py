"""Everything one command needs to run a flow here: a Prefect API, Ray, and their orderly end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flows.running import ray_runner
from flows.running.ray_runner import session
from flows.services import local


@contextmanager
def embedded(ray: bool = True) -> Iterator[str]:
    """Prefect's API address for the time of one flow. Afterwards nothing of ours is left running.

    ray  start it while the Prefect server starts; False where the flow may find nothing to do: it starts Ray itself
    A second Ctrl-C during the end is ignored: it takes a few seconds.
    """
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")     # the stage table is shown instead
    session()
    try:
        with local.prefect_api(meanwhile=ray_runner.start if ray else lambda: None) as api:
            try:
                yield api
            finally:
                with uninterrupted():
                    _drain()
                    ray_runner.shut_down()
    except BaseException:
        with uninterrupted():
            ray_runner.shut_down()
            session().end(keep_logs=True)
        raise
    session().end()


def run(flow_of: Callable[[], Any], request: Any, ray: bool = True) -> Any:
    """Run a flow with its request. `flow_of` imports it, so that Prefect is imported only now. ray: see `embedded`.

    :raises RereadError: whatever a stage raised
    """
    with embedded(ray) as api:
        from prefect.settings import PREFECT_API_URL, temporary_settings

        with temporary_settings({PREFECT_API_URL: api}):       # Prefect may have been imported before
            return flow_of()(request)


def _drain() -> None:
    """Send what this process has logged to Prefect before the server goes."""
    import sys

    handlers = sys.modules.get("prefect.logging.handlers")
    if handlers is not None:
        handlers.APILogWorker.drain_all(timeout=5)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
