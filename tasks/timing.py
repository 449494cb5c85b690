"""Timing on a shared machine: competitors take turns in one process, and the clock counts this thread's own work.

Design: on a CPU with one thread `time.thread_time` counts CPU time, which a busy neighbour barely moves; wall time is
taken beside it, and a wall/CPU ratio above 1.2 marks the figure as contended. With more threads only wall time means
anything. On a GPU the device's own events count (triton's `do_bench`). The minimum of the repetitions is the figure to
compare; the median and the 20th and 80th percentile show the spread.
"""

from __future__ import annotations

import statistics
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CONTENDED = 1.2
MOST_REPETITIONS = 40
GPU_WARM_UP_MS, GPU_REPEAT_MS = 50, 200


@dataclass
class Times:
    """Seconds of every repetition: `work` is CPU time of the thread, or wall time with several threads or a GPU."""

    work: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    device: str = "cpu"

    @property
    def best(self) -> float:
        """Seconds of the quickest repetition."""
        return min(self.work)

    @property
    def median(self) -> float:
        """Seconds of the middle repetition."""
        return statistics.median(self.work)

    def percentile(self, percent: float) -> float:
        """Seconds below which `percent` of the repetitions stay, between neighbours by a straight line."""
        ordered = sorted(self.work)
        place = (len(ordered) - 1) * percent / 100
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    @property
    def contended(self) -> bool | None:
        """Whether something else held the processor: half of the repetitions waited a fifth of their time or more.

        None on a GPU, whose events do not tell.
        """
        if self.device != "cpu":
            return None
        return statistics.median(wall / max(work, 1e-9) for work, wall in zip(self._reference(), self.wall)) > CONTENDED

    def _reference(self) -> list[float]:
        return self.work if self.work != self.wall else [self.best] * len(self.wall)


def take_turns(functions: Mapping[str, Callable[[], Any]], *, threads: int, seconds: float, fewest: int,
               warm_up: int = 1, most: int = MOST_REPETITIONS, failed: dict[str, Exception] | None = None,
               ) -> dict[str, Times]:
    """Run the functions in turns until each has worked for `seconds`, but `fewest` to `most` repetitions.

    So a dear one gets few turns and a cheap one many, spread over the same while. One that works for less than a tenth
    of its wall time (it sleeps, or is kept waiting) is let go after ten times as long. One that raises goes into
    `failed` and out of the result; without `failed` it ends them all.
    """
    failed, passed_on = ({}, True) if failed is None else (failed, False)
    for name, function in functions.items():
        with _caught(name, failed, passed_on):
            for _ in range(warm_up):
                function()
    found = {name: Times() for name in functions}
    clock = time.thread_time if threads == 1 else time.perf_counter
    running = {name: function for name, function in functions.items() if name not in failed}
    while running:
        for name, function in list(running.items()):
            with _caught(name, failed, passed_on):
                wall, work = time.perf_counter(), clock()
                function()
                work = clock() - work
                wall = time.perf_counter() - wall
            if name in failed:
                del running[name]
                continue
            own = found[name]
            own.work.append(work if threads == 1 else wall)
            own.wall.append(wall)
            if len(own.wall) >= most or (len(own.wall) >= fewest and max(sum(own.work), sum(own.wall) / 10) >= seconds):
                del running[name]
    return {name: times for name, times in found.items() if name not in failed}


def on_gpu(functions: Mapping[str, Callable[[], Any]], failed: dict[str, Exception] | None = None) -> dict[str, Times]:
    """The same by the GPU's own events, the L2 cache emptied before each call (triton's do_bench)."""
    from triton.testing import do_bench

    found = {}
    for name, function in functions.items():
        with _caught(name, failed, failed is None):
            every = do_bench(function, warmup=GPU_WARM_UP_MS, rep=GPU_REPEAT_MS, return_mode="all")
            found[name] = Times([ms / 1e3 for ms in every], [ms / 1e3 for ms in every], device="cuda")
    return found


@contextmanager
def _caught(name: str, failed: dict[str, Exception] | None, passed_on: bool) -> Iterator[None]:
    try:
        yield
    except Exception as problem:
        if passed_on:
            raise
        failed[name] = problem


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


def observed(function: Callable[[], Any], device: str = "cpu") -> tuple[Any, int, float]:
    """(result, peak bytes, wall seconds) of one call.

    Peak: most bytes of tensors alive at once that the call allocates, its result included, its inputs not. On a CPU
    the count is exact and the same on every machine, without a product's own workspace; on a GPU the allocator's.
    """
    begun = time.perf_counter()
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = function()
        torch.cuda.synchronize()
        return result, torch.cuda.max_memory_allocated() - before, time.perf_counter() - begun
    with _Allocations() as allocations:
        result = function()
    return result, allocations.peak, time.perf_counter() - begun


def peak_bytes(function: Callable[[], Any]) -> int:
    """Peak bytes of one call on the CPU; see `observed`."""
    return observed(function)[1]
