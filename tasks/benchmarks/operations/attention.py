"""Softmax attention, the yardstick: torch's, and flash-attn's where it is installed."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tasks.benchmarks.forms import WIDTH, head_first, past, read, scores, swapped
from tasks.benchmarks.operation import Count, Implementation, Inputs, Operation, Setting, Step

CACHED = 4096     # tokens drawn for a long cache, then repeated: only its size costs time


def draw(setting: Setting) -> Inputs:
    generator = setting.generator()
    return {name: setting.draw(generator, setting.n, setting.heads, WIDTH) for name in ("q", "k", "v")}


def torch_attention(inputs: Inputs) -> torch.Tensor:
    return F.scaled_dot_product_attention(inputs["q"], inputs["k"], inputs["v"], is_causal=True)


def flash_attention(inputs: Inputs) -> torch.Tensor:
    from flash_attn import flash_attn_func

    return flash_attn_func(inputs["q"], inputs["k"], inputs["v"], causal=True)


def formula(inputs: Inputs, at: torch.Tensor) -> torch.Tensor:
    """Softmax written out."""
    logits = scores(inputs["q"], inputs["k"], at) * WIDTH**-0.5
    return read(logits.masked_fill(~past(at, logits.shape[-1]), float("-inf")).softmax(-1), inputs["v"])


def count(setting: Setting) -> Count:
    rows, n = setting.batch * setting.heads, setting.n
    return Count(rows * n * (n + 1) // 2 * 4 * WIDTH, rows * n * 4 * WIDTH * setting.dtype.itemsize)


# ------------------------------------------------------------------------------------------------------- decode step
def cache(setting: Setting) -> tuple[dict[str, object], int]:
    """Keys and values of n earlier tokens, and a query that looks for one of them: an even mean over so many would be
    all rounding error."""
    generator = setting.generator()
    drawn = min(setting.n, CACHED)
    repeat = -(-setting.n // drawn)
    parts = {name: setting.draw(generator, setting.heads, drawn, WIDTH).repeat(1, 1, repeat, 1)[:, :, :setting.n].contiguous()
             for name in ("k", "v")}
    sought = parts["k"][:, :, drawn // 2:drawn // 2 + 1]
    return {"q": sought * 1.5, **parts}, sum(x.nbytes for x in parts.values())


def read_cache(parts: dict[str, object]) -> torch.Tensor:
    return F.scaled_dot_product_attention(parts["q"], parts["k"], parts["v"])[:, :, 0]


def read_cache_truth(parts: dict[str, object]) -> torch.Tensor:
    q, k, v = (parts[name] for name in ("q", "k", "v"))
    logits = torch.cat([q @ part.transpose(2, 3) for part in k.split(CACHED, 2)], -1) * WIDTH**-0.5
    return sum(w @ part for w, part in zip(logits.softmax(-1).split(CACHED, -1), v.split(CACHED, 2)))[:, :, 0]


OPERATIONS = (Operation(
    "sdpa", "causal softmax attention, head width 64",
    draw, (Implementation("torch", torch_attention, arrange=head_first, restore=swapped),
           Implementation("flash_attn", flash_attention, ours=False, needs=("flash_attn",), devices=("cuda",),
                          takes=lambda setting: setting.dtype != torch.float32)),
    formula, count,
    step=Step(cache, read_cache, read_cache_truth, "torch", "softmax written out, float64")),)
