"""Causal second-order Taylor linear attention (Based; the decoder half of JRT's prefix attention).

    y_i = sum_{j <= i} w(q_i, k_j) v_j / (sum_{j <= i} w(q_i, k_j) + eps),   w = 1 + s + s^2/2,   s = scale q·k
"""

from __future__ import annotations

import torch

from kernels.backends import choose_backend
from kernels.checks import check_chunk, check_counts
from kernels.errors import LayoutError
from kernels.taylor.chunked import taylor_chunked
from kernels.taylor.features import expanded_width, without_autocast
from kernels.taylor.limits import check_decay, check_scale, check_state
from kernels.taylor.naive import feature_map, taylor_naive
from kernels.taylor.state import TaylorState, empty_state, taylor_step
from kernels.taylor.triton_limits import why_not

__all__ = ["TaylorState", "empty_state", "expanded_width", "feature_map", "taylor", "taylor_step"]


def taylor(
    q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor, *, state: TaylorState | None = None,
    lengths_B: torch.Tensor | None = None, scale: float | None = None, eps: float = 1e-12,
    decay_H: torch.Tensor | None = None, chunk: int | None = None, backend: str = "auto", return_state: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, TaylorState]:
    """Attention over rows whose real tokens come first.

    Args:
        q_BLHK, k_BLHK, v_BLHV: float32, float64, bfloat16 or (Triton) float16; pads hold finite values. Float32 sums lose
            their digits where q meets all keys at right angles and scale·|q||k| passes 1e3 (README.md, limit).
        state: sums to start from; consumed (may be overwritten when gradients are off). None: zeros.
        lengths_B: real tokens of each row; the rest never enters the state. Outputs there mean nothing.
        scale: of q·k; default K^-1/2 (JRT's `scale_dim` D gives D^-1/2).
        decay_H: numerator decay per token and head in (0, 1]; the normaliser is not decayed (released Based 360M).
        chunk: tokens per step of the chunk loop (Triton: between boundary sums); changes speed, never the result.
            None: chosen by length.
        backend: "auto" | "naive" | "chunked" | "triton" (no decay, no float64, K up to 32, V up to 128).
    Returns:
        y_BLHV in v's dtype, or (y_BLHV, TaylorState) with `return_state`.
    Raises:
        LayoutError: shapes or settings that do not belong together. UnsupportedUse: a backend that cannot run.
    """
    check_inputs(q_BLHK, k_BLHK, v_BLHV)
    check_settings(q_BLHK, v_BLHV, state, lengths_B, scale, chunk)
    check_decay(decay_H, q_BLHK.shape[2])
    fast = {"triton": why_not(q_BLHK, k_BLHK, v_BLHV, decay_H=decay_H, scale=scale)}
    backend = choose_backend("taylor", backend, q_BLHK.device, fast=fast)
    B, L, H, K = q_BLHK.shape
    scale = K**-0.5 if scale is None else scale
    if v_BLHV.numel() == 0:
        y, state = torch.zeros_like(v_BLHV), state or empty_state(B, H, K, v_BLHV.shape[-1], q_BLHK.dtype, v_BLHV.device)
        return (y, state) if return_state else y
    with without_autocast(q_BLHK.device):
        if backend == "naive":
            y, state = taylor_naive(
                q_BLHK, k_BLHK, v_BLHV, state=state, lengths_B=lengths_B, scale=scale, eps=eps, decay_H=decay_H)
        elif backend == "triton":
            from kernels.taylor.triton import attend

            y, state = attend(
                q_BLHK, k_BLHK, v_BLHV, state=state, lengths_B=lengths_B, scale=scale, eps=eps, chunk=chunk,
                return_state=return_state)
        else:
            y, state = taylor_chunked(
                q_BLHK, k_BLHK, v_BLHV, state=state, lengths_B=lengths_B, scale=scale, eps=eps, decay_H=decay_H,
                chunk=chunk, return_state=return_state)
    return (y, state) if return_state else y


def check_settings(q: torch.Tensor, v: torch.Tensor, state, lengths_B, scale: float | None, chunk: int | None) -> None:
    """What else the rows come with."""
    if state is not None:
        check_state(state, q.shape[0], *q.shape[2:], v.shape[-1], q.dtype)
    check_counts("lengths_B", lengths_B, q.shape[0], most=q.shape[1])
    check_scale(scale)
    check_chunk("chunk", chunk)


def check_inputs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """q and k (B, L, H, K) alike, v (B, L, H, V) of the same rows, positions and heads."""
    if q.dim() != 4 or q.shape != k.shape or v.dim() != 4 or v.shape[:3] != q.shape[:3]:
        raise LayoutError(
            f"expected q, k (B, L, H, K) of one shape and v (B, L, H, V); got q {tuple(q.shape)}, k {tuple(k.shape)}, "
            f"v {tuple(v.shape)}")
