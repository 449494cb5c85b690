"""Why a row has no time: its check is red, or a call failed. Neither takes another row's figures with it."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from storage import logs
from tasks.benchmarks import registry
from tasks.benchmarks.rows import KEYS, TIMED, Red, shown

FAILED, MEMORY = "could not run", "could not run: out of memory"
LONGEST = 300          # characters of a note

log = logs.get("tasks.bench")


class Above(Red):
    """The row's error says it all."""


def hold(found: dict[str, Any], error: float, truth: str | None = None) -> None:
    """Enter an error and what it was measured against. Red if it is above the row's tolerance or not finite."""
    found |= {"error": shown(error), "truth": truth or found["truth"]}
    if not math.isfinite(error):
        raise Red("not finite")
    if not error <= found["tolerance"]:
        raise Above(f"error {error:.1e} is above {found['tolerance']:.0e}")


def attempt(found: dict[str, Any], work: Callable[[], Any], device: str = "cpu") -> bool:
    """Do what fills the row. Where that raises, the row keeps no time, and a note names the exception."""
    try:
        work()
    except Exception as problem:  # noqa: BLE001 - one broken call must not take the others' figures with it
        refuse(found, problem, device)
        return False
    return True


def refuse(found: dict[str, Any], problem: Exception, device: str = "cpu") -> None:
    """A row without a time. An error above the tolerance stays and speaks for itself."""
    text = note(problem, device)
    log.error("%s (%s), %s at %s: %s; no time is reported", found["op"], found["backend"], found["measure"], found["n"], text)
    found |= {name: KEYS[name] for name in TIMED}
    if not isinstance(problem, Above):
        found |= {"error": found["error"] if isinstance(problem, Red) else None, "note": text}


def note(problem: Exception, device: str = "cpu") -> str:
    """One line about what a call raised. On a GPU, memory that the failed call held is given back."""
    traceback.clear_frames(problem.__traceback__)
    if device == "cuda":
        with suppress(RuntimeError):
            torch.cuda.empty_cache()
    text = str(problem).strip().partition("\n")[0]
    if isinstance(problem, Red):
        return text
    short = isinstance(problem, MemoryError | torch.OutOfMemoryError) or "not enough memory" in text
    return f"{MEMORY if short else FAILED}: {type(problem).__name__}: {text}"[:LONGEST]


def ran(row: dict[str, Any]) -> bool:
    """Whether a row's call came to a result, right or wrong."""
    return row["ms"] is not None or not (row["note"] or "").startswith(FAILED)


def broken(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of ours that should have a time and have none: a peer may fail, and memory may be short."""
    return [row for row in rows if row["ms"] is None and not registry.is_peer(row["op"], row["backend"])
            and not (row["note"] or "").startswith(MEMORY)]


def reason(row: dict[str, Any]) -> str:
    """Why a row has no time, in a few words."""
    if row["error"] is None:
        return row["note"] or "not finite"
    return f"error {row['error']:.1e} above {row['tolerance']:.0e}"
