"""Causal Taylor linear attention (Based), beside flash-linear-attention's forms of it."""

from __future__ import annotations

from dataclasses import replace

import torch

from kernels.taylor import TaylorState, empty_state, expanded_width, taylor, taylor_step
from tasks.benchmarks.forms import FEATURES, WIDTH, fla_naive, head_first, ours, past, read, scores, swapped
from tasks.benchmarks.operation import Count, Implementation, Inputs, Operation, Setting, Step

EPS = 1e-12
DRAWN = 64        # tokens behind a synthetic state; its content does not matter to the cost


def draw(setting: Setting) -> Inputs:
    generator = setting.generator()
    n, heads = setting.n, setting.heads
    return {"q": setting.draw(generator, n, heads, FEATURES), "k": setting.draw(generator, n, heads, FEATURES),
            "v": setting.draw(generator, n, heads, WIDTH), **setting.lengths()}


def call(inputs: Inputs, backend: str) -> torch.Tensor:
    return taylor(inputs["q"], inputs["k"], inputs["v"], lengths_B=inputs.get("lengths_B"), backend=backend)


def weights(q: torch.Tensor, k: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """1 + s + s^2 / 2 (B, H, S, n), s = q·k / sqrt(16)."""
    s = scores(q, k, at) * FEATURES**-0.5
    return 1 + s + s * s / 2


def formula(inputs: Inputs, at: torch.Tensor) -> torch.Tensor:
    w = weights(inputs["q"], inputs["k"], at) * past(at, inputs["k"].shape[1])
    return read(w, inputs["v"]) / (w.sum(-1).transpose(1, 2)[..., None] + EPS)


def count(setting: Setting) -> Count:
    """4 F (V + 1) a token and head: write and read of the sums, F = 153 symmetric features."""
    tokens = setting.batch * setting.heads * setting.n
    F = expanded_width(FEATURES)
    return Count(tokens * 4 * F * (WIDTH + 1), tokens * 2 * (FEATURES + WIDTH) * setting.dtype.itemsize)


# ------------------------------------------------------------------------------------------------------------- peers
def naive_chunk(inputs: Inputs) -> torch.Tensor:
    return fla_naive("based").naive_chunk_based(inputs["q"], inputs["k"], inputs["v"])


def naive_parallel(inputs: Inputs) -> torch.Tensor:
    return fla_naive("based").naive_parallel_based(inputs["q"], inputs["k"], inputs["v"])


def fla_parallel(inputs: Inputs) -> torch.Tensor:
    """JRT Table 5's "Triton (FLA)", a quadratic kernel."""
    from fla.ops.based import parallel_based

    return parallel_based(inputs["q"], inputs["k"], inputs["v"])


def fla_fused(inputs: Inputs) -> torch.Tensor:
    from fla.ops.based import fused_chunk_based

    return fused_chunk_based(inputs["q"], inputs["k"], inputs["v"])


def naive_peer(name: str, form, takes) -> Implementation:
    return Implementation(name, form, ours=False, arrange=head_first, restore=swapped, needs=("fla", "einops"),
                          devices=("cpu",), takes=takes, note="eps 1e-6, no padding")


def triton_peer(name: str, form) -> Implementation:
    return Implementation(name, form, ours=False, needs=("fla", "triton"), devices=("cuda",),
                          note="eps 1e-6, no padding")


# ------------------------------------------------------------------------------------------------------- decode step
def sums(setting: Setting) -> tuple[dict[str, object], int]:
    """A state as n tokens leave it: that of 64 drawn tokens, scaled."""
    generator = setting.generator()
    short = draw(replace(setting, n=DRAWN, padded=False))
    empty = empty_state(setting.batch, setting.heads, FEATURES, WIDTH, setting.dtype, setting.device)
    _, state = taylor(short["q"], short["k"], short["v"], state=empty, return_state=True)
    state = TaylorState(*(x * (setting.n / DRAWN) for x in state))
    token = {name: setting.draw(generator, setting.heads, width)
             for name, width in (("q", FEATURES), ("k", FEATURES), ("v", WIDTH))}
    return {**token, "state": state}, sum(x.nbytes for x in state)


def step(parts: dict[str, object]) -> torch.Tensor:
    y, parts["state"] = taylor_step(parts["q"], parts["k"], parts["v"], parts["state"], scale=FEATURES**-0.5, eps=EPS)
    return y


def step_truth(parts: dict[str, object]) -> torch.Tensor:
    return taylor(*(parts[name][:, None] for name in ("q", "k", "v")), state=parts["state"], backend="naive")[:, 0]


def twice(setting: Setting) -> Setting:
    return replace(setting, n=2 * setting.n)


OPERATIONS = (
    Operation(
        "taylor", "causal Taylor linear attention (Based): keys 16, values 64, normalised",
        draw,
        (*ours(call, "kernels.taylor"),
         naive_peer("fla.naive_chunk_based", naive_chunk, lambda setting: setting.n % 256 == 0 and setting.n <= 4096),
         naive_peer("fla.naive_parallel_based", naive_parallel, lambda setting: setting.n <= 2048),
         triton_peer("fla.parallel_based", fla_parallel), triton_peer("fla.fused_chunk_based", fla_fused)),
        formula, count, lambda inputs: call(inputs, "naive"), needs=("kernels.taylor",),
        step=Step(sums, step, step_truth)),
    Operation(
        "jrt_prompt", "JRT-Prompt: the same over a text that is read twice, 2 n tokens",
        lambda setting: draw(twice(setting)), ours(call, "kernels.taylor")[:-1],
        formula, lambda setting: count(twice(setting)), needs=("kernels.taylor",), stretch=2),
)
