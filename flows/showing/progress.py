"""Progress of a long stage on its Prefect page: one progress artifact, made from the lines that the stage writes."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

from storage import logs

EVERY_SECONDS = 5.0
# `pretrain jrt, seed 0: 1,200/9,000 steps (13 %), 310/s, 0:25 left, loss 2.1`
LINE = re.compile(r"^(?P<what>.+?): (?P<done>[\d,]+)/(?P<total>[\d,]+) (?P<unit>\w+)")

log = logs.get("flows.progress")


def percent(line: str) -> float | None:
    """How far a progress line says that its work is [0 to 100]; None for any other line."""
    found = LINE.match(line)
    if found is None:
        return None
    done, total = (int(found[name].replace(",", "")) for name in ("done", "total"))
    return min(100.0, 100.0 * done / total) if total else None


class Shown:
    """One artifact for the stage: made with the first progress line, so a short stage has none."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.artifact: Any = None
        self.heard = self.line = ""

    def hear(self, line: str) -> None:
        """Told every line of the stage, in its own thread; only remembers."""
        if percent(line) is not None:
            self.heard = line

    def look(self) -> None:
        """Bring the page up to date with what was heard."""
        if self.heard != self.line:
            self.line = self.heard
            self.show(percent(self.line), f"**{self.title}**: {self.line}")

    def finish(self) -> None:
        if self.artifact is not None:
            self.show(100.0, f"**{self.title}**: done")

    def show(self, share: float, text: str) -> None:
        from prefect.artifacts import create_progress_artifact, update_progress_artifact

        if self.artifact is None:
            self.artifact = create_progress_artifact(share, key=key_of(self.title), description=text)
        else:
            update_progress_artifact(self.artifact, share, description=text)


def key_of(title: str) -> str:
    """A key that Prefect accepts: lower case, digits and dashes."""
    return "progress-" + re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


@contextmanager
def progress_page(title: str) -> Iterator[Callable[[str], None]]:
    """While inside a Prefect task, the progress lines given to what it yields move an artifact. A server that does not
    answer costs the page, never the work."""
    over, shown = threading.Event(), Shown(title)

    def follow() -> None:
        while not over.wait(EVERY_SECONDS):
            _quietly(shown.look)

    thread = threading.Thread(target=copy_context().run, args=(follow,), daemon=True, name="progress")
    thread.start()
    try:
        yield shown.hear
        over.set()
        thread.join(10)
        _quietly(shown.finish)
    finally:
        over.set()


def _quietly(action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as failure:  # noqa: BLE001 - whatever it is, the work goes on
        log.debug("progress is not shown: %s", failure)
