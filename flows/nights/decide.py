"""What a night concludes from scores, always by paired intervals over the documents that both systems answered.

* Alias: it moves to a version whose difference to the version that holds it excludes zero, on the suite's number (see
  tasks/suite_scores.py). The first of a size gets it only when that number is above its controls.
* Regression: the interval lies below zero, on the suite's number or on one evaluation alone, against the previous version
  of the same architecture and size (of the same seed, if there is one), or against its own answers before code changed.
* Other prompts cannot be paired. That is said, and nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from flows.nights.due import Asked, Entry
from flows.nights.outcome import BETTER, EVEN, UNKNOWN, WORSE, Outcome, Verdict, rounded
from storage.artifacts import Store
from tasks import suite_scores
from tasks.statistics import Interval
from tasks.suite_scores import Parts

ALL = "suite"


def outcome_of(entry: Entry, store: Store) -> Outcome:
    """The scores of an evaluated version, before anything is decided."""
    tags, parts = entry.version.tags, entry.parts(store)
    found = Outcome(entry.version.name, entry.version.number, entry.architecture, entry.size, tags.get("seed", ""),
                    entry.reason, suite=rounded(suite_scores.mean(parts)),
                    tasks={label: rounded(suite_scores.mean({label: part})) for label, part in parts.items()},
                    scores={label: one.scores for label, one in entry.asked.items()})
    for label, part in parts.items():
        for row in json.loads((part.folder / "scores.json").read_text(encoding="utf-8")):
            if row["control"] == "none" and row.get("value") is not None:
                found.cells[f"{label}/{row['column']}/{row['order']}"] = rounded(Interval(
                    row["value"], row["low"], row["high"], row["n"], row["documents"]))
    return found


def before(entry: Entry, store: Store) -> list[Verdict]:
    """A version against its own earlier answers; nothing for one that had none."""
    if not entry.before:
        return []
    if not _same_prompts(entry.before, entry.asked):
        return [Verdict("before", ALL, "its earlier answers", UNKNOWN, reason="the prompts changed")]
    earlier = entry.parts(store, {label: one["scores"] for label, one in entry.before.items()})
    if earlier is None:
        return [Verdict("before", ALL, "its earlier answers", UNKNOWN, reason="they are no longer here")]
    return _verdicts("before", "its earlier answers", entry.parts(store), earlier)


def previous(entry: Entry, entries: Sequence[Entry], store: Store) -> list[Verdict]:
    """A new version against the one before it of the same model, architecture and size; nothing for the first."""
    older = [one for one in entries if one.version.name == entry.version.name and one.architecture == entry.architecture
             and one.size == entry.size and int(one.version.number) < int(entry.version.number)]
    seed = entry.version.tags.get("seed")
    same = [one for one in older if one.version.tags.get("seed") == seed]
    if not older:
        return []
    other = max(same or older, key=lambda one: int(one.version.number))
    against = f"version {other.version.number}" + (
        "" if same else f" (seed {other.version.tags.get('seed', '?')}, not {seed or '?'})")
    refusal = _no_pair(entry, other, store)
    if refusal:
        return [Verdict("previous", ALL, against, UNKNOWN, reason=refusal)]
    return _verdicts("previous", against, entry.parts(store), other.parts(store))


def best(entry: Entry, holder: Entry | None, held: str | None, alias: str, store: Store,
         others: Sequence[Entry] = ()) -> tuple[bool, Verdict, str]:
    """(whether the alias moves to this version, the comparison, a sentence).

    holder  the version that has it; None = nobody, or (`held`, its number) one that the suite does not ask
    others  the other versions of the size: an alias that nobody has goes to none that is surely worse than another
    """
    if holder is None and held is not None:
        note = f"{alias} stays with version {held}, which has no scores of this suite"
        return False, Verdict("alias", ALL, f"version {held}", UNKNOWN, reason="it has no scores of this suite"), note
    if holder is None:
        above = suite_scores.above_controls(entry.parts(store))
        if above is None:
            return (False, Verdict("alias", ALL, "its controls", UNKNOWN, reason="the suite has no controls"),
                    f"nobody has {alias}, and no evaluation of this suite has controls to be above")
        verdict = _verdict("alias", ALL, "its controls", above)
        rival = _rival(entry, others, store) if verdict.result == BETTER else None
        if rival is not None:
            number = f"version {rival.version.number}"
            lost = _verdict("alias", ALL, number, suite_scores.difference(entry.parts(store), rival.parts(store)))
            if lost.result == WORSE:
                return False, lost, f"nobody is {alias}: this one is worse than {number}"
        return (verdict.result == BETTER, verdict,
                f"the first of its size above its controls: it is {alias} now" if verdict.result == BETTER
                else f"nobody is {alias}: this one is not above its controls")
    against = f"version {holder.version.number}"
    refusal = _no_pair(entry, holder, store)
    if refusal:
        return False, Verdict("alias", ALL, against, UNKNOWN, reason=refusal), f"{alias} stays with {against}: {refusal}"
    verdict = _verdict("alias", ALL, against, suite_scores.difference(entry.parts(store), holder.parts(store)))
    why = {BETTER: f"{alias} moves here from {against}: the interval is above zero",
           WORSE: f"{alias} stays with {against}", EVEN: f"{alias} stays with {against}: the interval includes zero",
           UNKNOWN: f"{alias} stays with {against}: there is no interval"}
    return verdict.result == BETTER, verdict, why[verdict.result]


def _rival(entry: Entry, others: Sequence[Entry], store: Store) -> Entry | None:
    """The one with the highest number of those that were asked the same, if it is above this one's."""
    numbers = {one.version.number: suite_scores.mean(one.parts(store)).value or 0.0
               for one in (entry, *others) if one is entry or not _no_pair(entry, one, store)}
    first = max(others, key=lambda one: numbers.get(one.version.number, 0.0), default=None)
    return first if first and numbers.get(first.version.number, 0.0) > numbers[entry.version.number] else None


def _no_pair(entry: Entry, other: Entry, store: Store) -> str:
    """Why two versions cannot be paired; "" when they can."""
    if other.failure or other.not_asked or not other.asked:
        return f"version {other.version.number} could not be evaluated"
    if not _same_prompts({label: {"prompts": one.prompts} for label, one in other.asked.items()}, entry.asked):
        return f"version {other.version.number} was asked other prompts"
    if other.parts(store) is None:
        return f"the answers of version {other.version.number} are not here"
    return ""


def _same_prompts(theirs: dict[str, dict[str, str]], ours: dict[str, Asked]) -> bool:
    return {label: one["prompts"] for label, one in theirs.items()} == {label: one.prompts for label, one in ours.items()}


def _verdicts(kind: str, against: str, a: Parts, b: Parts) -> list[Verdict]:
    """The suite's number and, where there are several, each evaluation alone."""
    found = [_verdict(kind, ALL, against, suite_scores.difference(a, b))]
    if len(a) > 1:
        found += [_verdict(kind, label, against, suite_scores.difference({label: a[label]}, {label: b[label]}))
                  for label in a]
    return found


def _verdict(kind: str, what: str, against: str, gap: Interval) -> Verdict:
    if gap.low is None:
        return Verdict(kind, what, against, UNKNOWN, reason=gap.reason or "no interval")
    result = BETTER if gap.low > 0 else WORSE if gap.high < 0 else EVEN
    return Verdict(kind, what, against, result, rounded(gap))
