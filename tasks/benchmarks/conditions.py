"""Under which conditions a preset is measured, shared by all its sections."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tasks.benchmarks import machine
from tasks.timing import MOST_REPETITIONS, Times, on_gpu, take_turns

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Conditions:
    """Device, dtype, threads, seed, and the moment from which on every figure gets less than half of its time."""

    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    seed: int = 0
    deadline: float | None = None      # of time.perf_counter
    operations: tuple[str, ...] = ()   # empty: all of the section
    lengths: tuple[int, ...] = ()      # empty: the section's

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def label(self) -> dict[str, object]:
        """The keys of a row that every measurement shares."""
        return {"dtype": self.dtype, "threads": self.threads if self.device == "cpu" else None,
                "device": machine.name(self.device)}

    def clock(self, functions: Mapping[str, Callable[[], Any]], *, seconds: float, fewest: int, warm_up: int = 0,
              most: int = MOST_REPETITIONS, failed: dict[str, Exception] | None = None) -> dict[str, Times]:
        """Time functions that ran once already: in turns on a CPU, `seconds` of work each, by its own events on a GPU.

        One that raises goes into `failed`; without that it ends them all.
        """
        if self.device == "cuda":
            return on_gpu(functions, failed)
        late = self.deadline is not None and time.perf_counter() > self.deadline
        return take_turns(functions, threads=self.threads, seconds=seconds * 0.4 if late else seconds,
                          fewest=1 if late else fewest, warm_up=warm_up, most=most, failed=failed)

    def wanted(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of a section's names that were asked for."""
        return tuple(name for name in names if not self.operations or name in self.operations)
