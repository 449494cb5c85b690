"""What a run tells the world while it trains: curve.jsonl, tracking, the progress line. And the means it reports.

curve.jsonl has one JSON object a line, in step order: step, tokens and supervised tokens so far, then `loss` and
`loss/<term>` [nats, means since the line before], learning_rate, gradient_norm (before clipping), tokens_per_second,
memory_bytes; at validations validation/loss [nats per target] and validation/bits_per_byte.
"""

from __future__ import annotations

import json
import math
import os
import resource
from pathlib import Path

import torch

from storage.progress import Progress
from storage.tracking import NoTracking, Tracking

CURVE = "curve.jsonl"


class Recorder:
    """Writes points. A worker other than the first gets `silent=True` and writes nothing."""

    def __init__(self, folder: str | Path, tracking: Tracking | NoTracking, run_id: str, bar: Progress | None,
                 silent: bool = False) -> None:
        self.path, self.tracking, self.run_id, self.bar, self.silent = (
            Path(folder) / CURVE, tracking, run_id, bar, silent)

    def rewind(self, step: int) -> None:
        """Forget what was written after `step`: those steps will be done again."""
        if self.silent:
            return
        lines = self.path.read_text().splitlines() if self.path.is_file() else []
        kept = [line for line in lines if _step_of(line) <= step]
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_text("".join(line + "\n" for line in kept))
        os.replace(partial, self.path)

    def point(self, point: dict[str, float]) -> None:
        """One line of the curve; the same values go to tracking by step and by tokens."""
        if self.silent:
            return
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(point) + "\n")
        self.tracking.metrics(self.run_id, {name: value for name, value in point.items()
                                            if name not in ("step", "tokens")}, point["step"], point["tokens"])
        if self.bar is not None:
            named = {"loss": "loss", "validation/bits_per_byte": "validation bits/byte"}
            texts = [f"{label} {point[name]:.3f}" for name, label in named.items() if name in point]
            if texts:
                self.bar.note(", ".join(texts))

    def advance(self, steps: int = 1) -> None:
        """Move the progress line."""
        if self.bar is not None and not self.silent:
            self.bar.advance(steps)


def _step_of(line: str) -> float:
    """The step of a line; a line that a kill cut off counts as being in the future."""
    try:
        return json.loads(line)["step"]
    except ValueError:
        return math.inf


class Means:
    """Means of the losses since the last point, as numbers that a checkpoint can carry."""

    def __init__(self, state: dict | None = None) -> None:
        state = state or {"steps": 0, "sums": {}, "tokens": 0, "seconds": 0.0}
        self.steps, self.sums = state["steps"], dict(state["sums"])
        self.tokens, self.seconds = state["tokens"], state["seconds"]

    def add(self, losses: dict[str, float], tokens: int, seconds: float) -> None:
        self.steps += 1
        self.tokens += tokens
        self.seconds += seconds
        for name, value in losses.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def take(self) -> dict[str, float]:
        """The means and the tokens per second; the count starts again."""
        values = {name: total / self.steps for name, total in self.sums.items()}
        values["tokens_per_second"] = self.tokens / max(self.seconds, 1e-9)
        self.__init__()
        return values

    def state(self) -> dict:
        return {"steps": self.steps, "sums": dict(self.sums), "tokens": self.tokens, "seconds": self.seconds}


def memory_bytes(device: torch.device) -> int:
    """Peak memory so far: of the device on a GPU, of the process (resident) on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
