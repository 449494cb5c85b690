"""Published beside measured: which claim belongs to a row of the report, and in what its conditions differ.

A study names them in `claims`: a cell, `workload/architecture/label/column/order`, and one claim id or several with commas
between. A row without an entry says that none was published.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tasks.claims.registry import Claim, load

NONE = "none published"
MILLION = {"M": 1.0, "B": 1000.0}
SHARES = ("percent", "rouge")                   # printed 0 to 100, measured 0 to 1
PADDED = ("left_pad", "left_pad_released")      # with the exact mask, and with the paper's own
STRATEGIES = {"Left-pad": (PADDED, "default"), "Read-2x": (PADDED, "twice"), "Iterate": (("iterate",), "default")}


@dataclass(frozen=True)
class Here:
    """The conditions of a measured figure. None: it has no such thing, or it is not known."""

    parameters: int | None = None
    tokens: int | None = None                   # trained on
    document_tokens: int | None = None
    setting: str = ""
    order: str = ""
    source: str = ""                            # of the text or the questions
    architecture: str = ""


class Published:
    """The claims of one study by cell."""

    def __init__(self, claims: dict[str, str]) -> None:
        """:raises SpecError: an id that is no claim; names the closest"""
        registry = load() if claims else None
        self.cells = {cell: tuple(registry.get(name.strip()) for name in names.split(","))
                      for cell, names in claims.items()}

    def of(self, *cell: str) -> tuple[Claim, ...]:
        """The claims of a cell; none if nothing was published."""
        return self.cells.get("/".join(cell), ())

    def cell(self, *cell: str) -> str:
        """`0.820 (jrt_t4_360m_30b_read_2x_fda512)`, or that none was published."""
        return "; ".join(f"{value(claim)} ({claim.claim_id})" for claim in self.of(*cell)) or NONE

    def cells_of(self, orders: list[str], *cell: str) -> str:
        """The same for a row that shows several orders, each named."""
        found = {order: self.of(*cell, order) for order in orders}
        return "; ".join(f"{order}: {self.cell(*cell, order)}" for order in orders if found[order]) or NONE


def value(claim: Claim) -> str:
    """As it would stand in our tables: shares from 0 to 1, anything else with its unit."""
    if claim.unit in SHARES:
        return f"{claim.value / 100:.3f}"
    return f"{claim.printed} {claim.unit}"


def row(place: list[str], measured: str, claim: Claim, here: Here) -> list[str]:
    """A line of the table of published figures; `place` names the cell."""
    return [*place, measured, value(claim), claim.claim_id, claim.where, claim.system, differs(claim, here)]


COLUMNS = ["task / column", "architecture", "order", "here", "published", "claim", "where", "system there", "what differs"]


def differs(claim: Claim, here: Here) -> str:
    """What is not the same, theirs first: "360 M parameters, here 0.4 M; 30 B training tokens, here 3.0 M; ..."."""
    text = f"{claim.variant}; {claim.condition}"
    parts = [_sizes(text, r"([\d.]+)\s*([MB]) params", "parameters", here.parameters),
             _sizes(text, r"([\d.]+)\s*([MB]) tokens", "training tokens", here.tokens),
             _length(text, here.document_tokens), _strategy(text, here), _text(text, here)]
    return "; ".join([part for part in parts if part]) or "nothing that the claim tells"


def _sizes(text: str, pattern: str, what: str, ours: int | None) -> str:
    found = re.search(pattern, text)
    if not found:
        return ""
    theirs = float(found[1]) * MILLION[found[2]]
    if ours is not None and abs(ours / 1e6 - theirs) <= 0.05 * theirs:
        return ""
    return f"{found[1]} {found[2]} {what}, here {'unknown' if ours is None else amount(ours)}"


def _length(text: str, ours: int | None) -> str:
    found = re.search(r"([\d,]+)(k?)-token documents|length ([\d,]+)", text)
    if not found or ours is None:
        return ""
    theirs = int((found[1] or found[3]).replace(",", "")) * (1000 if found[2] else 1)
    return "" if theirs == ours else f"{theirs} tokens, here {ours}"


def _strategy(text: str, here: Here) -> str:
    found = next((name for name in STRATEGIES if name in text), None)
    if found is None:
        return ""
    strategies, order = STRATEGIES[found]
    ours = here.setting.partition(", ")[0]
    return "" if ours in strategies and here.order == order else f"{found}, here {ours} in the order {here.order}"


def _text(text: str, here: Here) -> str:
    found = re.search(r"Pile|SlimPajama|PG-19", text)
    theirs = f"trained on {found[0]}, " if found else ""
    return f"{theirs}here {here.source}" if here.source else theirs.rstrip(", ")


def amount(number: float) -> str:
    """0.4 M, 3.9 M, 1.3 B."""
    return f"{number / 1e9:.1f} B" if number >= 1e9 else f"{number / 1e6:.1f} M"


def note(figures: str) -> str:
    """A sentence for a table that no claim can stand beside."""
    return f"{figures}: {NONE}."


def link(found: list[dict[str, Any]], published: Published, name: str = "published") -> None:
    """For findings.json: the claims of every entry that has a `cell`."""
    for one in found:
        one[name] = [{"claim_id": claim.claim_id, "value": claim.value, "unit": claim.unit}
                     for claim in published.of(*one.pop("cell"))]
