"""Gated scans, one decay a head or one a channel; and what the files of other recurrences share with them."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from tasks.benchmarks.forms import WIDTH, fla_naive, head_first, ours, past, read, scores, swapped
from tasks.benchmarks.operation import Count, Form, Implementation, Inputs, Operation, Setting, Step

GATE = 16                # GLA divides the log-sigmoid of a gate by this
DRAWN = 64               # tokens behind a synthetic state


def draw(setting: Setting) -> Inputs:
    """q, k, v of 64."""
    generator = setting.generator()
    return {**{name: setting.draw(generator, setting.n, setting.heads, WIDTH) for name in ("q", "k", "v")},
            **setting.lengths()}


def extra(setting: Setting, *shape: int) -> torch.Tensor:
    """Further numbers, of a stream of their own."""
    return setting.draw(setting.generator(1), *shape)


def floor_bytes(setting: Setting, per_token_head: float) -> int:
    return int(setting.batch * setting.heads * setting.n * per_token_head * setting.dtype.itemsize)


# ------------------------------------------------------------------------------------------------------- gated scans
def draw_head(setting: Setting) -> Inputs:
    return {**draw(setting), "g": F.logsigmoid(extra(setting, setting.n, setting.heads)) / GATE}


def draw_channel(setting: Setting) -> Inputs:
    return {**draw(setting), "g": F.logsigmoid(extra(setting, setting.n, setting.heads, WIDTH)) / GATE}


def gated(inputs: Inputs, backend: str) -> torch.Tensor:
    from kernels.gated_scan import gated_scan

    return gated_scan(inputs["q"], inputs["k"], inputs["v"], inputs["g"], lengths_B=inputs.get("lengths_B"),
                      backend=backend)


def head_formula(inputs: Inputs, at: torch.Tensor) -> torch.Tensor:
    """y_s = K^-1/2 sum_j exp(G_s - G_j) q_s·k_j v_j, G the running sum of the log-decays."""
    total = inputs["g"].cumsum(1).transpose(1, 2)
    seen = past(at, total.shape[-1])
    decay = (total[:, :, at, None] - total[:, :, None]).masked_fill(~seen, float("-inf")).exp()
    return read(scores(inputs["q"], inputs["k"], at) * decay, inputs["v"]) * WIDTH**-0.5


def channel_formula(inputs: Inputs, at: torch.Tensor) -> torch.Tensor:
    """The same with a decay of its own for every channel, query after query."""
    total = inputs["g"].cumsum(1)
    found = []
    for s in at.tolist():
        keys = inputs["k"][:, :s + 1] * (total[:, s:s + 1] - total[:, :s + 1]).exp()
        w = torch.einsum("bhk,bjhk->bhj", inputs["q"][:, s], keys)
        found.append(torch.einsum("bhj,bjhv->bhv", w, inputs["v"][:, :s + 1]))
    return torch.stack(found, 1) * WIDTH**-0.5


def fla_simple(inputs: Inputs) -> torch.Tensor:
    return fla_naive("simple_gla").naive_chunk_simple_gla(*(inputs[name] for name in ("q", "k", "v", "g")))[0]


def fla_gla(inputs: Inputs) -> torch.Tensor:
    return fla_naive("gla").naive_recurrent_gla(*(inputs[name] for name in ("q", "k", "v", "g")))[0]


# ------------------------------------------------------------------------------------------------------ decode steps
def synthetic(draw_inputs, run) -> object:
    """prepare of a Step: the state that 64 drawn tokens leave, and one token more."""
    def prepare(setting: Setting) -> tuple[dict[str, object], int]:
        short = draw_inputs(replace(setting, n=DRAWN, padded=False))
        _, state = run(short)
        token = {name: x[:, 0] if x.dim() > 2 else x for name, x in draw_inputs(replace(setting, n=1, padded=False)).items()}
        tensors = state if isinstance(state, tuple) else (state,)
        return {**token, "state": state}, sum(x.nbytes for x in tensors)
    return prepare


def gated_run(inputs: Inputs, backend: str = "auto", state=None):
    from kernels.gated_scan import gated_scan

    return gated_scan(*(inputs[name] for name in ("q", "k", "v", "g")), state=state, backend=backend, return_state=True)


def gated_step_call(parts: dict[str, object]) -> torch.Tensor:
    from kernels.gated_scan import gated_step

    y, parts["state"] = gated_step(*(parts[name] for name in ("q", "k", "v", "g")), parts["state"])
    return y


def one_token(run):
    """truth of a Step: the naive form over one token from the same state."""
    def truth(parts: dict[str, object]) -> torch.Tensor:
        token = {name: x[:, None] for name, x in parts.items() if name != "state"}
        return run(token, "naive", parts["state"])[0][:, 0]
    return truth


# ------------------------------------------------------------------------------------------------------------- table
def state_count(reads_and_writes: int, extra_bytes: float = 0.0):
    """`reads_and_writes` multiply-adds for each entry of the 64 x 64 state."""
    def count(setting: Setting) -> Count:
        tokens = setting.batch * setting.heads * setting.n
        return Count(tokens * 2 * reads_and_writes * WIDTH * WIDTH, floor_bytes(setting, 4 * WIDTH + extra_bytes))
    return count


def naive_peer(name: str, form: Form, operation: str, time_first: bool = True) -> Implementation:
    layout = {} if time_first else {"arrange": head_first, "restore": swapped}
    return Implementation(name, form, ours=False, needs=("fla", "einops"), devices=("cpu",),
                          takes=lambda setting: setting.n <= 4096 and setting.n % 64 == 0, note="no padding", **layout)


OPERATIONS = (
    Operation("gated_scan", "gated scan, one decay a head and token (RetNet, Mamba-2): keys 64, values 64", draw_head,
              (*ours(gated, "kernels.gated_scan", fast=("fla",)),
               naive_peer("fla.naive_chunk_simple_gla", fla_simple, "simple_gla")),
              head_formula, state_count(2, 1), lambda inputs: gated(inputs, "naive"), leaves=("q", "k", "v", "g"),
              needs=("kernels.gated_scan",), step=Step(synthetic(draw_head, gated_run), gated_step_call, one_token(gated_run))),
    Operation("gated_scan_channel", "gated scan, one decay a channel and token (GLA): keys 64, values 64", draw_channel,
              (*ours(gated, "kernels.gated_scan", fast=("fla",)), naive_peer("fla.naive_recurrent_gla", fla_gla, "gla")),
              channel_formula, state_count(2, WIDTH), lambda inputs: gated(inputs, "naive"), leaves=("q", "k", "v", "g"),
              needs=("kernels.gated_scan",),
              step=Step(synthetic(draw_channel, gated_run), gated_step_call, one_token(gated_run))),
)
