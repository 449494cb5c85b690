"""Random numbers by name: every draw is a function of (seed, number, purpose), never of what was drawn before."""

from __future__ import annotations

import numpy as np

PURPOSES = ("row", "validation row", "batch order", "sample", "validation batch")


def generator(seed: int, number: int, purpose: str) -> np.random.Generator:
    """The generator of one row, window or batch; counter-based, so that any may be made at any time."""
    counter = np.array([0, 0, 0, PURPOSES.index(purpose)], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=np.array([seed, number], dtype=np.uint64), counter=counter))
