"""One night: what is missing is evaluated, then everything is decided, written and reported.

The order of events makes a kill harmless: scores are artifacts, found again by their ids; a version's outcome is put
into the ledger before its alias moves, and the version is tagged last, so until then it is still due.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from flows.nights import decide
from flows.nights.clock import Clock
from flows.nights.due import NEW, Entry, look, suite_version
from flows.nights.ledger import Ledger
from flows.nights.outcome import Outcome, Verdict, shown
from flows.suites import Suite
from storage import logs
from storage.artifacts import Store
from storage.errors import RereadError, ServiceError, TrackingAway, TrackingError
from storage.tracking.limits import valid_name
from storage.tracking.registry import Registry

log = logs.get("flows.nightly")


@dataclass
class Report:
    """What a night found."""

    suite: str
    suite_version: str
    due: datetime
    at: datetime
    outcomes: list[Outcome] = field(default_factory=list)
    carried: list[Outcome] = field(default_factory=list)            # of a killed night, reported here
    not_asked: dict[str, str] = field(default_factory=dict)         # version -> why
    up_to_date: int = 0
    seconds: float = 0.0
    link: str = ""                                                  # page of the night's run, after the server's address

    @property
    def everything(self) -> list[Outcome]:
        return [*self.carried, *self.outcomes]

    @property
    def failed(self) -> list[Outcome]:
        return [one for one in self.outcomes if one.failure]

    @property
    def regressions(self) -> list[tuple[Outcome, Verdict]]:
        return [(one, verdict) for one in self.everything for verdict in one.regressions]

    @property
    def moves(self) -> list[Outcome]:
        return [one for one in self.everything if one.alias]

    @property
    def comparisons(self) -> int:
        """Intervals that were computed."""
        return sum(verdict.counted for one in self.everything for verdict in one.verdicts)

    @property
    def work(self) -> bool:
        return bool(self.everything)

    def headline(self) -> str:
        """One line: what a subject of a mail says."""
        if not self.work:
            return f"nothing to do: {already(self.up_to_date)}"
        said = [f"{len(self.everything) - len(self.failed)} evaluated"]
        said += [f"{len(self.failed)} failed"] if self.failed else []
        said += [f"{one.alias} is now {one.name}" for one in self.moves]
        worse = sorted({one.name for one, _ in self.regressions})
        return ", ".join(said + [f"worse than before: {', '.join(worse)}" if worse else "no regression"])

    def summary(self) -> dict[str, Any]:
        """For the ledger, events and `--json`."""
        return {"suite": self.suite, "suite_version": self.suite_version, "due": self.due.isoformat(),
                "at": self.at.isoformat(), "headline": self.headline(),
                "evaluated": [one.name for one in self.everything if not one.failure],
                "failed": {one.name: one.failure[:500] for one in self.failed}, "not_asked": len(self.not_asked),
                "up_to_date": self.up_to_date, "comparisons": self.comparisons,
                "regressions": [{"model": one.name, "against": verdict.against, "what": verdict.what,
                                 "difference": shown(verdict.difference, signed=True)}
                                for one, verdict in self.regressions],
                "aliases": {f"{one.model}@{one.alias}": one.version for one in self.moves},
                "seconds": round(self.seconds, 1)}


class Night:
    """One night of a suite.

    evaluate   makes what is missing of one version, as `entry.plan` says; what it raises is that version's failure, and no other's
    now        the clock on the wall, UTC
    scheduled  when a schedule meant this night to begin; one that a person set on the page may know of more than the settings
    """

    def __init__(self, suite: Suite, store: Store, clock: Clock, evaluate: Callable[[Entry], Any],
                 registry: Any = None, ledger: Ledger | None = None,
                 now: Callable[[], datetime] = lambda: datetime.now(UTC), scheduled: datetime | None = None) -> None:
        self.suite, self.store, self.clock, self.evaluate = suite, store, clock, evaluate
        self.registry = registry if registry is not None else Registry()
        self.ledger = ledger or Ledger()
        self.now, self.scheduled = now, scheduled

    def due(self) -> datetime:
        """The due time that a night now is for; now itself with the schedule off."""
        now = max(self.now(), self.scheduled or self.now())         # clocks of two machines differ
        return max((at for at in (self.clock.last_due(now), self.scheduled) if at is not None), default=now)

    def is_done(self) -> bool:
        """Whether the night that is due now has been done, by whatever run."""
        last = self.ledger.last_finished(self.suite.name)
        return last is not None and last >= self.due()

    def look(self) -> list[Entry]:
        """Every version that the suite is for. Nothing is written.

        :raises TrackingError: the registry is away
        """
        return look(self.suite, self.registry.versions(), self.store)

    def run(self) -> Report:
        """:raises RereadError: the suite itself cannot be planned, or the registry, Ray or Prefect is away"""
        began, at, due = time.monotonic(), self.now(), self.due()
        digest = suite_version(self.suite, self.store)
        entries = self.look()
        report = Report(self.suite.name, digest, due, at,
                        not_asked={one.name: one.not_asked for one in entries if one.not_asked},
                        up_to_date=sum(bool(one.asked) and not one.due for one in entries))
        report.carried = self.ledger.open(self.suite.name, digest, due, at, self.clock.night(due))
        waiting = [entry for entry in entries if entry.due]
        for entry in waiting:
            self._evaluate(entry)
        carried = {(one.model, one.version): one for one in report.carried}
        for entry in waiting:
            outcome = self._conclude(entry, entries, digest, at)
            _keep_move(outcome, carried.pop((outcome.model, outcome.version), None))
            report.outcomes.append(outcome)
        report.carried = list(carried.values())
        report.link, report.seconds = self.ledger.link(), time.monotonic() - began
        return report

    @contextmanager
    def under_way(self) -> Iterator[Report]:
        """The night's work, then what is made of its report; an error or a signal in either leaves the night abandoned."""
        try:
            yield self.run()
        except BaseException as error:
            self.ledger.abandon("FAILED" if isinstance(error, Exception) else "KILLED")
            raise

    def end(self, report: Report) -> None:
        """Close the night in the ledger; until then it counts as not done."""
        self.ledger.finish(report.summary(), {**_metrics(report), **self._standing()})

    # ------------------------------------------------------------------------------------------------- one version
    def _evaluate(self, entry: Entry) -> None:
        if entry.plan is None or entry.failure:
            return
        log.info("%s: %s", entry.name, entry.reason)
        try:
            self.evaluate(entry)
            missing = [one.scores for one in entry.asked.values() if not self.store.exists(one.scores)]
            if missing:
                entry.failure = f"{', '.join(missing)} was planned and not made"
        except (ServiceError, TrackingAway):
            raise                           # MLflow, Ray or Prefect is away: no model's failure, and the next night goes on here
        except RereadError as error:
            entry.failure = str(error)
        except Exception as error:  # noqa: BLE001 - one model must not stop the others
            entry.failure = f"{type(error).__name__}: {error}"
        if entry.failure:
            log.error("%s could not be evaluated: %s", entry.name, entry.failure)

    def _conclude(self, entry: Entry, entries: list[Entry], digest: str, at: datetime) -> Outcome:
        """Decide, then write: ledger, alias, tags."""
        if not entry.failure:
            try:
                outcome = self._decided(entry, entries)
            except TrackingAway:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                entry.failure = f"its scores could not be read: {error}"
        if entry.failure:
            return self._failed(entry, entry.failure)
        self.ledger.write(outcome)
        if outcome.alias:
            try:
                self.registry.move(entry.version.name, outcome.alias, entry.version.number)
            except TrackingAway:
                raise                       # the version is still due, and the next night moves it
            except TrackingError as error:
                outcome.alias, outcome.alias_note = "", f"the alias could not be moved: {error}"
                self.ledger.write(outcome)
        try:
            self.registry.tag(entry.version, _tags(self.suite, digest, entry, outcome, at))
        except TrackingAway:
            raise
        except TrackingError as error:      # somebody deleted it meanwhile
            outcome = self._failed(entry, f"its scores could not be written: {error}")
        return outcome

    def _failed(self, entry: Entry, why: str) -> Outcome:
        outcome = Outcome(entry.version.name, entry.version.number, entry.architecture, entry.size,
                          entry.version.tags.get("seed", ""), entry.reason, why)
        self.ledger.write(outcome)
        return outcome

    def _decided(self, entry: Entry, entries: list[Entry]) -> Outcome:
        outcome = decide.outcome_of(entry, self.store)
        outcome.verdicts += decide.before(entry, self.store)
        if entry.reason == NEW:
            outcome.verdicts += decide.previous(entry, entries, self.store)
        if not self.suite.alias:
            return outcome
        if not entry.size:
            outcome.alias_note = "it has no tag `size`, so no alias of a size is for it"
            return outcome
        alias = f"{self.suite.alias}-{entry.size}"
        held = self.registry.aliases(entry.version.name).get(alias)
        if held == entry.version.number:
            outcome.alias_note = f"it is {alias}"
            return outcome
        known = {one.version.number: one for one in entries if one.version.name == entry.version.name}
        holder = known.get(held or "")
        others = [one for one in known.values() if one is not entry and one.size == entry.size]
        moves, verdict, outcome.alias_note = decide.best(entry, holder, held, alias, self.store, others)
        outcome.verdicts.append(verdict)
        outcome.alias = alias if moves else ""
        return outcome

    def _standing(self) -> dict[str, float]:
        """The suite's number of every version that is the best of its size, so that each night has a point."""
        found = {}
        if not self.suite.alias:
            return found
        for version in self.registry.versions():
            value = version.tags.get(f"suite.{self.suite.name}.value", "").split(" ")[0]
            for alias in version.aliases:
                if alias.startswith(f"{self.suite.alias}-") and value.replace(".", "", 1).isdigit():
                    found[f"{alias}/{version.name}"] = float(value)
        return found


