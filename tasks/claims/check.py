"""Recomputes what follows from the published figures: derived values, orderings, and the papers' own conflicts.

derived.csv   formula against the stated value; an ordering must hold
conflicts*    pairs `left ?= right`, both sides against verdicts.csv, which keeps what each side gives and whether they
              agree. A conflict may hold pairs that agree: the agreeing one often shows the cause
standing.csv  what is only quoted (proofs, other people's models, outcomes that are no numbers) or implemented here

A computed value agrees with a stated one when they are equal to the stated digits, or when the rounding of the printed
inputs can explain the rest: each input moved by half a unit of its last digit, the movements added up.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.claims import formulas
from tasks.claims.registry import DATA, Registry, half_unit, load, rows

EQUAL, WITHIN, DIFFERS = "equal", "within rounding", "differs"
DERIVED = ("id", "paper", "where", "kind", "statement", "formula", "stated_value", "stated_by")
CONFLICTS = ("id", "paper", "where", "what_the_paper_says", "what_follows", "how_to_recompute")
VERDICTS = ("id", "pair", "left", "right", "verdict")
STANDING = ("id", "standing", "where_or_why")
NOT_COMPUTABLE = "not computable"
TINY = 1e-9


@dataclass(frozen=True)
class Check:
    """One thing recomputed. computed, stated: the two sides; right: whether it came out as it should."""

    id: str
    kind: str                 # a kind of derived.csv, or `conflict`
    paper: str
    where: str
    statement: str
    formula: str
    computed: float
    stated: float
    verdict: str
    right: bool


@dataclass(frozen=True)
class Listed:
    """One thing that is not recomputed, and why."""

    id: str
    paper: str
    where: str
    statement: str
    standing: str             # quoted, implemented, not computable
    why: str


def checks(registry: Registry | None = None, folder: Path = DATA) -> list[Check]:
    """Everything that can be recomputed.

    :raises ArtifactError: a file is missing or malformed
    :raises SpecError: a formula that cannot be read, or names an id that does not exist
    """
    registry = registry or load(folder)
    return [*_derived(registry, folder), *_conflicts(registry, folder)]


def listed(folder: Path = DATA) -> list[Listed]:
    """Everything that is not recomputed: conflicts in words, formulas, outcomes that are no numbers, CEPE."""
    words = [Listed(row["id"], row["paper"], row["where"], row["what_the_paper_says"] + " " + row["what_follows"],
                    NOT_COMPUTABLE, row["how_to_recompute"].removeprefix(NOT_COMPUTABLE).removeprefix(" from the notes")
                    .removeprefix(": ")) for row in _conflict_rows(folder) if not _computable(row)]
    about = _statements(folder)
    return words + [Listed(row["id"], *about[row["id"]], row["standing"], row["where_or_why"])
                    for row in rows(folder / "standing.csv", STANDING)]


def verdict(left: float, right: float, slack: float) -> str:
    """Whether two values are one, once each may be off by `slack` in all."""
    gap, size = abs(left - right), max(abs(left), abs(right), 1.0)
    return EQUAL if gap <= TINY * size else WITHIN if gap <= slack + TINY * size else DIFFERS


def spread(formula: str, registry: Registry) -> tuple[float, float]:
    """A formula's value, and by how much the rounding of its inputs may move it."""
    values = {name: registry.get(name).value for name in formulas.names(formula)}
    base = formulas.value(formula, values)
    moved = 0.0
    for name in values:
        if step := registry.get(name).rounding:
            moved += max(abs(formulas.value(formula, values | {name: values[name] + end}) - base) for end in (step, -step))
    return base, moved


def _derived(registry: Registry, folder: Path) -> list[Check]:
    found = []
    for row in rows(folder / "derived.csv", DERIVED):
        stated = float(row["stated_value"])
        computed, moved = spread(row["formula"], registry)
        if row["kind"] == "ordering":
            said = EQUAL if computed == stated else DIFFERS
        elif abs(computed - stated) <= half_unit(row["stated_value"]) * (1 + TINY) + TINY:
            said = EQUAL
        else:
            said = verdict(computed, stated, half_unit(row["stated_value"]) + moved)
        found.append(Check(row["id"], row["kind"], row["paper"], row["where"], row["statement"], row["formula"], computed,
                           stated, said, said != DIFFERS))
    return found


def _conflicts(registry: Registry, folder: Path) -> list[Check]:
    kept = {(row["id"], int(row["pair"])): row for row in rows(folder / "verdicts.csv", VERDICTS)}
    found = []
    for row in _conflict_rows(folder):
        for number, pair in enumerate(row["how_to_recompute"].split(" ; ") if _computable(row) else (), 1):
            left, right = (spread(side, registry) for side in pair.split("?="))
            said = verdict(left[0], right[0], left[1] + right[1])
            expected = kept.get((row["id"], number))
            same = expected is not None and said == expected["verdict"] and all(
                abs(side[0] - float(expected[name])) <= half_unit(expected[name]) * (1 + TINY)
                for side, name in ((left, "left"), (right, "right")))
            found.append(Check(row["id"], "conflict", row["paper"], row["where"], row["what_follows"], pair.strip(), left[0],
                               right[0], said, same))
    return found


def _conflict_rows(folder: Path) -> list[dict[str, str]]:
    return [row for name in ("conflicts.csv", "conflicts_code.csv") for row in rows(folder / name, CONFLICTS)]


def _computable(row: dict[str, str]) -> bool:
    return not row["how_to_recompute"].startswith(NOT_COMPUTABLE)


def _statements(folder: Path) -> dict[str, tuple[str, str, str]]:
    """id -> paper, place, words, for whatever standing.csv may speak of."""
    found = {claim.claim_id: (claim.paper, claim.source, f"{claim.system}, {claim.task}: {claim.printed} {claim.unit}")
             for claim in load(folder).claims}
    for row in rows(folder / "formulas.csv", ("paper", "source", "formula_id", "formula", "meaning_and_assumptions")):
        found[row["formula_id"]] = (row["paper"], row["source"], row["formula"])
    for row in rows(folder / "non_numeric.csv", ("paper", "source", "entry_id", "system", "variant", "task", "metric",
                                                 "condition", "outcome", "note")):
        found[row["entry_id"]] = (row["paper"], row["source"], f"{row['system']}, {row['task']}, {row['metric']}: "
                                                               f"{row['outcome'].replace('_', ' ')}")
    return found
