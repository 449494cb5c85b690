"""`reread claims check|list|show`: the published figures, and what follows from them."""

from __future__ import annotations

import difflib
from dataclasses import asdict
from typing import Any

from flows.commands.output import document, say, table
from storage.errors import SpecError, StageFailed


def check_claims(json: bool = False) -> None:
    """Recompute derived values, orderings and conflicts; list what is only quoted.

    :raises StageFailed: exit code 1: something does not come out as it should; names it
    """
    from tasks.claims import check

    found, listed = check.checks(), check.listed()
    wrong = [one for one in found if not one.right]
    if json:
        document({"checks": [asdict(one) for one in found], "listed": [asdict(one) for one in listed],
                  "wrong": [one.id for one in wrong]})
    else:
        _tell(found, listed)
    if wrong:
        first = wrong[0]
        raise StageFailed(f"{len(wrong)} of {len(found)} do not recompute: {', '.join(dict.fromkeys(one.id for one in wrong))}. "
                          f"{first.id}: {first.formula} gives {first.computed:.6g}, against {first.stated:.6g} ({first.verdict})")


def list_claims(pattern: str = "", json: bool = False) -> None:
    """Claims that hold every word of `pattern` anywhere; all without one.

    :raises SpecError: no claim does
    """
    from tasks.claims.registry import load

    found = load().matching(pattern)
    if not found:
        raise SpecError(f"no claim holds {pattern!r}; words are looked for in ids, systems, tasks, metrics and conditions")
    if json:
        document([asdict(claim) for claim in found])
        return
    table(["claim", "system", "task", "metric", "value", "unit", "where"],
          [[claim.claim_id, claim.system, claim.task, claim.metric, claim.printed, claim.unit, claim.where]
           for claim in found], right=("value",))
    say(f"{len(found)} claims, as two study notes of the papers report them; none was measured here")


def show_claim(claim_id: str, json: bool = False) -> None:
    """One claim, conflict, derived value or formula, and what speaks of it.

    :raises SpecError: there is nothing of that id; names the closest
    """
    from tasks.claims import check, formulas
    from tasks.claims.registry import load

    registry, found, listed = load(), check.checks(), check.listed()
    about: dict[str, Any] = {}
    if claim_id in registry:
        about["claim"] = asdict(registry.get(claim_id))
    about["checks"] = [asdict(one) for one in found if one.id == claim_id]
    about["listed"] = [asdict(one) for one in listed if one.id == claim_id]
    about["used_in"] = list(dict.fromkeys(
        one.id for one in found for side in one.formula.split("?=") if claim_id in formulas.names(side)))
    if not any(about.values()):
        known = [*(claim.claim_id for claim in registry.claims), *(one.id for one in (*found, *listed))]
        close = difflib.get_close_matches(claim_id, known, n=3, cutoff=0.6)
        raise SpecError(f"there is no claim {claim_id!r}" + (f"; did you mean {', '.join(close)}?" if close else ";")
                        + " `reread claims list` shows those there are")
    if json:
        document(about)
    else:
        _show(about)


def _tell(found: list, listed: list) -> None:
    derived = [one for one in found if one.kind != "conflict"]
    conflicts = [one for one in found if one.kind == "conflict"]
    for title, rows in (("Follows from what is printed", derived), ("Where a paper disagrees", conflicts)):
        table(["", "id", "kind", "one side", "other side", "verdict", "about"],
              [["ok" if one.right else "WRONG", one.id, one.kind, f"{one.computed:.6g}", f"{one.stated:.6g}", one.verdict,
                one.statement] for one in rows], right=("one side", "other side"), title=title)
        say()
    table(["id", "standing", "why, or where", "what"], [[one.id, one.standing, one.why, one.statement] for one in listed],
          title="Not recomputed")
    right = sum(one.right for one in found)
    say(f"\n{right} of {len(found)} recompute: {sum(one.right for one in derived)} of {len(derived)} derived values and "
        f"orderings, {sum(one.right for one in conflicts)} of {len(conflicts)} pairs of conflicts; "
        + ", ".join(f"{sum(one.standing == name for one in listed)} {name}"
                    for name in dict.fromkeys(one.standing for one in listed)))


def _show(about: dict[str, Any]) -> None:
    for name, value in about.get("claim", {}).items():
        if value not in ("", None) and name != "value":
            say(f"{name:<17} {value}")
    for one in (*about["checks"], *about["listed"]):
        for name, value in one.items():
            say(f"{name:<17} {value}")
        say()
    if about["used_in"]:
        say(f"{'used in':<17} {', '.join(about['used_in'])}")
