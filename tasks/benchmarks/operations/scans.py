"""Linear attention with a feature map, and the gated scans: decay per head, decay per channel, delta rule, Mamba-1."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from tasks.benchmarks.forms import WIDTH, fla_naive, head_first, ours, past, read, scores, swapped
from tasks.benchmarks.operation import Count, Form, Implementation, Inputs, Operation, Setting, Step

EPS = 1e-12
GATE = 16                # GLA divides the log-sigmoid of a gate by this
STATES = 16              # N of Mamba-1
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


# ------------------------------------------------------------------------------------------------------- linear scan
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


# -------------------------------------------------------------------------------------------------------- delta rule
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


# ----------------------------------------------------------------------------------------------------------- Mamba-1
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


def linear_run(inputs: Inputs, backend: str = "auto", state=None):
    from kernels.linear_scan import linear_scan

    return linear_scan(inputs["q"], inputs["k"], inputs["v"], eps=EPS, state=state, backend=backend, return_state=True)


def linear_step_call(parts: dict[str, object]) -> torch.Tensor:
    from kernels.linear_scan import linear_step

    y, parts["state"] = linear_step(parts["q"], parts["k"], parts["v"], parts["state"], eps=EPS)
    return y


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


def selective_count(setting: Setting) -> Count:
    tokens, D = setting.batch * setting.n, setting.heads * WIDTH
    return Count(tokens * D * STATES * 6, tokens * (3 * D + 2 * STATES) * setting.dtype.itemsize)


def naive_peer(name: str, form: Form, operation: str, time_first: bool = True) -> Implementation:
    layout = {} if time_first else {"arrange": head_first, "restore": swapped}
    return Implementation(name, form, ours=False, needs=("fla", "einops"), devices=("cpu",),
                          takes=lambda setting: setting.n <= 4096 and setting.n % 64 == 0, note="no padding", **layout)


OPERATIONS = (
    Operation("linear_scan", "linear attention after elu + 1: keys 64, values 64, normalised", draw_linear,
              ours(linear, "kernels.linear_scan"), linear_formula, state_count(2), lambda inputs: linear(inputs, "naive"),
              needs=("kernels.linear_scan",),
              step=Step(synthetic(draw_linear, linear_run), linear_step_call, one_token(linear_run))),
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
