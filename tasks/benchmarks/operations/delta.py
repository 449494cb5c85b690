"""Recurrences without an affordable closed form: the delta rule, and Mamba-1's selective scan."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tasks.benchmarks.forms import WIDTH, fla_naive, ours
from tasks.benchmarks.operation import Count, Form, Inputs, Operation, Setting
from tasks.benchmarks.operations.scans import draw, extra, naive_peer, state_count

STATES = 16              # N of Mamba-1


def draw_delta(setting: Setting) -> Inputs:
    """Keys of length 1, writing strengths in (0, 1)."""
    drawn = draw(setting)
    return {**drawn, "k": F.normalize(drawn["k"].float(), dim=-1).to(setting.dtype),
            "beta": extra(setting, setting.n, setting.heads).sigmoid()}


def delta(inputs: Inputs, backend: str) -> torch.Tensor:
    from kernels.delta_scan import delta_scan

    return delta_scan(inputs["q"], inputs["k"], inputs["v"], inputs["beta"], lengths_B=inputs.get("lengths_B"),
                      backend=backend)


def fla_delta(inputs: Inputs) -> torch.Tensor:
    """fla's q is scaled outside, as here."""
    return fla_naive("delta_rule").delta_rule_chunkwise(*(inputs[name] for name in ("q", "k", "v", "beta")))[0]


def draw_selective(setting: Setting) -> Inputs:
    """heads x 64 channels, 16 states each, step sizes after softplus."""
    D, n = setting.heads * WIDTH, setting.n
    generator = setting.generator()
    x, delta_in = setting.draw(generator, n, D), setting.draw(generator, n, D)
    rates = -torch.arange(1, STATES + 1, dtype=torch.float32).expand(D, STATES)
    return {"x": x, "delta": F.softplus(delta_in.float() - 4).to(setting.dtype),
            "A": rates.to(setting.device, setting.dtype).contiguous(),
            "input": setting.draw(generator, n, STATES), "output": setting.draw(generator, n, STATES), **setting.lengths()}


def selective(inputs: Inputs, backend: str) -> torch.Tensor:
    from kernels.selective_scan import selective_scan

    return selective_scan(*(inputs[name] for name in ("x", "delta", "A", "input", "output")),
                          lengths_B=inputs.get("lengths_B"), backend=backend)


def chunked_truth(call) -> Form:
    """For recurrences without an affordable closed form: our chunked form in float64, which `prove` holds against the
    naive one."""
    return lambda inputs, at: call(inputs, "chunked")[:, at]


def selective_count(setting: Setting) -> Count:
    tokens, D = setting.batch * setting.n, setting.heads * WIDTH
    return Count(tokens * D * STATES * 6, tokens * (3 * D + 2 * STATES) * setting.dtype.itemsize)


OPERATIONS = (
    Operation("delta_scan", "delta rule (DeltaNet): keys 64 of length 1, values 64", draw_delta,
              (*ours(delta, "kernels.delta_scan", fast=("fla",)),
               naive_peer("fla.delta_rule_chunkwise", fla_delta, "delta_rule", time_first=False)),
              chunked_truth(delta), state_count(3, 1), lambda inputs: delta(inputs, "naive"),
              leaves=("q", "k", "v", "beta"), needs=("kernels.delta_scan",)),
    Operation("selective_scan", f"selective scan (Mamba-1): heads x 64 channels, {STATES} states each", draw_selective,
              ours(selective, "kernels.selective_scan", fast=("mamba_ssm",)), chunked_truth(selective), selective_count,
              lambda inputs: selective(inputs, "naive"), leaves=("x", "delta", "A", "input", "output"), shared=("A",),
              needs=("kernels.selective_scan",)),
)
