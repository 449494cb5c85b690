"""One set-up of logging for every entry point: `reread.*` loggers, always to stderr, since stdout belongs to `--json`."""

from __future__ import annotations

import json
import logging
import os
import sys
import time

from storage.masked import masked

ROOT = "reread"
NOISY = ("mlflow", "alembic", "sqlalchemy", "urllib3", "git", "fsspec", "filelock", "datasets", "matplotlib")


def get(name: str = "") -> logging.Logger:
    """The logger `reread.<name>`; `get(__name__)` is the usual call."""
    return logging.getLogger(f"{ROOT}.{name}" if name and name != ROOT else ROOT)


def configure_logging(level: str | int | None = None, json_to_stderr: bool = False) -> None:
    """Set up `reread.*` once; a second call only changes level and format.

    level           name or number; None means `REREAD_LOG_LEVEL` or INFO
    json_to_stderr  one JSON object a line instead of text
    Libraries that talk a lot are held at WARNING unless the level is DEBUG.
    """
    level = level if level is not None else os.environ.get("REREAD_LOG_LEVEL", "INFO")
    level = level.upper() if isinstance(level, str) else level
    logger = logging.getLogger(ROOT)
    handler = next((h for h in logger.handlers if isinstance(h, _Stderr)), None)
    if handler is None:
        handler = _Stderr()
        logger.addHandler(handler)
        logger.propagate = False
    handler.setFormatter(_Json() if json_to_stderr else _Text())
    logger.setLevel(level)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.DEBUG if logger.level <= logging.DEBUG else logging.WARNING)


class _Stderr(logging.StreamHandler):
    """Writes to whatever sys.stderr is now, so that a progress bar that redirects it keeps lines above the bar."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self):
        return sys.stderr


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname).1s %(name)s: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
                "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return masked(json.dumps(line, ensure_ascii=False))
