"""One token: reads and writes a head's state once, in place, in the layout of `TaylorState`."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from kernels.gradients import outside_inference
from kernels.taylor.features import expanded_width
from kernels.taylor.state import TaylorState
from kernels.taylor.triton_blocks import value_width
from kernels.taylor.triton_operands import on_device
from kernels.triton_mode import capability

ROWS = {80: 32, 90: 64, 100: 64}  # features a program takes at a time
WARPS = 4


@triton.jit
def entry(x, index, factor):
    """x1[index] of x1 = [1, factor x]."""
    return tl.where(index > 0, tl.load(x + index - 1, mask=index > 0, other=0.0).to(tl.float32) * factor, 1.0)


@triton.jit
def step(
    q, k, v, kv, z, y, pairs, coefficients, H, factor, eps, q_b, q_h, k_b, k_h, v_b, v_h,
    F: tl.constexpr, V: tl.constexpr, VP: tl.constexpr, ROWS: tl.constexpr,
):
    """Grid: heads. kv (G, F, V), z (G, F): advanced in place. y (G, V).

    pairs (2, F), coefficients (F): feature f is coefficients[f] · x1[pairs[0, f]] · x1[pairs[1, f]].
    One program holds a whole head: the normaliser is read by every value, so that slices of values would race on it.
    """
    head = tl.program_id(0).to(tl.int64)
    b, h = head // H, head % H
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    e = tl.arange(0, VP)
    value = tl.load(v + b * v_b + h * v_h + e, mask=e < V, other=0.0).to(tl.float32)
    total = tl.zeros([VP], tl.float32)
    divisor = eps
    for start in tl.static_range(0, F, ROWS):
        f = start + tl.arange(0, ROWS)
        real = f < F
        left = tl.load(pairs + f, mask=real, other=0)
        right = tl.load(pairs + F + f, mask=real, other=0)
        coefficient = tl.load(coefficients + f, mask=real, other=0.0)
        key = coefficient * entry(k, left, factor) * entry(k, right, factor)
        query = coefficient * entry(q, left, factor) * entry(q, right, factor)
        at = z + head * F + f
        count = tl.load(at, mask=real, other=0.0) + key
        tl.store(at, count, mask=real)
        divisor += tl.sum(query * count, 0)
        mask = real[:, None] & (e < V)[None, :]
        at = kv + (head * F + f)[:, None] * V + e[None, :]
        sums = tl.load(at, mask=mask, other=0.0) + key[:, None] * value[None, :]
        tl.store(at, sums, mask=mask)
        total += tl.sum(query[:, None] * sums, 0)
    tl.store(y + head * V + e, (total / divisor).to(y.dtype.element_ty), mask=e < V)


@functools.lru_cache(maxsize=32)
@outside_inference
def feature_pairs(K: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(2, F) int32 and (F) float32: the order and factors of features.pair_matrices."""
    pairs = torch.triu_indices(K + 1, K + 1)
    square = (pairs[0] == pairs[1]) & (pairs[0] > 0)
    return pairs.int().to(device), torch.where(square, 0.5**0.5, 1.0).to(device, torch.float32)


def taylor_step_triton(q_BHK, k_BHK, v_BHV, state: TaylorState, *, scale: float, eps: float):
    """See `kernels.taylor.taylor_step`: (y_BHV, state); a state of contiguous float32 tensors is advanced in place."""
    B, H, K = q_BHK.shape
    V = v_BHV.shape[-1]
    kv, z = (x.contiguous() for x in state)
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BHK, k_BHK, v_BHV))
    y = torch.empty(B, H, V, dtype=v.dtype, device=v.device)
    pairs, coefficients = feature_pairs(K, q.device)
    with on_device(q.device):
        step[(B * H,)](
            q, k, v, kv, z, y, pairs, coefficients, H, scale**0.5, eps, *q.stride()[:2], *k.stride()[:2],
            *v.stride()[:2], F=expanded_width(K), V=V, VP=value_width(V), ROWS=ROWS[capability(q.device)],
            num_warps=WARPS)
    return y, TaylorState(kv, z)
