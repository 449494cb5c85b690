"""Short rows: the masked quadratic form with a hand-written backward.

Design: rows of up to a few hundred tokens cost less as a plain (L, N) product than through F features. Queries go in
blocks and a block multiplies only the keys it may see, which saves the upper triangle and keeps every temporary in
the cache. Encoder keys (prefix attention) stand before the causal ones, so one `tril` with an offset is the mask.
Doubled weights 2w = (1 + s)^2 + 1 are used throughout: the factor cancels in the normaliser.

Shape letters: G = B·H, N = M + L keys, the first M of them visible to everybody; others as in features.py.
"""

from __future__ import annotations

import torch

from kernels.gradients import once_differentiable
from kernels.taylor.features import accumulator_dtype, augment, autocast_off, place_values

QUERY_BLOCK = 64


def _keys(k_BLHK, v_BLHV, k_enc_BMHK, v_enc_BMHV, keep_enc_BM, factor):
    """Encoder and causal keys in one buffer each: [1, factor k] (G, N, K+1) and [v, 1] (G, N, V+1)."""
    B, L, H, K = k_BLHK.shape
    M = 0 if k_enc_BMHK is None else k_enc_BMHK.shape[1]
    V = v_BLHV.shape[-1]
    dtype = accumulator_dtype(k_BLHK.dtype)
    k1 = torch.empty(B, H, M + L, K + 1, dtype=dtype, device=k_BLHK.device)
    v1 = torch.empty(B, H, M + L, V + 1, dtype=dtype, device=k_BLHK.device)
    augment(k_BLHK, factor, k1[:, :, M:])
    place_values(v_BLHV, None, v1[:, :, M:])
    if M:
        augment(k_enc_BMHK, factor, k1[:, :, :M])
        place_values(v_enc_BMHV, keep_enc_BM, v1[:, :, :M])
    return k1.view(B * H, M + L, K + 1), v1.view(B * H, M + L, V + 1), M


class Quadratic(torch.autograd.Function):
    """y_i = sum_j w_ij v_j / (sum_j w_ij + eps) over causal keys j <= i and all kept encoder keys."""

    @staticmethod
    def forward(ctx, q_BLHK, k_BLHK, v_BLHV, k_enc_BMHK, v_enc_BMHV, keep_enc_BM, scale, eps, keep_for_backward):
        B, L, H, K = q_BLHK.shape
        V, factor = v_BLHV.shape[-1], scale**0.5
        k1, v1, M = _keys(k_BLHK, v_BLHV, k_enc_BMHK, v_enc_BMHV, keep_enc_BM, factor)
        q1 = torch.empty(B, H, L, K + 1, dtype=k1.dtype, device=k1.device)
        augment(q_BLHK, factor, q1)
        q1 = q1.view(B * H, L, K + 1)
        one = torch.ones((), dtype=k1.dtype, device=k1.device)
        total = torch.empty(B * H, L, V + 1, dtype=k1.dtype, device=k1.device)
        blocks = []
        for start in range(0, L, QUERY_BLOCK):
            stop = min(start + QUERY_BLOCK, L)
            u = torch.bmm(q1[:, start:stop], k1[:, : M + stop].transpose(1, 2))
            w = torch.addcmul(one, u, u).tril_(M + start)
            total[:, start:stop] = torch.bmm(w, v1[:, : M + stop])
            if keep_for_backward:
                blocks += [u, w]
        divisor = total[..., V:].add_(2 * eps)
        y_BLHV = torch.empty(B, L, H, V, dtype=v_BLHV.dtype, device=k1.device)
        torch.div(total[..., :V].view(B, H, L, V), divisor.view(B, H, L, 1), out=y_BLHV.transpose(1, 2))
        if keep_for_backward:
            ctx.save_for_backward(q1, k1, v1, total, y_BLHV, keep_enc_BM, *blocks)
            ctx.sizes = (B, L, H, K, V, M, factor)
        return y_BLHV

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy_BLHV):
        q1, k1, v1, total, y_BLHV, keep_enc_BM, *blocks = ctx.saved_tensors
        B, L, H, K, V, M, factor = ctx.sizes
        g = total_gradient(dy_BLHV, y_BLHV, total[..., V:])
        dq1, dk1, dv1 = torch.empty_like(q1), torch.zeros_like(k1), torch.zeros_like(v1)
        for start in range(0, L, QUERY_BLOCK):
            stop = min(start + QUERY_BLOCK, L)
            u, w = blocks[2 * (start // QUERY_BLOCK)], blocks[2 * (start // QUERY_BLOCK) + 1]
            seen = slice(0, M + stop)
            dv1[:, seen].add_(torch.bmm(w.transpose(1, 2), g[:, start:stop]))
            du = torch.bmm(g[:, start:stop], v1[:, seen].transpose(1, 2)).mul_(u).tril_(M + start)
            dq1[:, start:stop] = torch.bmm(du, k1[:, seen])
            dk1[:, seen].add_(torch.bmm(du.transpose(1, 2), q1[:, start:stop]))
        dtype = y_BLHV.dtype
        dk1, dv1 = dk1.view(B, H, M + L, K + 1), dv1.view(B, H, M + L, V + 1)
        return (
            vector_gradient(dq1.view(B, H, L, K + 1), 2 * factor, dtype),
            vector_gradient(dk1[:, :, M:], 2 * factor, dtype),
            value_gradient(dv1[:, :, M:], None, dtype),
            vector_gradient(dk1[:, :, :M], 2 * factor, dtype) if M else None,
            value_gradient(dv1[:, :, :M], keep_enc_BM, dtype) if M else None,
            None, None, None, None,
        )


def total_gradient(dy_BLHV: torch.Tensor, y_BLHV: torch.Tensor, divisor_GL1: torch.Tensor) -> torch.Tensor:
    """Gradient of the weighted sums [numerator, denominator] (G, L, V+1), from y = numerator / divisor."""
    B, L, H, V = y_BLHV.shape
    g = torch.empty(B, H, L, V + 1, dtype=divisor_GL1.dtype, device=divisor_GL1.device)
    torch.div(dy_BLHV.transpose(1, 2), divisor_GL1.view(B, H, L, 1), out=g[..., :V])
    g[..., V] = (g[..., :V] * y_BLHV.transpose(1, 2)).sum(-1).neg_()
    return g.view(B * H, L, V + 1)


def vector_gradient(gradient_BHNK1: torch.Tensor, factor: float, dtype: torch.dtype) -> torch.Tensor:
    """Gradient of [1, factor x] -> gradient of x (B, N, H, K), contiguous for the projection behind it."""
    B, H, N, K1 = gradient_BHNK1.shape
    out = torch.empty(B, N, H, K1 - 1, dtype=dtype, device=gradient_BHNK1.device)
    torch.mul(gradient_BHNK1[..., 1:].transpose(1, 2), factor, out=out)
    return out


def value_gradient(gradient_BHNV1: torch.Tensor, keep_BN: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Gradient of [v, 1] -> gradient of v (B, N, H, V); zero at tokens that were left out."""
    B, H, N, V1 = gradient_BHNV1.shape
    out = torch.empty(B, N, H, V1 - 1, dtype=dtype, device=gradient_BHNV1.device)
    if keep_BN is None:
        return out.copy_(gradient_BHNV1[..., :-1].transpose(1, 2))
    return torch.mul(gradient_BHNV1[..., :-1].transpose(1, 2), keep_BN[:, :, None, None], out=out)
