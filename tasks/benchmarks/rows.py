"""One row of `timings.json`: flat, the same keys whatever was measured; null where a key has no meaning.

`ms` and its companions are None where the check is red. `ratio_to_sdpa` and `ratio_to_peer` are the other's time over
this row's: above 1, this row is faster.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from tasks.timing import Times

KEYS: dict[str, Any] = {
    "op": None,                # operation, model or mixer
    "backend": None,           # implementation: ours by form, or a peer's name
    "measure": "forward",      # forward, forward and backward, decode step, time to first token, ...
    "n": None,                 # tokens of a row; of a decode step the context
    "batch": None,             # rows
    "heads": None,
    "dtype": None,
    "threads": None,
    "device": None,            # as people name it
    "ms": None,                # best repetition
    "ms_median": None, "p20": None, "p80": None,
    "wall_ms": None,           # wall time of the best repetition
    "repetitions": 0,
    "error": None,             # largest difference from the truth over the truth's largest value; None: not finite, or no result
    "tolerance": None,
    "truth": None,             # what it was compared with
    "ratio_to_sdpa": None, "ratio_to_peer": None, "peer": None,
    "ratio_to_vanilla": None,  # LAVO's protocols: explicit softmax attention at the same length
    "tokens_per_second": None,
    "peak_bytes": None,
    "state_bytes": None,       # as counted; of decode steps, of what is held
    "state_bytes_measured": None,
    "bytes": None, "flops": None,   # counted by formula
    "floor_fraction": None,    # GPU: the time that `bytes` take at the memory's bandwidth, over ms
    "contended": None,
    "published": None,         # {claim_id, value, unit, differs} of a paper's figure
    "note": None,
}


class Red(Exception):
    """A result that its check refuses; the message says why."""


TIMED = ("ms", "ms_median", "p20", "p80", "wall_ms", "repetitions", "contended")


def row(**known: Any) -> dict[str, Any]:
    """A row with these keys known. KeyError for one that is not in `KEYS`."""
    unknown = known.keys() - KEYS.keys()
    if unknown:
        raise KeyError(f"not a key of a timing row: {sorted(unknown)}")
    return {**KEYS, **known}


def timed(times: Times) -> dict[str, Any]:
    """The keys that a measurement fills."""
    return {"ms": times.best * 1e3, "ms_median": times.median * 1e3, "p20": times.percentile(20) * 1e3,
            "p80": times.percentile(80) * 1e3, "wall_ms": min(times.wall) * 1e3, "repetitions": len(times.work),
            "contended": times.contended}


def relative(got: torch.Tensor, truth: torch.Tensor) -> float:
    """max|a - b| / max|b|; infinite if anything is not finite. Red if the shapes differ."""
    if got.shape != truth.shape:
        raise Red(f"a result of shape {tuple(got.shape)}, expected {tuple(truth.shape)}")
    if truth.numel() == 0:
        return 0.0
    error = float((got.double() - truth.double()).abs().max() / truth.abs().max().clamp(min=1e-300))
    return math.inf if math.isnan(error) else error


def shown(error: float) -> float | None:
    """An error as JSON can say it: None for what is not finite."""
    return error if math.isfinite(error) else None
