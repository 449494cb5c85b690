"""Prefix linear attention (JRT Eq. 3): Taylor attention whose first m tokens are also read without a causal mask.

    y_i = (sum_{j <= i} w(q_i, k_j) v_j + sum_{j < m} w(q_i, ke_j) ve_j) / (the same two sums of w, + eps)

The encoder has keys and values of its own, the query is shared. The state after the prefix is one merged pair of
sums, so that decoding is `kernels.taylor.taylor_step`.
"""

from __future__ import annotations

import torch

from kernels.backends import choose_backend
from kernels.checks import check_counts
from kernels.errors import LayoutError
from kernels.prefix.chunked import prefix_chunked
from kernels.prefix.naive import prefix_naive
from kernels.taylor import TaylorState, check_inputs, check_settings, taylor
from kernels.taylor.features import without_autocast
from kernels.taylor.triton_limits import why_not

__all__ = ["prefix"]


def prefix(
    q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor, k_enc_BMHK: torch.Tensor,
    v_enc_BMHV: torch.Tensor, prefix_B: torch.Tensor, *, state: TaylorState | None = None,
    lengths_B: torch.Tensor | None = None, scale: float | None = None, eps: float = 1e-12, chunk: int | None = None,
    backend: str = "auto", return_state: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, TaylorState]:
    """Attention over rows whose real tokens come first.

    Args:
        k_enc_BMHK, v_enc_BMHV: encoder keys and values of slots 0..M-1, M >= max(prefix_B); finite beyond a prefix.
        prefix_B: int64, prefix length m of each row, 0 <= m <= M. A row with m = 0 is plain Taylor attention.
        Others, returns and errors: `kernels.taylor.taylor`.
    """
    check_inputs(q_BLHK, k_BLHK, v_BLHV)
    fast = {"triton": why_not(q_BLHK, k_BLHK, v_BLHV, k_enc_BMHK, v_enc_BMHV, scale=scale)}
    backend = choose_backend("prefix", backend, q_BLHK.device, fast=fast)
    B, M, H, K = k_enc_BMHK.shape
    expected = (q_BLHK.shape[0], M, *q_BLHK.shape[2:])
    if k_enc_BMHK.shape != expected or v_enc_BMHV.shape != (*expected[:3], v_BLHV.shape[-1]):
        raise LayoutError(
            f"expected encoder keys {expected} and values of the same tokens; got {tuple(k_enc_BMHK.shape)} and "
            f"{tuple(v_enc_BMHV.shape)}")
    check_settings(q_BLHK, v_BLHV, state, lengths_B, scale, chunk)
    check_counts("prefix_B", prefix_B, B, most=M)
    if v_enc_BMHV.numel() == 0 or v_BLHV.numel() == 0 and not return_state:
        return taylor(
            q_BLHK, k_BLHK, v_BLHV, state=state, lengths_B=lengths_B, scale=scale, eps=eps, chunk=chunk,
            backend=backend, return_state=return_state)
    scale = K**-0.5 if scale is None else scale
    with without_autocast(q_BLHK.device):
        arguments = (q_BLHK, k_BLHK, v_BLHV, k_enc_BMHK, v_enc_BMHV, prefix_B)
        if backend == "naive":
            y, state = prefix_naive(*arguments, state=state, lengths_B=lengths_B, scale=scale, eps=eps)
        elif backend == "triton" and q_BLHK.shape[1]:
            from kernels.taylor.triton import attend

            y, state = attend(*arguments, state=state, lengths_B=lengths_B, scale=scale, eps=eps, chunk=chunk,
                              return_state=return_state)
        else:
            y, state = prefix_chunked(
                *arguments, state=state, lengths_B=lengths_B, scale=scale, eps=eps, chunk=chunk,
                return_state=return_state)
    return (y, state) if return_state else y
