"""Progress for people: a bar on a terminal, a plain line now and then elsewhere. Always stderr, safe in threads."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

INTERVAL = 10.0   # seconds between plain lines

_lock = threading.RLock()
_bars = None      # the one rich display of this process, while any bar is open
_open = 0


class Progress:
    """What `progress` hands out: advance by n, note a short text. Any thread may call either."""

    def __init__(self, total: int | None, description: str, unit: str) -> None:
        self.total, self.description, self.unit = total, description, unit
        self.done = 0
        self.text = ""
        self.began = time.monotonic()

    def advance(self, n: int = 1) -> None:
        with _lock:
            self.done += n
            self._show()

    def note(self, text: str) -> None:
        with _lock:
            self.text = text
            self._show()

    def _show(self) -> None:
        """Nothing here; the two kinds below draw."""

    def line(self) -> str:
        """The plain form: `tokenise: 1,200/9,000 documents (13 %), 310/s, 0:25 left, shard 3`."""
        seconds = max(time.monotonic() - self.began, 1e-9)
        rate = self.done / seconds
        parts = [f"{self.done:,}" + (f"/{self.total:,}" if self.total else "") + f" {self.unit}"
                 + (f" ({100 * self.done / self.total:.0f} %)" if self.total else "")]
        parts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s")
        if self.total and self.done >= self.total:
            parts.append(f"{_clock(seconds)} in all")
        elif self.total and self.done:
            parts.append(f"{_clock((self.total - self.done) / rate)} left")
        if self.text:
            parts.append(self.text)
        return f"{self.description}: {', '.join(parts)}"


@contextmanager
def progress(total: int | None, description: str, unit: str = "items") -> Iterator[Progress]:
    """Show the progress of one piece of work; may be nested and used from several threads.

    total  number of units, or None when it is not known
    """
    bar = (_Bar if sys.stderr.isatty() else _Lines)(total, description, unit)
    try:
        yield bar
    finally:
        with _lock:
            bar.close()


class _Lines(Progress):
    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.last = self.began
        self.written = 0            # units done when a line was last written

    def _show(self) -> None:
        if time.monotonic() - self.last >= INTERVAL:
            self._write()

    def close(self) -> None:
        """A last line, for work long enough to show one and not shown to its end yet."""
        if time.monotonic() - self.began >= INTERVAL and self.written != self.done:
            self._write()

    def _write(self) -> None:
        self.last, self.written = time.monotonic(), self.done
        sys.stderr.write(self.line() + "\n")
        sys.stderr.flush()


class _Bar(Progress):
    def __init__(self, *args) -> None:
        super().__init__(*args)
        global _bars, _open
        with _lock:
            if _bars is None:
                _bars = _display()
                _bars.start()
            _open += 1
            self.bars = _bars
            self.task = _bars.add_task(self.description, total=self.total, unit=self.unit, text="")

    def _show(self) -> None:
        self.bars.update(self.task, completed=self.done, text=self.text)

    def close(self) -> None:
        global _bars, _open
        self.bars.remove_task(self.task)
        _open -= 1
        if _open == 0:
            self.bars.stop()
            _bars = None


def _display():
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    return Bars(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[unit]}"),
                TimeRemainingColumn(), TextColumn("{task.fields[text]}"), console=Console(stderr=True),
                transient=True, redirect_stdout=False)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
