"""What the trials of a sweep found, and which value the training takes: the lowest loss on validation rows.

Every trial of one architecture answers the same validation targets, so the order by loss per target is the order by
bits per byte. A trial that diverged, or whose loss is not a number, never wins; of equal losses the smaller value does.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from storage.artifacts import Store
from storage.errors import StageFailed
from tasks.specs import SweepSpec

SUMMARY = "summary.json"


@dataclass(frozen=True)
class Trial:
    """One value and how it did. `loss` [nats per target] is None where the trial diverged; bits per byte as well, and
    where targets stand for no bytes."""

    value: float
    artifact: str
    loss: float | None
    bits_per_byte: float | None
    diverged: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {"value": self.value, "artifact": self.artifact, "validation_loss": self.loss,
                "validation_bits_per_byte": self.bits_per_byte, "diverged": bool(self.diverged)}


def role(value: float) -> str:
    """The input role of the trial at this value: `trial_0.01`."""
    return f"trial_{value!r}"


def label(sweep: SweepSpec, value: float) -> str:
    """`lr 0.01`, for people."""
    name = sweep.field.rpartition(".")[2]
    return f"{'lr' if name.endswith('learning_rate') else name} {value:g}"


def read(store: Store, trials: dict[float, str]) -> list[Trial]:
    """The trials by ascending value, from their summaries. ArtifactError when one is missing."""
    found = []
    for value, artifact in sorted(trials.items()):
        summary = json.loads((store.path(artifact) / SUMMARY).read_text(encoding="utf-8"))
        found.append(Trial(value, artifact, finite(summary.get("validation_loss")),
                           finite(summary.get("validation_bits_per_byte")), summary.get("diverged", "")))
    return found


def finite(value: float | None) -> float | None:
    """The number, or None where there is none."""
    return value if value is not None and math.isfinite(value) else None


def choose(field: str, trials: list[Trial]) -> Trial:
    """The trial with the lowest loss. StageFailed when all diverged."""
    usable = [trial for trial in trials if trial.loss is not None and not trial.diverged]
    if not usable:
        tried = ", ".join(f"{trial.value:g}" for trial in trials)
        raise StageFailed(f"every trial of {field} diverged (tried {tried}); give train.sweep.values that are lower. "
                          f"The first said: {next((t.diverged for t in trials if t.diverged), 'its validation loss is not a number')}")
    return min(usable, key=lambda trial: (trial.loss, trial.value))


def outcome(field: str, trials: list[Trial]) -> tuple[float, dict[str, Any]]:
    """(the chosen value, what a summary says about it): {"field", "chosen", "edge", "trials"}.

    edge: "lowest" or "highest" when the chosen value has no neighbour on one side, so that the best may lie beyond.
    """
    chosen = choose(field, trials).value
    values = [trial.value for trial in trials]
    edge = "lowest" if chosen == min(values) else "highest" if chosen == max(values) else None
    return chosen, {"field": field, "chosen": chosen, "edge": edge, "trials": [trial.as_dict() for trial in trials]}
