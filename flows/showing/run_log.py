"""The log of a run on Prefect's pages: what `reread.*` says, all of it, and nothing that only frameworks care about."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from storage.logs import configure_logging
from storage.masked import masked

# what Prefect writes into every run, which its page shows anyway
CHATTER = ("Beginning flow run ", "Created task run ", "Finished in state ", "Created flow run ",
           "Created subflow run ", "Executing flow ", "Submitting task ", "Encountered exception during execution",
           "Engine execution exited with unexpected exception")


class _ToRun(logging.Handler):
    """Passes `reread.*` on to the run under way."""

    def __init__(self, target: logging.Logger | logging.LoggerAdapter) -> None:
        super().__init__(logging.INFO)
        self.target = target

    def emit(self, record: logging.LogRecord) -> None:
        self.target.log(record.levelno, masked(record.getMessage()))


def without_chatter(record: logging.LogRecord) -> bool:
    """A filter of Prefect's loggers; whoever asks for DEBUG gets everything."""
    return logging.getLogger("prefect").level == logging.DEBUG or not str(record.msg).startswith(CHATTER)


def hush() -> None:
    """Keep framework noise out of runs of this process; calling it again changes nothing."""
    import warnings

    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if without_chatter not in logger.filters:
            logger.addFilter(without_chatter)
    for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
        warnings.simplefilter("ignore", category)


@contextmanager
def run_log(logger: Any, of: str = "reread") -> Iterator[None]:
    """While inside, lines of `reread.*`, or of the logger `of`, go to `logger`, that of the run, too. At the end they are sent: Ray ends the process of a
    stage soon after, and with it what waits to be sent."""
    from prefect.logging.handlers import APILogWorker

    configure_logging()
    hush()
    handler = _ToRun(logger)
    logging.getLogger(of).addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger(of).removeHandler(handler)
        APILogWorker.drain_all(timeout=5)


hush()          # before the first line of a run, which comes from Prefect
