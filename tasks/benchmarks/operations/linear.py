"""Linear attention with a positive feature map."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tasks.benchmarks.forms import ours, past, read, scores
from tasks.benchmarks.operation import Inputs, Operation, Setting, Step
from tasks.benchmarks.operations.scans import draw, one_token, state_count, synthetic

EPS = 1e-12


def draw_linear(setting: Setting) -> Inputs:
    """q and k after elu + 1."""
    drawn = draw(setting)
    return {**drawn, "q": F.elu(drawn["q"]) + 1, "k": F.elu(drawn["k"]) + 1}


def linear(inputs: Inputs, backend: str) -> torch.Tensor:
    from kernels.linear_scan import linear_scan

    return linear_scan(inputs["q"], inputs["k"], inputs["v"], lengths_B=inputs.get("lengths_B"), eps=EPS, backend=backend)


def linear_formula(inputs: Inputs, at: torch.Tensor) -> torch.Tensor:
    w = scores(inputs["q"], inputs["k"], at) * past(at, inputs["k"].shape[1])
    return read(w, inputs["v"]) / (w.sum(-1).transpose(1, 2)[..., None] + EPS)


def linear_run(inputs: Inputs, backend: str = "auto", state=None):
    from kernels.linear_scan import linear_scan

    return linear_scan(inputs["q"], inputs["k"], inputs["v"], eps=EPS, state=state, backend=backend, return_state=True)


def linear_step_call(parts: dict[str, object]) -> torch.Tensor:
    from kernels.linear_scan import linear_step

    y, parts["state"] = linear_step(parts["q"], parts["k"], parts["v"], parts["state"], eps=EPS)
    return y


OPERATIONS = (
    Operation("linear_scan", "linear attention after elu + 1: keys 64, values 64, normalised", draw_linear,
              ours(linear, "kernels.linear_scan"), linear_formula, state_count(2), lambda inputs: linear(inputs, "naive"),
              needs=("kernels.linear_scan",),
              step=Step(synthetic(draw_linear, linear_run), linear_step_call, one_token(linear_run))),
)
