"""Prefix linear attention (JRT): half of the row is read without a causal mask first."""

from __future__ import annotations

import torch

from kernels.prefix import prefix
from kernels.taylor import expanded_width
from tasks.benchmarks.forms import FEATURES, WIDTH, head_first, ours, past, read, swapped
from tasks.benchmarks.operation import Count, Implementation, Inputs, Operation, Setting
from tasks.benchmarks.operations import taylor

NAMES = ("q", "k", "v", "k_enc", "v_enc")
MOST_QUADRATIC_BYTES = 2 << 30


def draw(setting: Setting) -> Inputs:
    generator = setting.generator()
    n, M, heads = setting.n, setting.n // 2, setting.heads
    widths = {"q": FEATURES, "k": FEATURES, "v": WIDTH, "k_enc": FEATURES, "v_enc": WIDTH}
    tensors = {name: setting.draw(generator, M if name.endswith("enc") else n, heads, width)
               for name, width in widths.items()}
    return {**tensors, "prefix_B": torch.full((setting.batch,), M, device=setting.device), **setting.lengths()}


def call(inputs: Inputs, backend: str) -> torch.Tensor:
    return prefix(*(inputs[name] for name in NAMES), inputs["prefix_B"], lengths_B=inputs.get("lengths_B"), backend=backend)


def formula(inputs: Inputs, at: torch.Tensor) -> torch.Tensor:
    """Causal weights over all tokens and unmasked weights over the prefix, one normaliser."""
    own = taylor.weights(inputs["q"], inputs["k"], at) * past(at, inputs["k"].shape[1])
    context = taylor.weights(inputs["q"], inputs["k_enc"], at)
    total = (own.sum(-1) + context.sum(-1)).transpose(1, 2)[..., None]
    return (read(own, inputs["v"]) + read(context, inputs["v_enc"])) / (total + taylor.EPS)


def count(setting: Setting) -> Count:
    """Taylor attention, and half as many tokens that are only written."""
    own, encoder = taylor.count(setting), setting.batch * setting.heads * (setting.n // 2)
    return Count(own.flops + encoder * 2 * expanded_width(FEATURES) * (WIDTH + 1),
                 own.bytes + encoder * (FEATURES + WIDTH) * setting.dtype.itemsize)


# ------------------------------------------------------------------------------- the released quadratic formula
def features(x: torch.Tensor) -> torch.Tensor:
    """JRT's map: [1, x / d^(1/4), vec(x x^T) / (sqrt 2 sqrt d)], 273 numbers of 16, pairs not merged."""
    pairs = (x[..., :, None] * x[..., None, :]).flatten(-2) / (2 * FEATURES) ** 0.5
    return torch.cat((x[..., :1] ** 0, x / FEATURES**0.25, pairs), -1)


def quadratic(inputs: Inputs) -> torch.Tensor:
    """Prefix attention by (n, n) products of 273 features, as its plain-torch form computes it."""
    q, k, k_enc = (features(inputs[name]) for name in ("q", "k", "k_enc"))
    own = torch.einsum("bhnf,bhmf->bhnm", q, k).tril()
    context = torch.einsum("bhnf,bhmf->bhnm", q, k_enc)
    numerator = torch.einsum("bhnm,bhmv->bhnv", own, inputs["v"]) + torch.einsum("bhnm,bhmv->bhnv", context, inputs["v_enc"])
    total = torch.einsum("bhnf,bhnf->bhn", q, k.cumsum(2)) + torch.einsum("bhnf,bhf->bhn", q, k_enc.sum(2))
    return numerator / (total[..., None] + taylor.EPS)


def quadratic_fits(setting: Setting) -> bool:
    scores = setting.batch * setting.heads * setting.n * (setting.n + setting.n // 2) * setting.dtype.itemsize
    return scores <= MOST_QUADRATIC_BYTES if setting.device == "cuda" else setting.n <= 2048


OPERATIONS = (Operation(
    "prefix", "prefix linear attention (JRT-RNN): encoder over the first half, then causal",
    draw,
    (*ours(call, "kernels.prefix"),
     Implementation("released quadratic", quadratic, ours=False, arrange=head_first, restore=swapped,
                    takes=quadratic_fits, note="273 features, no padding; written from the released formula")),
    formula, count, lambda inputs: call(inputs, "naive"), leaves=NAMES, needs=("kernels.prefix",)),)
