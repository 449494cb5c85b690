"""What a row and a step are refused for alike: a state, a scale or a decay that does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels.checks import check_shape, readable
from kernels.errors import LayoutError
from kernels.taylor.features import accumulator_dtype, expanded_width

if TYPE_CHECKING:
    from kernels.taylor.state import TaylorState


def check_state(state: TaylorState, B: int, H: int, K: int, V: int, dtype: torch.dtype) -> None:
    """Sums of these rows, in the accumulator type of inputs of `dtype`."""
    (kv, z), F, kept = state, expanded_width(K), accumulator_dtype(dtype)
    if kv.shape == (B, H, F, V) and z.shape == (B, H, F) and kv.dtype == z.dtype == kept:
        return  # a step has time for comparisons alone
    check_shape("state.kv_BHFV", kv, (B, H, F, V), kept)
    check_shape("state.z_BHF", z, (B, H, F), kept)


def check_scale(scale: float | None) -> None:
    if scale is not None and scale < 0:
        raise LayoutError(f"scale: got {scale}, expected 0 or more: each side of q·k is multiplied by its root")


def check_decay(decay_H: torch.Tensor | None, H: int) -> None:
    """Factors in (0, 1], read where that is free."""
    check_shape("decay_H", decay_H, (H,))
    if decay_H is None or decay_H.device.type != "cpu" or not readable(decay_H):
        return
    if not all(0 < factor <= 1 for factor in decay_H.tolist()):
        raise LayoutError(f"decay_H: got {decay_H.tolist()}, expected numbers above 0 and up to 1")


def check_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: TaylorState) -> None:
    """q and k (B, H, K), v (B, H, V) of one token, and the state of these rows."""
    if q.dim() != 3 or q.shape != k.shape or v.dim() != 3 or v.shape[:2] != q.shape[:2]:
        raise LayoutError(
            f"expected q, k (B, H, K) of one shape and v (B, H, V); got q {tuple(q.shape)}, k {tuple(k.shape)}, "
            f"v {tuple(v.shape)}")
    if accumulator_dtype(k.dtype) != accumulator_dtype(q.dtype):
        raise LayoutError(f"k: got {k.dtype} beside q of {q.dtype}, whose sums are {accumulator_dtype(q.dtype)}")
    check_state(state, *q.shape, v.shape[-1], q.dtype)
