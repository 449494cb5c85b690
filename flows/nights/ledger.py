"""The nights that were, as runs of the experiment `nightly` in MLflow, where every machine of a team sees them.

A run is a night's record while it goes on: each version's outcome is written to it as soon as it is known (JSON in tags
`outcome.<n>.<part>`, since a tag holds 8,000 characters), and it ends with the night. One that was killed stays open;
the next night closes it, and takes over what it had found and not yet reported.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.nights.outcome import Outcome
from storage.errors import ServiceError
from storage.home import local_home, make_folder
from storage.provenance import git_commit
from storage.tracking import Tracking
from storage.tracking.runs import Run, read_runs

EXPERIMENT = "nightly"
KIND = {"kind": "night"}
PART = 7000             # characters of one tag


class NightUnderWay(ServiceError):
    """Another night is at work on this machine."""


@contextmanager
def alone() -> Iterator[None]:
    """Hold the lock of nights on this machine; the kernel frees it however a night ends.

    :raises NightUnderWay: another process holds it
    """
    path = make_folder(local_home()) / "nightly.lock"
    with open(path, "a+") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.seek(0)
            raise NightUnderWay(f"another nightly evaluation is at work (process {held.read().strip() or '?'}) and does what "
                                "is due; wait for it, or cancel its run") from None
        held.truncate(0)
        held.write(str(os.getpid()))
        held.flush()
        yield


@dataclass(frozen=True)
class Past:
    """A night that was."""

    run: str
    suite: str
    suite_version: str
    due: datetime
    at: datetime                    # when it began
    status: str                     # FINISHED; FAILED, KILLED or RUNNING where it got no further
    outcomes: tuple[Outcome, ...]
    summary: dict[str, Any]

    @property
    def finished(self) -> bool:
        return self.status == "FINISHED"


class Ledger:
    """Nights in one MLflow store."""

    def __init__(self, tracking: Tracking | None = None) -> None:
        self.tracking = tracking or Tracking()
        self.run = ""
        self._written = 0

    def nights(self, suite: str) -> list[Past]:
        """All nights of a suite, oldest first.

        :raises TrackingError: the store is away
        """
        found = [_past(run) for run in read_runs(EXPERIMENT, {**KIND, "suite": suite}, self.tracking.uri)]
        return sorted((night for night in found if night is not None), key=lambda night: night.at)

    def last_finished(self, suite: str) -> datetime | None:
        """The latest due time whose night was done."""
        return max((night.due for night in self.nights(suite) if night.finished), default=None)

    def open(self, suite: str, suite_version: str, due: datetime, at: datetime, night: str) -> list[Outcome]:
        """Begin a night; returns what killed nights had found and not reported."""
        killed = [past for past in self.nights(suite) if not past.finished and not past.summary.get("taken_over")]
        left = {(one.model, one.version): one for past in killed for one in past.outcomes if not one.failure}
        experiment = self.tracking.experiment(EXPERIMENT)
        self.run = self.tracking.start(
            experiment, f"night {night}", {**KIND, "suite": suite, "suite_version": suite_version, "night": night,
                                           "due": due.isoformat(), "at": at.isoformat(),
                                           "git_commit": git_commit() or "unknown"})
        for outcome in left.values():
            self.write(outcome)
        for past in killed:                 # last, so that a kill on the way leaves them to be taken over again
            self.tracking.tag(past.run, {"summary.0": json.dumps({"taken_over": True})})
            self.tracking.finish(past.run, "KILLED")
        self.tracking.flush()
        return list(left.values())

    def write(self, outcome: Outcome) -> None:
        """Put down what came of a version, at once."""
        self.tracking.tag(self.run, _parts(f"outcome.{self._written}", outcome.as_dict()))
        self.tracking.flush()
        self._written += 1

    def finish(self, summary: dict[str, Any], metrics: dict[str, float], status: str = "FINISHED") -> None:
        """End the night."""
        if metrics:
            self.tracking.metrics(self.run, metrics, step=0)
        self.tracking.tag(self.run, _parts("summary", summary))
        self.tracking.finish(self.run, status)
        self.tracking.flush()

    def abandon(self, status: str) -> None:
        """A night that did not get to its end: FAILED or KILLED. The next one takes over what it found."""
        if self.run:
            self.tracking.finish(self.run, status)
            self.tracking.flush()

    def link(self) -> str:
        """Path of the page of this night's run, to be put after the server's address."""
        return "/" + self.tracking.link(self.run)

    def keep(self, path: Path, subfolder: str | None = None) -> None:
        """A file of this night."""
        self.tracking.artifacts(self.run, path, subfolder)


def _parts(key: str, value: Any) -> dict[str, str]:
    text = json.dumps(value, separators=(",", ":"))
    return {f"{key}.{number}": text[first:first + PART] for number, first in enumerate(range(0, len(text), PART))}


def _joined(tags: dict[str, str], key: str) -> Any:
    """The value that `_parts` took apart; None where it is incomplete."""
    parts = []
    while (part := tags.get(f"{key}.{len(parts)}")) is not None:
        parts.append(part)
    try:
        return json.loads("".join(parts)) if parts else None
    except ValueError:
        return None


def _past(run: Run) -> Past | None:
    """A run as a night; None for one that somebody made by hand."""
    try:
        due, at = (datetime.fromisoformat(run.tags[name]).astimezone(UTC) for name in ("due", "at"))
        outcomes, number = {}, 0
        while f"outcome.{number}.0" in run.tags:
            if data := _joined(run.tags, f"outcome.{number}"):
                outcome = Outcome.of(data)
                outcomes[outcome.model, outcome.version] = outcome          # the last word on a version counts
            number += 1
        return Past(run.id, run.tags["suite"], run.tags.get("suite_version", ""), due, at, run.status,
                    tuple(outcomes.values()), _joined(run.tags, "summary") or {})
    except (KeyError, ValueError, TypeError):
        return None
