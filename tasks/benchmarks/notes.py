"""What a reader must know of each measure: how it was taken, what a column means, which figures may be compared."""

from __future__ import annotations

from typing import Any

from tasks.benchmarks.sections import (
    BACKWARD,
    DECODE,
    FIRST_TOKEN,
    FORWARD,
    GENERATION,
    INCREMENTAL,
    MODEL_FORWARD,
    PREFIXES,
    STEP,
)

Row = dict[str, Any]

RATIOS = ("x SDPA, x peer: their time over ours in this run, so above 1 is faster; of several peers the quickest counts. "
          "On a CPU the operations of a point take turns; on a GPU each is timed by itself, one after another.")
APART = "Each is timed by itself, one after another, not in turns."
SYSTEM = ("A model of that mixer alone, random weights, batch 1. x attention model, x vanilla: the time of the same model "
          "with torch's fused attention, or with its scores in memory, over this one's. " + APART)
NOTES = {
    FORWARD: "ms: best repetition, the thread's CPU time on a CPU. error: largest difference from float64 over its largest "
             f"value; a row whose check fails has no time. {RATIOS} Ours read the public layout with padding on; attention "
             "and peers get their own layout before the clock.",
    BACKWARD: f"ms: best repetition of one forward and one backward pass. {RATIOS}",
    DECODE: "One step of one layer's mixing after a context that was not read but made: states of a fixed size cost the "
            f"same whatever they hold. state: bytes held. {APART}",
    STEP: "state counted, FLOPs: what each mixer's `cost` says of one more token; state measured: bytes of the live state. "
          + APART,
    FIRST_TOKEN: f"n, prompt tokens/s: tokens of the prompt. {APART}",
    GENERATION: "n: the prompt and the new tokens. new tokens/s: new tokens over the whole time, the prompt's prefill "
                f"included. {APART}",
    MODEL_FORWARD: f"All logits of n tokens, no gradients. {SYSTEM}",
    PREFIXES: "An estimate of the published simulation, a forward pass over every prefix length from 1 to n and the sum of "
              "their times: only some lengths were run, the times between them follow straight lines (trapezoid rule). It "
              f"is not the speed of a decoder, which keeps a state. {SYSTEM}",
    INCREMENTAL: "An estimate of a decoder's n steps, each from the state of the tokens before it: only some steps were run, "
                 f"the times between them follow straight lines (trapezoid rule). {SYSTEM}",
}
SIZES = ("window", "chunk", "slots", "feature_dim")       # of a mixer's config
FLOOR = ("of floor: the time that the counted bytes take at the bandwidth stated for the memory, over the best repetition; "
         "`kernels.gpu_check` takes the bandwidth of a measured copy and the median instead, so the two shares differ.")


def note(rows: list[Row]) -> str:
    """What to know of the rows of one measure: the measure, then what the rows say of themselves."""
    measure = rows[0]["measure"]
    parts = [NOTES.get(measure, "")]
    if measure in (MODEL_FORWARD, PREFIXES, INCREMENTAL):
        parts += settings([row for row in rows if row["ms"] is not None])
    if any(row["floor_fraction"] is not None for row in rows):
        parts.append(FLOOR)
    return " ".join(part for part in parts if part)


def settings(rows: list[Row]) -> list[str]:
    """The rows' own notes once: what all share, what those of a length share, what a system has of its own."""
    said = [(row, (row["note"] or "").split("; ")) for row in rows]
    everywhere = common([parts for _, parts in said])
    found = [f"Measured: {'; '.join(everywhere)}."] if everywhere else []
    known = set(everywhere)
    for n in dict.fromkeys(row["n"] for row in rows):
        own = [part for part in common([parts for row, parts in said if row["n"] == n]) if part not in known]
        found += [f"n {n:,}: {'; '.join(own)}."] if own else []
        known |= set(own)
    of_systems = {}
    for system in dict.fromkeys(row["op"] for row in rows):
        own = dict.fromkeys(part for row, parts in said if row["op"] == system for part in parts if part not in known)
        of_systems[system] = "; ".join(own) or sizes(system)
    return found + [f"{system}: {text}." for system, text in of_systems.items() if text]


def sizes(system: str) -> str:
    """Window, chunk, slots of a system of LAVO's protocols, as the benchmark asks for them: they are not the same for all,
    and times depend on them. Empty for one that has none or is not known."""
    from models import registry
    from tasks.benchmarks.efficiency import SYSTEMS

    kind, wanted = SYSTEMS.get(system, ("", {}))
    if kind not in registry.kinds():
        return ""
    config = registry.config_class(kind)(**wanted)
    return ", ".join(f"{name} {getattr(config, name)}" for name in SIZES if hasattr(config, name))


def common(lists: list[list[str]]) -> list[str]:
    """What is in every list, in the order of the first."""
    return [part for part in (lists[0] if lists else []) if part and all(part in other for other in lists)]


def contention(rows: list[Row]) -> str:
    """How many rows were disturbed, and whether their ratios still mean something; empty where none was."""
    disturbed = [row for row in rows if row["contended"]]
    if not disturbed:
        return ""
    apart = [row["measure"] for row in disturbed if not in_turns(row)]
    text = f"{len(disturbed)} of {len(rows)} rows are contended: something else used the processor"
    if len(apart) < len(disturbed):
        text += "; those timed in turns (forward, gradients) still compare by their ratios, not by milliseconds"
    if apart:
        text += f"; those timed one after another ({', '.join(dict.fromkeys(apart))}) compare by neither"
    return text


def in_turns(row: Row) -> bool:
    """Whether a row took turns with what its ratios compare it with: operations of one point, on a CPU."""
    return row["measure"] in (FORWARD, BACKWARD) and row["threads"] is not None
