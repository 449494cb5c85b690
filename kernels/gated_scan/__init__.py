"""Linear attention whose state fades: one decay per token and head, or per token, head and key channel.

    S_t = exp(g_t) S_(t-1) + k_t v_t^T,    y_t = scale · q_t S_t        (RetNet, GLA, Mamba-2 / SSD)
"""

from __future__ import annotations

import torch

from kernels.adapters import fla
from kernels.backends import choose_backend
from kernels.checks import check_chunk, check_counts
from kernels.errors import LayoutError
from kernels.gated_scan.chunked import gated_chunked
from kernels.gated_scan.naive import gated_naive
from kernels.gated_scan.step import empty_state, gated_step
from kernels.taylor import check_inputs
from kernels.taylor.features import accumulator_dtype, without_autocast

__all__ = ["check_state", "empty_state", "gated_scan", "gated_step"]


def gated_scan(
    q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor, log_decay: torch.Tensor, *,
    lengths_B: torch.Tensor | None = None, state: torch.Tensor | None = None, scale: float | None = None,
    chunk: int | None = None, backend: str = "auto", return_state: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """The scan over rows whose real tokens come first.

    Args:
        q_BLHK, k_BLHK, v_BLHV: float32, float64 or bfloat16; pads hold finite values. Where heads share keys or
            queries (Mamba-2's groups), repeat them.
        log_decay: natural logarithm of the decay, at most 0: (B, L, H, K) a channel, or (B, L, H) a head. Token t's
            decay acts before its own write. 0 keeps everything, -1e4 forgets everything.
        lengths_B: real tokens of each row; pads neither decay the state nor write to it. Outputs there mean nothing.
        state: (B, H, K, V) to start from, float32 (float64 for float64 inputs); consumed (may be overwritten when
            gradients are off). None: zeros.
        scale: of the read; default K^-1/2.
        chunk: tokens per step of the chunk loop; changes speed, never the result.
        backend: "auto" | "naive" | "chunked" | "fla" (flash-linear-attention, on a GPU).
    Returns:
        y_BLHV in v's dtype, or (y_BLHV, state) with `return_state`.
    Raises:
        LayoutError: shapes that do not belong together, counts beyond the row, a chunk below 1. UnsupportedUse: a backend that cannot run.
    """
    check_inputs(q_BLHK, k_BLHK, v_BLHV)
    if log_decay.shape not in (k_BLHK.shape, k_BLHK.shape[:3]):
        raise LayoutError(
            f"log_decay: got {tuple(log_decay.shape)}, expected {tuple(k_BLHK.shape)} (a channel) or "
            f"{tuple(k_BLHK.shape[:3])} (a head)")
    check_state(state, k_BLHK, v_BLHV)
    check_counts("lengths_B", lengths_B, len(q_BLHK), most=q_BLHK.shape[1])
    check_chunk("gated_scan", chunk)
    backend = choose_backend("gated_scan", backend, q_BLHK.device, fast={"fla": fla.gated_reason(q_BLHK, k_BLHK, v_BLHV)})
    B, L, H, K = q_BLHK.shape
    scale = K**-0.5 if scale is None else scale
    if v_BLHV.numel() == 0 or K == 0:
        if state is None:
            state = empty_state(B, H, K, v_BLHV.shape[-1], v_BLHV.dtype, v_BLHV.device)
        return (torch.zeros_like(v_BLHV), state) if return_state else torch.zeros_like(v_BLHV)
    with without_autocast(q_BLHK.device):
        settings = {"lengths_B": lengths_B, "state": state, "scale": scale}
        if backend == "naive":
            y, state = gated_naive(q_BLHK, k_BLHK, v_BLHV, log_decay, **settings)
        elif backend == "fla":
            y, state = fla.gated_scan(q_BLHK, k_BLHK, v_BLHV, log_decay, return_state=return_state, **settings)
        else:
            y, state = gated_chunked(
                q_BLHK, k_BLHK, v_BLHV, log_decay, chunk=chunk, return_state=return_state, **settings)
    return (y, state) if return_state else y


def check_state(state: torch.Tensor | None, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor) -> None:
    """A state given is (B, H, K, V) of these keys and values, in the type that sums are kept in."""
    shape, dtype = (k_BLHK.shape[0], *k_BLHK.shape[2:], v_BLHV.shape[-1]), accumulator_dtype(k_BLHK.dtype)
    if state is not None and (tuple(state.shape) != shape or state.dtype != dtype):
        raise LayoutError(
            f"state: got {state.dtype} {tuple(state.shape)}, expected {dtype} (B, H, K, V) = {shape}")
