"""Causal sliding-window softmax attention: each token attends to itself and the window - 1 tokens before it."""

from __future__ import annotations

import torch

from kernels.backends import choose_backend
from kernels.errors import LayoutError
from kernels.taylor import check_inputs
from kernels.taylor.features import without_autocast
from kernels.window.chunked import window_chunked
from kernels.window.naive import window_naive

__all__ = ["window"]


def window(
    q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor, *, window: int,
    past_k: torch.Tensor | None = None, past_v: torch.Tensor | None = None, past_B: torch.Tensor | None = None,
    scale: float | None = None, backend: str = "auto",
) -> torch.Tensor:
    """y_BLHV of rows whose real tokens come first; pads hold finite values, what stands there in y means nothing.

    Args:
        window: keys a query sees, itself included (offsets 0..window-1). flash-attn's left size is window - 1.
        past_k, past_v: (B, P, H, .) the tokens before slot 0, newest last; past_B (int64) says how many were real,
            the rest is ignored. P >= min(past, window - 1).
        scale: of q·k; default K^-1/2.
        backend: "auto" | "naive" | "chunked".
    Raises:
        LayoutError: shapes that do not belong together, or window < 1. UnsupportedUse: a backend that is not built.
    """
    check_inputs(q_BLHK, k_BLHK, v_BLHV)
    backend = choose_backend("window", backend, q_BLHK.device)
    if window < 1:
        raise LayoutError(f"window: got {window}, expected at least 1, the token itself")
    if past_k is not None and (past_v is None or past_B is None or past_k.shape[:2] != past_v.shape[:2]):
        raise LayoutError("past_k, past_v and past_B belong together: give all three, with as many tokens in k as in v")
    if q_BLHK.numel() == 0:
        return torch.zeros_like(v_BLHV)
    form = window_naive if backend == "naive" else window_chunked
    with without_autocast(q_BLHK.device):
        return form(q_BLHK, k_BLHK, v_BLHV, window=window, past_k=past_k, past_v=past_v, past_B=past_B,
                    scale=q_BLHK.shape[-1] ** -0.5 if scale is None else scale)
