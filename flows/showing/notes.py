"""What a stage is doing, in a small file: written by the process that does the work, read by the one that watches.

The file holds one JSON object and is replaced whole, so a reader never sees half of it. Nothing depends on it: where
worker and watcher share no disk, the watcher just sees no notes.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

EVERY_SECONDS = 1.0
LOG_PREFIX = re.compile(r"^\d\d:\d\d:\d\d [A-Z] reread[\w.]*: ")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def read(path: Path) -> dict:
    """The note at `path`, or an empty one."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


@contextmanager
def noting(path: Path | None, hear: Callable[[str], None] | None = None) -> Iterator[None]:
    """While inside, the last line that this process writes to stderr is also the note (progress lines go there).

    path  file of the note, or None for none
    hear  is told every line
    """
    if path is None and hear is None:
        yield
        return
    kept = sys.stderr
    sys.stderr = _Tee(kept, path, hear)
    try:
        yield
    finally:
        sys.stderr = kept


class _Tee:
    """Passes everything on and keeps the last whole line, at most one write to disk a second."""

    def __init__(self, stream, path: Path | None, hear: Callable[[str], None] | None = None) -> None:
        self.stream, self.path, self.hear, self.pending, self.written = stream, path, hear, "", 0.0
        self.save("")

    def write(self, text: str) -> int:
        self.pending = (self.pending + text)[-4000:]
        *lines, self.pending = self.pending.replace("\r", "\n").split("\n")
        lines = [clean for line in lines if (clean := LOG_PREFIX.sub("", ESCAPES.sub("", line)).strip())]
        if lines and time.monotonic() - self.written >= EVERY_SECONDS:
            self.save(lines[-1])
        for line in lines if self.hear else ():
            self.hear(line)
        return self.stream.write(text)

    def save(self, line: str) -> None:
        if self.path is None:
            return
        self.written = time.monotonic()
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
            partial.write_text(json.dumps({"pid": os.getpid(), "time": time.time(), "note": line}), encoding="utf-8")
            os.replace(partial, self.path)

    def __getattr__(self, name: str):
        return getattr(self.stream, name)
