"""Long rows: a loop over chunks that carries the sum of phi(k) [v, 1], linear in L, with a hand-written backward.

Design: inside a chunk the quadratic form, across chunks the state (forward.py). A Python loop over chunks is 2-3 times
faster than all chunks at once, because temporaries stay in the cache, and needs no memory for them. The chunk is a
matter of speed alone: any size gives the same result. Only the inputs and the sums before each chunk are kept for the
backward. Its derivation: README.md.

Shape letters: G = B·H, C chunk; S_GFV1 is the running sum, its last column the normaliser's. Others: features.py.
"""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

from kernels.taylor.features import accumulator_dtype, augmented, autocast_off, expand, placed_values, pull_back
from kernels.taylor.forward import key_sum, scan_forward
from kernels.taylor.quadratic import total_gradient, value_gradient, vector_gradient


class Scan(torch.autograd.Function):
    """The causal sum over a row from initial sums S0 (or None): returns (y_BLHV, final sums or None)."""

    @staticmethod
    def forward(ctx, q_BLHK, k_BLHK, v_BLHV, initial, keep_BL, scale, eps, chunk, want_sums):
        B, L, H, _ = q_BLHK.shape
        divisor_GL1 = torch.empty(B * H, L, 1, dtype=accumulator_dtype(q_BLHK.dtype), device=q_BLHK.device)
        saved: list[torch.Tensor | None] = []
        y_BLHV, sums = scan_forward(
            q_BLHK, k_BLHK, v_BLHV, initial, keep_BL, scale=scale, eps=eps, chunk=chunk, want_sums=want_sums,
            divisor_GL1=divisor_GL1, saved=saved)
        ctx.save_for_backward(q_BLHK, k_BLHK, v_BLHV, divisor_GL1, y_BLHV, keep_BL, *saved)
        ctx.settings = (scale**0.5, chunk, initial is not None)
        ctx.set_materialize_grads(False)
        return y_BLHV, sums if want_sums else None

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy_BLHV, d_sums):
        q_BLHK, k_BLHK, v_BLHV, divisor_GL1, y_BLHV, keep_BL, *saved = ctx.saved_tensors
        factor, chunk, had_initial = ctx.settings
        B, L, H, V = y_BLHV.shape
        q1, k1, v1 = augmented(q_BLHK, factor), augmented(k_BLHK, factor), placed_values(v_BLHV, keep_BL)
        if dy_BLHV is None:
            dy_BLHV = torch.zeros_like(y_BLHV)
        g = total_gradient(dy_BLHV, y_BLHV, divisor_GL1)
        one = torch.ones((), dtype=q1.dtype, device=q1.device)
        dq1, dk1, dv1 = torch.empty_like(q1), torch.empty_like(k1), torch.empty_like(v1)
        reverse = None if d_sums is None else d_sums.to(q1.dtype).clone()
        for index in range(len(saved) - 1, -1, -1):
            part = slice(index * chunk, min((index + 1) * chunk, L))
            q_, k_, v_, g_, sums = q1[:, part], k1[:, part], v1[:, part], g[:, part], saved[index]
            u = torch.bmm(q_, k_.transpose(1, 2))
            du = torch.bmm(g_, v_.transpose(1, 2)).mul_(u).tril_()
            dq, dk = torch.bmm(du, k_), torch.bmm(du.transpose(1, 2), q_)
            dv = torch.bmm(torch.addcmul(one, u, u, out=u).tril_().transpose(1, 2), g_)
            if sums is not None:
                dq += pull_back(q_, torch.bmm(g_, sums.transpose(1, 2)))
            if reverse is not None:
                dk += pull_back(k_, torch.bmm(v_, reverse.transpose(1, 2))).mul_(0.5)
                dv.baddbmm_(expand(k_), reverse)
            if sums is not None:
                features = expand(q_).transpose(1, 2)
                reverse = torch.bmm(features, g_).mul_(2) if reverse is None else reverse.baddbmm_(features, g_, alpha=2)
            dq1[:, part], dk1[:, part], dv1[:, part] = dq, dk, dv
        dtype, heads = y_BLHV.dtype, (B, H, L, -1)
        return (
            vector_gradient(dq1.view(heads), 2 * factor, dtype),
            vector_gradient(dk1.view(heads), 2 * factor, dtype),
            value_gradient(dv1.view(heads), keep_BL, dtype),
            reverse if had_initial else None,
            None, None, None, None, None,
        )


class KeySum(torch.autograd.Function):
    """sum over a row's kept tokens of phi(k) [v, 1], on top of `initial` (or None): the encoder sum of a prefix."""

    @staticmethod
    def forward(ctx, k_BMHK, v_BMHV, initial, keep_BM, scale, chunk):
        ctx.save_for_backward(k_BMHK, v_BMHV, keep_BM)
        ctx.settings = (scale**0.5, chunk, initial is not None)
        return key_sum(k_BMHK, v_BMHV, initial, keep_BM, scale=scale)

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, d_sums):
        k_BMHK, v_BMHV, keep_BM = ctx.saved_tensors
        factor, chunk, had_initial = ctx.settings
        (B, M, H, _), dtype = k_BMHK.shape, k_BMHK.dtype
        k1, v1 = augmented(k_BMHK, factor), placed_values(v_BMHV, keep_BM)
        d_sums = d_sums.contiguous()
        dk1, dv1 = torch.empty_like(k1), torch.empty_like(v1)
        for start in range(0, M, chunk):
            part = slice(start, min(start + chunk, M))
            dk1[:, part] = pull_back(k1[:, part], torch.bmm(v1[:, part], d_sums.transpose(1, 2)))
            dv1[:, part] = torch.bmm(expand(k1[:, part]), d_sums)
        return (
            vector_gradient(dk1.view(B, H, M, -1), factor, dtype),
            value_gradient(dv1.view(B, H, M, -1), keep_BM, dtype),
            d_sums if had_initial else None,
            None, None, None,
        )

