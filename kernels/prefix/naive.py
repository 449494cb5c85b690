"""The truth of prefix attention: the encoder sum is built token by token, then the causal sum runs on top of it."""

from __future__ import annotations

import torch

from kernels.taylor.naive import feature_map, taylor_naive
from kernels.taylor.state import TaylorState, empty_state


def prefix_naive(
    q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor, k_enc_BMHK: torch.Tensor,
    v_enc_BMHV: torch.Tensor, prefix_B: torch.Tensor, *, state: TaylorState | None = None,
    lengths_B: torch.Tensor | None = None, scale: float, eps: float,
) -> tuple[torch.Tensor, TaylorState]:
    """See `kernels.prefix.prefix`. Row b adds its first `prefix_B[b]` encoder tokens to the state, then reads."""
    B, M, H, K = k_enc_BMHK.shape
    kv, z = state or empty_state(B, H, K, v_enc_BMHV.shape[-1], q_BLHK.dtype, q_BLHK.device)
    inside_BM = torch.arange(M, device=prefix_B.device) < prefix_B[:, None]
    phi_BMHF = feature_map(k_enc_BMHK.to(kv.dtype), scale) * inside_BM[:, :, None, None]
    for j in range(M):
        kv = torch.addcmul(kv, phi_BMHF[:, j, :, :, None], v_enc_BMHV[:, j, :, None, :].to(kv.dtype))
        z = z + phi_BMHF[:, j]
    return taylor_naive(q_BLHK, k_BLHK, v_BLHV, state=TaylorState(kv, z), lengths_B=lengths_B, scale=scale, eps=eps)
