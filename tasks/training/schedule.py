"""The learning rate as a share of its peak: a pure function of the step, so that a resumed run needs no scheduler state.

Linear warm-up to the peak, then a cosine (JRT's, timm's form) or a straight line to `final_share` at the last step.
"""

from __future__ import annotations

import math

import torch

from tasks.specs import OptimiserSpec


def rate_share(step: int, steps: int, spec: OptimiserSpec) -> float:
    """Share of the peak rate that update number `step` (from 0) of `steps` uses.

    Warm-up takes min(warmup_steps, steps − 1) updates and ends at 1; the last update uses `final_share`.
    """
    warmup = min(spec.warmup_steps, steps - 1)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    progress = min(1.0, (step - warmup) / max(1, steps - 1 - warmup))
    if spec.schedule == "linear":
        return 1 - (1 - spec.final_share) * progress
    return spec.final_share + (1 - spec.final_share) * 0.5 * (1 + math.cos(math.pi * progress))


def set_rates(optimiser: torch.optim.Optimizer, share: float) -> None:
    """Set every group's rate to its own peak times `share`."""
    for group in optimiser.param_groups:
        group["lr"] = group["peak"] * share
