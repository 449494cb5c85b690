"""`reread prune`: show what no run refers to and how much it is, ask, and remove it.

Runs in MLflow refer to an artifact by any tag or parameter that mentions its id, registered versions by their tags, and
so does what waits in a journal for a store that is away. A report refers to all it was made from; one whose runs have
all been deleted in MLflow no longer does.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from flows.commands.left_behind import end_sessions, left_behind, remove_left_behind
from flows.commands.output import document, say, size, table
from storage import pruning
from storage.artifacts import Store
from storage.errors import SpecError, TrackingError
from storage.manifest import Manifest
from storage.pruning import Waste, mentioned

AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
HAVE_RUNS = ("checkpoint", "scores", "report")      # kinds that some run refers to in any home that is in use
SHOWN = 20                                          # artifacts named one by one before a question


@dataclass(frozen=True)
class References:
    """What refers to artifacts: ids, and how many runs and versions were looked at."""

    ids: frozenset[str]
    trashed: frozenset[str] = frozenset()           # mentioned by deleted runs alone
    runs: int = 0
    versions: int = 0


def prune(older_than: str, keep: list[str], without_tracking: bool, yes: bool, dry_run: bool, json: bool) -> None:
    """:raises SpecError: an age or a kind that means nothing, or a question that nobody can answer
    :raises TrackingError: what refers to artifacts is not known
    """
    store, before = Store(), time.time() - seconds(older_than)
    found = store.list()
    _check_kinds(keep, found)
    known = References(frozenset(mentioned(_undelivered()))) if without_tracking else references()
    if not without_tracking:
        _check_same_home(known, found, store)
    gone = pruning.unreferenced(store, found, known.ids | _reports(found, known), before, keep)
    left = [*pruning.leftovers(store, before, known.ids), *left_behind(before)]
    if not yes and not dry_run and not json and (gone or left) and not sys.stdin.isatty():
        raise SpecError("prune asks before it removes and nobody can answer here; --dry-run shows, --yes removes")
    if not json:
        _show(found, gone, left, known, without_tracking, older_than, whole=dry_run)
    removed: list[Waste] = []
    if (gone or left) and not dry_run and (yes or (not json and _agreed())):
        removed = [*pruning.remove(store, [*gone, *(one for one in left if one.what in INSIDE)]),
                   *remove_left_behind([one for one in left if one.what not in INSIDE])]
        end_sessions()
    if json:
        document({"home": store.root, "older_than": older_than, "dry_run": not yes or dry_run, "runs": known.runs,
                  "versions": known.versions, "kept": len(found) - len(gone), "unreferenced": [_facts(one) for one in gone],
                  "leftovers": [_facts(one) for one in left], "bytes": sum(one.bytes for one in (*gone, *left)),
                  "removed": [one.name for one in removed], "removed_bytes": sum(one.bytes for one in removed)})
    elif removed or (yes and (gone or left)):
        say(f"\nremoved {_count(removed)}, {size(sum(one.bytes for one in removed))}" + (
            f"; {len(gone) + len(left) - len(removed)} came into use meanwhile, or could not be deleted"
            if len(removed) < len(gone) + len(left) else ""))


INSIDE = (pruning.ARTIFACT, pruning.WORK, pruning.DEBRIS, pruning.DELETED)


def references() -> References:
    """From the tracking store. TrackingError where it cannot be asked."""
    from storage.tracking.references import every_run
    from storage.tracking.registry import Registry

    try:
        runs, versions = every_run(), Registry().versions()
    except TrackingError as error:
        raise TrackingError(f"nothing is removed, since what refers to artifacts is not known: {error}; or "
                            "--without-tracking keeps only what reports were made from") from error
    ids = {each for run in runs if not run.deleted for each in _of(run)}
    ids |= {each for version in versions for each in mentioned("\n".join(version.tags.values()))}
    ids |= mentioned(_undelivered())
    return References(frozenset(ids), frozenset({each for run in runs if run.deleted for each in _of(run)} - ids),
                      sum(not run.deleted for run in runs), len(versions))


def _of(run: Any) -> set[str]:
    return mentioned("\n".join((*run.tags.values(), *run.params.values())))


def _undelivered() -> str:
    from storage.tracking.references import undelivered

    return undelivered()


def _reports(found: Collection[Manifest], known: References) -> set[str]:
    """Reports that refer to what they were made from."""
    return {one.id for one in found if one.kind == "report" and one.id not in known.trashed}


def _check_same_home(known: References, found: Collection[Manifest], store: Store) -> None:
    """TrackingError where runs and artifacts have nothing to do with each other, as with a store of another home."""
    mine = {one.id for one in found}
    if any(one.kind in HAVE_RUNS for one in found) and not mine & (known.ids | known.trashed):
        from storage.tracking import default_uri

        raise TrackingError(f"none of the {known.runs} runs in {default_uri()} refers to anything under {store.root}, which "
                            "looks like the store of another home; set MLFLOW_TRACKING_URI to the right one, or "
                            "--without-tracking keeps only what reports were made from")


def _check_kinds(keep: Collection[str], found: Collection[Manifest]) -> None:
    there = sorted({one.kind for one in found})
    unknown = [kind for kind in keep if kind not in there]
    if unknown and there:
        raise SpecError(f"--keep {unknown[0]}: there is no artifact of that kind here, only {', '.join(there)}")


def seconds(age: str) -> float:
    """`7d` -> seconds; units s, m, h, d, w. SpecError otherwise."""
    parts = AGE.fullmatch(age.strip())
    if parts is None:
        raise SpecError(f"--older-than {age}: expected a number and a unit, such as 12h, 7d or 2w")
    return float(parts[1]) * SECONDS[parts[2]]


def _show(found: Collection[Manifest], gone: list[Waste], left: list[Waste], known: References, without: bool,
          age: str, whole: bool) -> None:
    groups: dict[str, list[Waste]] = {}
    for one in (*gone, *left):
        groups.setdefault(one.kind, []).append(one)
    if groups:
        table(["what", "count", "size", "last used"],
              [[kind, len(some), size(sum(one.bytes for one in some)), _span(some)] for kind, some in groups.items()],
              right=("count", "size"))
        listed = [*gone, *left] if whole else [*gone, *left][:SHOWN]
        say()
        table(["to be removed", "size", "last used"], [[one.name, size(one.bytes), _day(one.since)] for one in listed],
              right=("size",))
        if len(listed) < len(gone) + len(left):
            say(f"... and {len(gone) + len(left) - len(listed)} more; --dry-run names all")
        say(f"\n{_count([*gone, *left])}, {size(sum(one.bytes for one in (*gone, *left)))}")
    else:
        say("nothing to remove")
    by = "no run was asked; what reports were made from" if without else (
        f"what {known.runs} runs, {known.versions} registered versions and reports refer to")
    say(f"{len(found) - len(gone)} artifacts stay: {by}, and what was made or used within {age}")


def _count(some: Collection[Waste]) -> str:
    artifacts = sum(one.what == pruning.ARTIFACT for one in some)
    return ", ".join(f"{number} {name}{'' if number == 1 else 's'}" for number, name in (
        (artifacts, "artifact"), (len(some) - artifacts, "leftover")) if number) or "nothing"


def _span(some: list[Waste]) -> str:
    days = sorted({_day(one.since) for one in some})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def _day(time_: float) -> str:
    return datetime.fromtimestamp(time_, UTC).strftime("%Y-%m-%d %H:%M")


def _facts(one: Waste) -> dict[str, Any]:
    return {**asdict(one), "since": datetime.fromtimestamp(one.since, UTC).isoformat(timespec="seconds")}


def _agreed() -> bool:
    import typer

    return typer.confirm("\nRemove it?", err=True)
