"""The second-order Taylor feature map, in its symmetric form, and the small tensors every fast path is made of.

Design: a constant 1 stands before each scaled vector, x1 = [1, sqrt(scale) x]. One product of two such vectors is
1 + s, so `w = 1 + s + s^2/2 = ((1 + s)^2 + 1) / 2` needs no feature at all inside a block, and the features are the
F = (K+1)(K+2)/2 different pairs of x1's entries, built by two products with one-hot matrices (a gather is slower).

Shape letters: B batch, L length, H heads, K feature width per head, V value width per head, F expanded width,
G = B·H flattened, N keys.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from kernels.gradients import outside_inference


def expanded_width(width: int) -> int:
    """F of a head of feature width K: 1 constant, K linear and K(K+1)/2 quadratic terms."""
    return (width + 1) * (width + 2) // 2


@lru_cache(maxsize=32)
@outside_inference
def pair_matrices(width: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Two (K+1, F) matrices with phi(x) = (x1 @ first) * (x1 @ second): which two entries of x1 each feature multiplies.

    Pairs run row-major over the upper triangle, so phi(x) = [1, x, x_1 x_1 / sqrt(2), x_1 x_2, ...] of the scaled x.
    """
    first, second = torch.triu_indices(width + 1, width + 1)
    columns = torch.arange(first.numel())
    left = torch.zeros(width + 1, first.numel(), dtype=torch.float64)
    right = torch.zeros_like(left)
    left[first, columns] = 1.0
    right[second, columns] = 1.0 - (1.0 - math.sqrt(0.5)) * ((first == second) & (first > 0)).double()
    return left.to(device, dtype), right.to(device, dtype)


def expand(x1: torch.Tensor) -> torch.Tensor:
    """phi of augmented vectors (..., K+1) -> (..., F)."""
    left, right = pair_matrices(x1.shape[-1] - 1, x1.dtype, x1.device)
    if torch.is_grad_enabled() and x1.requires_grad:
        return (x1 @ left) * (x1 @ right)
    return (x1 @ left).mul_(x1 @ right)


def accumulator_dtype(dtype: torch.dtype) -> torch.dtype:
    """Sums and normalisers are kept in float32, or in float64 for float64 inputs."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager:
    """Autocast off: it would round the running sums to bfloat16."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def autocast_off(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A hand-written backward that a loop may call inside an autocast region, where its products would be rounded."""
    @functools.wraps(backward)
    def run(ctx, *gradients):
        with without_autocast(ctx.saved_tensors[0].device):
            return backward(ctx, *gradients)
    return run


def augment(x_BLHK: torch.Tensor, factor: float, out_BHNK1: torch.Tensor) -> None:
    """Writes [1, factor * x], heads before positions, into `out_BHNK1` (which may be a slice of a larger buffer)."""
    out_BHNK1[..., 0] = 1.0
    if x_BLHK.dtype == out_BHNK1.dtype:
        torch.mul(x_BLHK.transpose(1, 2), factor, out=out_BHNK1[..., 1:])
    else:  # a product in bfloat16 would be rounded before it is widened
        out_BHNK1[..., 1:].copy_(x_BLHK.transpose(1, 2)).mul_(factor)


def augmented(x_BLHK: torch.Tensor, factor: float) -> torch.Tensor:
    """[1, factor * x] as a new (G, L, K+1) tensor of the accumulator dtype; autograd can follow it."""
    B, L, H, K = x_BLHK.shape
    dtype = accumulator_dtype(x_BLHK.dtype)
    if torch.is_grad_enabled() and x_BLHK.requires_grad:
        scaled = x_BLHK.to(dtype).transpose(1, 2) * factor
        return torch.cat((torch.ones_like(scaled[..., :1]), scaled), dim=-1).flatten(0, 1)
    out = torch.empty(B, H, L, K + 1, dtype=dtype, device=x_BLHK.device)
    augment(x_BLHK, factor, out)
    return out.view(B * H, L, K + 1)


def place_values(v_BLHV: torch.Tensor, keep_BL: torch.Tensor | None, out_BHNV1: torch.Tensor) -> None:
    """Writes [v, 1] into a buffer, or zeros where `keep_BL` is False.

    Zeroing this row is the same as multiplying phi(k) by 0: the token leaves numerator and normaliser together.
    """
    if keep_BL is None:
        out_BHNV1[..., :-1] = v_BLHV.transpose(1, 2)
        out_BHNV1[..., -1] = 1.0
        return
    torch.mul(v_BLHV.transpose(1, 2), keep_BL[:, None, :, None], out=out_BHNV1[..., :-1])
    out_BHNV1[..., -1] = keep_BL[:, None]


def placed_values(v_BLHV: torch.Tensor, keep_BL: torch.Tensor | None) -> torch.Tensor:
    """[v, 1], masked, as a new (G, L, V+1) tensor of the accumulator dtype; autograd can follow it."""
    B, L, H, V = v_BLHV.shape
    dtype = accumulator_dtype(v_BLHV.dtype)
    if torch.is_grad_enabled() and v_BLHV.requires_grad:
        values = v_BLHV.to(dtype).transpose(1, 2)
        placed = torch.cat((values, torch.ones_like(values[..., :1])), dim=-1)
        return (placed if keep_BL is None else placed * keep_BL[:, None, :, None]).flatten(0, 1)
    out = torch.empty(B, H, L, V + 1, dtype=dtype, device=v_BLHV.device)
    place_values(v_BLHV, keep_BL, out)
    return out.view(B * H, L, V + 1)


def first_tokens(lengths_B: torch.Tensor | None, L: int) -> torch.Tensor | None:
    """Boolean (B, L), True at the first `lengths_B` slots of each row; None keeps every slot."""
    if lengths_B is None:
        return None
    return torch.arange(L, device=lengths_B.device) < lengths_B[:, None]
