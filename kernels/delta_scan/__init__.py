"""The delta rule: a write replaces what the state held under its key (DeltaNet), and may fade it first (Gated DeltaNet).

    S <- exp(g_t) S_(t-1),    S_t = S + beta_t k_t (v_t - S^T k_t)^T,    y_t = scale · q_t S_t
"""

from __future__ import annotations

import torch

from kernels.adapters import fla
from kernels.backends import choose_backend
from kernels.checks import check_chunk, check_counts
from kernels.delta_scan.chunked import delta_chunked
from kernels.delta_scan.naive import delta_naive
from kernels.delta_scan.step import delta_step
from kernels.errors import LayoutError
from kernels.gated_scan import check_state, empty_state
from kernels.taylor import check_inputs
from kernels.taylor.features import without_autocast

__all__ = ["delta_scan", "delta_step", "empty_state"]


def delta_scan(
    q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor, beta_BLH: torch.Tensor, *,
    log_decay_BLH: torch.Tensor | None = None, lengths_B: torch.Tensor | None = None,
    state: torch.Tensor | None = None, scale: float | None = None, chunk: int | None = None, backend: str = "auto",
    return_state: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """The scan over rows whose real tokens come first.

    Args:
        q_BLHK, k_BLHK, v_BLHV: float32, float64 or bfloat16; pads hold finite values. Keys are used as given: the
            rule is stable where beta |k|^2 <= 2, so callers normalise k.
        beta_BLH: strength of the write, 0 (none) to 1 (replace); up to 2 for negative eigenvalues.
        log_decay_BLH: natural logarithm of the decay, at most 0, acting before the token's write. None: no decay, the
            same result as zeros, bit for bit.
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
    for name, x in (("beta_BLH", beta_BLH), ("log_decay_BLH", log_decay_BLH)):
        if x is not None and x.shape != k_BLHK.shape[:3]:
            raise LayoutError(f"{name}: got {tuple(x.shape)}, expected (B, L, H) = {tuple(k_BLHK.shape[:3])}")
    check_state(state, k_BLHK, v_BLHV)
    check_counts("lengths_B", lengths_B, len(q_BLHK), most=q_BLHK.shape[1])
    check_chunk("delta_scan", chunk)
    backend = choose_backend("delta_scan", backend, q_BLHK.device, fast={
        "fla": fla.delta_reason(q_BLHK, k_BLHK, v_BLHV, log_decay_BLH)})
    B, L, H, K = q_BLHK.shape
    scale = K**-0.5 if scale is None else scale
    if v_BLHV.numel() == 0 or K == 0:
        if state is None:
            state = empty_state(B, H, K, v_BLHV.shape[-1], v_BLHV.dtype, v_BLHV.device)
        return (torch.zeros_like(v_BLHV), state) if return_state else torch.zeros_like(v_BLHV)
    with without_autocast(q_BLHK.device):
        settings = {"log_decay_BLH": log_decay_BLH, "lengths_B": lengths_B, "state": state, "scale": scale}
        if backend == "naive":
            y, state = delta_naive(q_BLHK, k_BLHK, v_BLHV, beta_BLH, **settings)
        elif backend == "fla":
            y, state = fla.delta_scan(q_BLHK, k_BLHK, v_BLHV, beta_BLH, return_state=return_state, **settings)
        else:
            y, state = delta_chunked(
                q_BLHK, k_BLHK, v_BLHV, beta_BLH, chunk=chunk, return_state=return_state, **settings)
    return (y, state) if return_state else y
