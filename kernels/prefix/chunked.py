"""Prefix attention in pure torch: one concatenated key axis for short rows, the encoder sum as initial state for long."""

from __future__ import annotations

import torch

from kernels.taylor.chunked import causal_scan, default_chunk, differentiable, short
from kernels.taylor.features import first_tokens
from kernels.taylor.quadratic import Quadratic
from kernels.taylor.scan import KeySum
from kernels.taylor.state import TaylorState, join, split


def prefix_chunked(
    q_BLHK, k_BLHK, v_BLHV, k_enc_BMHK, v_enc_BMHV, prefix_B, *, state, lengths_B, scale, eps, chunk, return_state,
) -> tuple[torch.Tensor, TaylorState | None]:
    """See `kernels.prefix.prefix`. `chunk` None: chosen by length; a number forces the chunk loop of that size."""
    L, K, M = q_BLHK.shape[1], q_BLHK.shape[-1], k_enc_BMHK.shape[1]
    inside_BM = first_tokens(prefix_B, M)
    # every query reads all M encoder keys but on average half of the causal ones
    if state is None and not return_state and chunk is None and short(L + 2 * M, K):
        needs = differentiable(q_BLHK, k_BLHK, v_BLHV, k_enc_BMHK, v_enc_BMHV)
        return Quadratic.apply(q_BLHK, k_BLHK, v_BLHV, k_enc_BMHK, v_enc_BMHV, inside_BM, scale, eps, needs), None
    chunk = chunk or default_chunk(K)
    sums = KeySum.apply(k_enc_BMHK, v_enc_BMHV, join(state), inside_BM, scale)
    if L == 0:
        return torch.zeros_like(v_BLHV), split(sums, len(q_BLHK))
    return causal_scan(
        q_BLHK, k_BLHK, v_BLHV, sums, lengths_B=lengths_B, scale=scale, eps=eps, chunk=chunk,
        return_state=return_state)
