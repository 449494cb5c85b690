"""Timing on a shared CPU: competitors take turns in one process, and the clock counts this thread's own work.

Design: with one thread `time.thread_time` counts CPU time, which a busy neighbour barely moves; wall time is taken
beside it, and a wall/CPU ratio above 1.2 marks the figure as contended. With more threads only wall time means
anything. The minimum of the repetitions is the figure to compare, the median shows the spread.
"""

from __future__ import annotations

import statistics
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CONTENDED = 1.2
WARM_UP = 1  # on top of the correctness check, which runs every function once
MOST_REPETITIONS = 40


@dataclass
class Times:
    """Seconds of every repetition: `work` is CPU time of the thread, or wall time with several threads."""

    work: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        """Seconds of the quickest repetition."""
        return min(self.work)

    @property
    def median(self) -> float:
        """Seconds of the middle repetition."""
        return statistics.median(self.work)

    @property
    def contended(self) -> bool:
        """Whether something else held the processor: half of the repetitions waited a fifth of their time or more."""
        return statistics.median(wall / max(work, 1e-9) for work, wall in zip(self._reference(), self.wall)) > CONTENDED

    def _reference(self) -> list[float]:
        return self.work if self.work != self.wall else [self.best] * len(self.wall)


def take_turns(functions: dict[str, Callable[[], Any]], *, threads: int, seconds: float, fewest: int) -> dict[str, Times]:
    """Run the functions in turns until `seconds` of wall time have passed, each at least `fewest` times after warm-up."""
    for function in functions.values():
        for _ in range(WARM_UP):
            function()
    found = {name: Times() for name in functions}
    clock = time.thread_time if threads == 1 else time.perf_counter
    begun = time.perf_counter()
    for repetition in range(MOST_REPETITIONS):
        if repetition >= fewest and time.perf_counter() - begun > seconds:
            break
        for name, function in functions.items():
            wall, work = time.perf_counter(), clock()
            function()
            work = clock() - work
            wall = time.perf_counter() - wall
            found[name].work.append(work if threads == 1 else wall)
            found[name].wall.append(wall)
    return found


class _Allocations(TorchDispatchMode):
    """Follows the storages that operations allocate while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if id(storage) not in self.live and id(storage) not in given:
                    self._follow(storage)
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        self.live[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.now -= self.live.pop(key)


def peak_bytes(function: Callable[[], Any]) -> int:
    """Most bytes of tensors alive at once that one call allocates, its result included, its inputs not [bytes].

    A product's own workspace is not seen. The count is exact and the same on every machine.
    """
    with _Allocations() as allocations:
        result = function()
    del result
    return allocations.peak
