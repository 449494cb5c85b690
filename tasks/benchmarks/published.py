"""Figures of the papers beside ours: which claim belongs to a row, and in what its conditions differ."""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("published.csv")
MEMORY = ", memory"        # ends the measure of a claim on peak memory


@lru_cache
def claims() -> tuple[dict[str, Any], ...]:
    """Every figure kept: claim_id, paper, source, system, op, backend, measure, n, batch, heads, dtype, value, unit,
    hardware, conditions."""
    with open(FILE, newline="", encoding="utf-8") as file:
        return tuple({**line, "value": float(line["value"]), **{name: int(line[name]) if line[name] else None
                                                               for name in ("n", "batch", "heads")}}
                     for line in csv.DictReader(file))


def about(row: dict[str, Any], naive: str = "naive") -> dict[str, Any] | None:
    """The claim for the same operation, kind of implementation, measure and length; the nearest batch if there are
    several. None where the papers print none."""
    own = [claim for claim in claims()
           if (claim["op"], claim["measure"], claim["n"]) == (row["op"], row["measure"], row["n"])
           and _implementation(claim["backend"], row)]
    if not own or row["backend"] == naive:
        return None
    return min(own, key=lambda claim: (abs((claim["batch"] or 0) - (row["batch"] or 0)), claim["claim_id"]))


def _implementation(wanted: str, row: dict[str, Any]) -> bool:
    """"" is any, "ours" any backend of our own, else that very implementation."""
    peer = "." in row["backend"] or row["backend"] == "released quadratic"
    return not wanted or wanted == row["backend"] or (wanted == "ours" and not peer)


def link(rows: list[dict[str, Any]]) -> None:
    """Fill in `published` of every row that has a counterpart."""
    for row in rows:
        claim = about(row)
        if claim:
            row["published"] = {"claim_id": claim["claim_id"], "value": claim["value"], "unit": claim["unit"],
                                "differs": differs(claim, row)}


def differs(claim: dict[str, Any], row: dict[str, Any]) -> str:
    """What is not the same, theirs first: "NVIDIA H100, here AMD EPYC with 1 thread; batch 16, here 1; ..."."""
    device = f"{row['device']}" + (f" with {row['threads']} thread{'s' * (row['threads'] != 1)}" if row["threads"] else "")
    found = [] if claim["hardware"] in device else [f"{claim['hardware']}, here {device}"]
    found += [f"{name} {claim[name]}, here {row[name]}" for name in ("batch", "heads", "dtype")
              if claim[name] and row[name] and claim[name] != row[name]]
    here = [f"here {row['note']}"] if row["note"] and row["ms"] is not None else []
    return "; ".join([*found, claim["conditions"], *here])


def claim_of(row: dict[str, Any]) -> dict[str, Any] | None:
    """All that is known of the claim that a row is linked to."""
    return None if row["published"] is None else _by_id().get(row["published"]["claim_id"])


def memory(row: dict[str, Any]) -> dict[str, Any] | None:
    """The claim on the peak memory of the same measure, system and length, where a peak was measured."""
    if row["peak_bytes"] is None:
        return None
    wanted = (row["op"], f"{row['measure']}{MEMORY}", row["n"])
    return next((claim for claim in claims() if (claim["op"], claim["measure"], claim["n"]) == wanted), None)


def ratio(row: dict[str, Any]) -> float | None:
    """How many times faster than FlashAttention-2 the paper's figure for this row is, at the same length and batch."""
    claim = claim_of(row)
    if claim is None or claim["unit"] != "ms" or claim["op"] == "sdpa":
        return None
    alike = ("paper", "hardware", "measure", "n", "batch", "dtype", "unit")
    base = next((other for other in claims() if (other["op"], other["backend"]) == ("sdpa", "torch")
                 and all(other[key] == claim[key] for key in alike)), None)
    return None if base is None else base["value"] / claim["value"]


def systems() -> list[str]:
    """Names of everything that the papers measured, each once."""
    return list(dict.fromkeys(claim["system"] for claim in claims()))


def elsewhere(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Claims about measures taken here at lengths or batches that were not, or on memory that was not: for the report's
    second table."""
    linked = {row["published"]["claim_id"] for row in rows if row["published"]}
    linked |= {claim["claim_id"] for claim in map(memory, rows) if claim}
    measures = {row["measure"] for row in rows}
    operations = {row["op"] for row in rows}
    return [claim for claim in claims() if claim["claim_id"] not in linked
            and claim["measure"].removesuffix(MEMORY) in measures and claim["op"] in operations]


def _by_id() -> dict[str, dict[str, Any]]:
    return {claim["claim_id"]: claim for claim in claims()}