def already(versions: int) -> str:
    """How many had nothing to be done for: `3 versions had their scores`."""
    return f"{versions} version{'' if versions == 1 else 's'} had {'its' if versions == 1 else 'their'} scores"


def _keep_move(outcome: Outcome, earlier: Outcome | None) -> None:
    """A killed night had moved the alias to this version, which holds it now: that move has not been reported yet."""
    if earlier is not None and earlier.alias and outcome.alias_note == f"it is {earlier.alias}":
        outcome.alias, outcome.alias_note = earlier.alias, earlier.alias_note
        outcome.verdicts += [verdict for verdict in earlier.verdicts if verdict.kind == "alias"]


def _metrics(report: Report) -> dict[str, float]:
    """Every score of the night, as MLflow draws them."""
    found: dict[str, float] = {"evaluated": len(report.everything) - len(report.failed), "failed": len(report.failed),
                               "regressions": len(report.regressions), "alias moves": len(report.moves),
                               "seconds": report.seconds}
    for one in report.everything:
        place = f"{one.model}/{one.version}"
        if one.suite is not None and one.suite[0] is not None:
            found[f"{place}/suite"] = one.suite[0]
        for cell, (value, low, high) in one.cells.items():
            found |= {f"{place}/{cell}{end}": each for end, each in (("", value), (" low", low), (" high", high))
                      if each is not None}
    return found


def _tags(suite: Suite, digest: str, entry: Entry, outcome: Outcome, at: datetime) -> dict[str, str]:
    """What a version carries: first for people, last for the next night."""
    return {"suite": f"{suite.name} {digest}", "scored": at.isoformat(timespec="seconds"),
            **{f"scores.{valid_name(label)}": one.scores for label, one in entry.asked.items()},
            **{cell: shown(figure) for cell, figure in outcome.cells.items()},
            f"suite.{suite.name}.value": shown(outcome.suite),
            f"suite.{suite.name}": json.dumps({label: {"prompts": one.prompts, "scores": one.scores, "order": one.order}
                                               for label, one in entry.asked.items()})}
