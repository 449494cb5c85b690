"""The attached `reread up`: one line about everything, and a service that dies is started again."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from flows.commands.output import size
from flows.services import fleet, health, local, pages, status
from flows.services.processes import Record, stop, tail
from storage.errors import ServiceError
from storage.home import local_home

LOOK_SECONDS = 1.0
SHOW_SECONDS = 5.0           # between two looks at health, queue and disk
WEIGH_SECONDS = 30.0         # between two looks at memory, which cost 17 ms for each process
RESTARTS = 3                 # of one service within HOUR
HOUR = 3600.0


class Interrupts:
    """Ctrl-C, SIGTERM and a closed terminal ask once, and are heeded where it is safe to stop."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def asked(self) -> bool:
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait; True at once when asked."""
        return self._asked.wait(seconds)

    @contextmanager
    def heeded(self) -> Iterator[Interrupts]:
        numbers = [number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
                   if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]       # nohup
        kept = {number: signal.signal(number, lambda *_: self._asked.set()) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)


class Line:
    """One line on a terminal that is written over; elsewhere a line whenever what it says of health or queue changes."""

    def __init__(self, out: TextIO) -> None:
        self.out, self.live, self._last = out, out.isatty(), ""

    def show(self, important: str, rest: Callable[[], str]) -> None:
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            self._write("\r\x1b[2K" + f"{important} | {rest()}"[:width])
        elif important != self._last:
            self._write(f"{time.strftime('%H:%M:%S')} {important} | {rest()}\n")
        self._last = important

    def say(self, text: str) -> None:
        """A line that stays."""
        self._write(("\r\x1b[2K" if self.live else "") + text + "\n")

    def clear(self) -> None:
        if self.live:
            self._write("\r\x1b[2K")

    def _write(self, text: str) -> None:
        """A terminal that was closed, or a reader that has gone, must not keep us from stopping what we started."""
        with suppress(OSError, ValueError):
            self.out.write(text)
            self.out.flush()


def watch(up: fleet.Up, interrupts: Interrupts, out: TextIO | None = None) -> list[Record]:
    """Stay until asked to stop (then end what was started here, and return it) or until `reread down` (returns nothing).

    :raises ServiceError: one of them died again and again
    """
    line, records, started = Line(out or sys.stdout), dict(up.records), set(up.started)
    deaths: Counter[str] = Counter()
    scale = Scale()
    shown, since = 0.0, time.monotonic()
    try:
        while not interrupts.wait(LOOK_SECONDS):
            dead = [record for record in records.values() if not record.process.alive]
            if dead and _taken_away(dead, interrupts):
                line.say("stopped by `reread down`")
                stop([records[name].process for name in started])           # or by removing the folder of records
                return []
            if dead:
                if time.monotonic() - since > HOUR:
                    deaths.clear()
                    since = time.monotonic()
                deaths.update(record.name for record in dead)
                for record in dead:
                    line.say(f"{record.name} died ({deaths[record.name]} of {RESTARTS + 1}). The end of its log, "
                             f"{record.log}:\n{_last_words(record)}")
                if (name := deaths.most_common(1)[0][0]) and deaths[name] > RESTARTS:
                    raise ServiceError(f"{name} died {deaths[name]} times; what its log says is above")
                again = fleet.up(lambda text: line.say(text + " ..."), interrupts.asked)
                # one that somebody else has started meanwhile is theirs to stop
                started = started - {record.name for record in dead} | set(again.started)
                records, scale = dict(again.records), Scale()
                if again.started:                        # or another `up` that watches them was faster
                    line.say(f"started again: {', '.join(again.started)}")
            if dead or time.monotonic() - shown > SHOW_SECONDS:
                line.show(_state(records), lambda shown=records, scale=scale: f"memory {size(scale.weigh(shown))} | "
                          f"{size(health.free_bytes(local_home()))} free")
                shown = time.monotonic()
    except KeyboardInterrupt:
        pass
    except Exception:
        _end(records, started, line)
        raise
    return _end(records, started, line)


def _end(records: dict[str, Record], started: set[str], line: Line) -> list[Record]:
    """Stop what was started here, also where somebody has removed the folder of records."""
    line.clear()
    stopped = fleet.down(tuple(started), line.say)
    stop([records[name].process for name in started if name in records])
    return stopped


def _taken_away(dead: list[Record], interrupts: Interrupts) -> bool:
    """Whether a `down` has ended them: it takes their records away too."""
    with local.exclusive(interrupts.asked):
        return all(Record.load(local.folder(), record.name) is None for record in dead)


def _last_words(record: Record) -> str:
    return tail(Path(record.log)) if record.log else "(no log)"


def _state(records: dict[str, Record]) -> str:
    """Health and queue."""
    judged = {name: health.service(record) for name, record in records.items()}
    words = [f"{name} {'ok' if finding.ok else 'silent'}" for name, finding in judged.items()]
    outside = local.external()
    if "prefect" in outside:
        api = pages.Prefect(local.external_api())
    else:
        api = pages.Prefect(f"{records['prefect'].url}/api") if judged["prefect"].ok else None
    if api and (queue := status.queue(api)):
        soon = queue["scheduled"] - queue["late"]
        words.append(f"{queue['running'] + queue['pending']} running, {queue['late']} waiting, {soon} scheduled")
    return " | ".join(words)


class Scale:
    """Memory of the services, looked at now and then."""

    def __init__(self) -> None:
        self._bytes, self._at = 0, -WEIGH_SECONDS

    def weigh(self, records: dict[str, Record]) -> int:
        if time.monotonic() - self._at >= WEIGH_SECONDS:
            self._bytes, self._at = sum(status.memory(record) for record in records.values()), time.monotonic()
        return self._bytes
