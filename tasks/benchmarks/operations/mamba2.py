"""A whole Mamba-2 mixer, projections and convolution included, on our kernels, beside transformers' own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tasks.benchmarks.forms import WIDTH, ours
from tasks.benchmarks.operation import Count, Implementation, Inputs, Operation, Setting
from tasks.benchmarks.operations.scans import head_formula

STATE, TAPS, EXPAND, CHUNK, EPS = 64, 4, 2, 64, 1e-5
WEIGHTS = ("in_proj", "conv", "conv_bias", "dt_bias", "A_log", "skip", "norm", "out_proj")


def sizes(heads: int) -> tuple[int, int, int]:
    """(model width, inner width, channels of the convolution)."""
    inner = heads * WIDTH
    return inner // EXPAND, inner, inner + 2 * STATE


def draw(setting: Setting) -> Inputs:
    """x, and the mixer's weights as inputs, so that every implementation and the truth share them."""
    generator = setting.generator()
    D, inner, channels = sizes(setting.heads)
    place = lambda x: x.to(setting.device, setting.dtype)  # noqa: E731
    draw_weight = lambda *shape, scale: setting.weight(generator, *shape) * scale  # noqa: E731
    steps = torch.linspace(0.001, 0.1, setting.heads)
    return {
        "x": setting.draw(generator, setting.n, D), **setting.lengths(),
        "in_proj": draw_weight(inner + channels + setting.heads, D, scale=D**-0.5),
        "conv": draw_weight(channels, TAPS, scale=0.5), "conv_bias": draw_weight(channels, scale=0.1),
        "dt_bias": place(torch.log(torch.expm1(steps))), "A_log": place(torch.arange(1, setting.heads + 1).log()),
        "skip": place(torch.ones(setting.heads)), "norm": place(torch.ones(inner)),
        "out_proj": draw_weight(D, inner, scale=inner**-0.5),
    }


def heads_of(inputs: Inputs) -> int:
    return inputs["skip"].numel()


def before(inputs: Inputs, convolve) -> dict[str, torch.Tensor]:
    """What the scan reads: q, k, v, g (log-decay), and gate and values for what follows it."""
    H = heads_of(inputs)
    _, inner, channels = sizes(H)
    gate, mixed, dt = F.linear(inputs["x"], inputs["in_proj"]).split((inner, channels, H), -1)
    values, keys, queries = F.silu(convolve(mixed)).split((inner, STATE, STATE), -1)
    dt = F.softplus(dt + inputs["dt_bias"])
    values = values.unflatten(-1, (H, WIDTH))
    shared = lambda x: x[:, :, None].expand(-1, -1, H, -1)  # noqa: E731
    return {"q": shared(queries), "k": shared(keys), "v": values * dt[..., None], "g": -dt * inputs["A_log"].exp(),
            "gate": gate, "values": values}


def after(inputs: Inputs, y: torch.Tensor, values: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Skip, gated root-mean-square norm, output projection."""
    y = (y + values * inputs["skip"][:, None]).flatten(-2) * F.silu(gate)
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPS) * inputs["norm"]
    return F.linear(y, inputs["out_proj"])


def call(inputs: Inputs, backend: str) -> torch.Tensor:
    from kernels.gated_scan import gated_scan
    from kernels.short_conv import short_conv

    form = backend if backend == "naive" else "auto"
    parts = before(inputs, lambda x: short_conv(x, inputs["conv"], bias_D=inputs["conv_bias"], backend=form))
    y = gated_scan(parts["q"], parts["k"], parts["v"], parts["g"], lengths_B=inputs.get("lengths_B"), scale=1.0, backend=backend)
    return after(inputs, y, parts["values"], parts["gate"])


def formula(inputs: Inputs, at: torch.Tensor) -> torch.Tensor:
    """torch's own convolution, the scan written out at some positions."""
    def convolve(x: torch.Tensor) -> torch.Tensor:
        padded = F.pad(x.transpose(1, 2), (TAPS - 1, 0))
        return F.conv1d(padded, inputs["conv"][:, None], inputs["conv_bias"], groups=x.shape[-1]).transpose(1, 2)

    parts = before(inputs, convolve)
    y = head_formula({name: parts[name] for name in ("q", "k", "v", "g")}, at) * WIDTH**0.5
    return after(inputs, y, parts["values"][:, at], parts["gate"][:, at])


def count(setting: Setting) -> Count:
    """Projections, and the scan; bytes of x and y alone, the weights being shared by all tokens."""
    D, inner, channels = sizes(setting.heads)
    tokens = setting.batch * setting.n
    flops = 2 * D * (inner + channels + setting.heads) + 2 * inner * D + 2 * TAPS * channels + 4 * inner * STATE
    return Count(tokens * flops, tokens * 2 * D * setting.dtype.itemsize)


def with_their_mixer(inputs: Inputs) -> dict[str, Any]:
    """transformers' module with these weights."""
    from transformers.models.mamba2.configuration_mamba2 import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    H = heads_of(inputs)
    D, _, _ = sizes(H)
    config = Mamba2Config(hidden_size=D, num_heads=H, head_dim=WIDTH, state_size=STATE, n_groups=1, conv_kernel=TAPS,
                          expand=EXPAND, chunk_size=CHUNK, num_hidden_layers=1, vocab_size=8, layer_norm_epsilon=EPS)
    mixer = Mamba2Mixer(config, 0).to(inputs["x"].device, inputs["x"].dtype).requires_grad_(False).eval()
    mixer.load_state_dict({
        "dt_bias": inputs["dt_bias"], "A_log": inputs["A_log"], "D": inputs["skip"], "norm.weight": inputs["norm"],
        "conv1d.weight": inputs["conv"][:, None], "conv1d.bias": inputs["conv_bias"],
        "in_proj.weight": inputs["in_proj"], "out_proj.weight": inputs["out_proj"]})
    return {"x": inputs["x"], "mixer": mixer}


OPERATIONS = (Operation(
    "mamba2_block", "a whole Mamba-2 mixer: projections, convolution, gated scan of 64 states, norm", draw,
    (*ours(call, "kernels.gated_scan", "kernels.short_conv", fast=("fla",)),
     Implementation("transformers.Mamba2Mixer", lambda inputs: inputs["mixer"](inputs["x"]), ours=False,
                    arrange=with_their_mixer, needs=("transformers",),
                    note=f"chunk {CHUNK}, quicker than its default 256; no padding")),
    formula, count, lambda inputs: call(inputs, "naive"), leaves=("x",), shared=WEIGHTS, whole=True,
    needs=("kernels.gated_scan", "kernels.short_conv")),)
