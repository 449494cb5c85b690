"""Long rows: a loop over chunks that carries the sum of phi(k) [v, 1], linear in L, with a hand-written backward.

Design: inside a chunk the quadratic form, across chunks the state. A Python loop over chunks is 2-3 times faster than
all chunks at once, because temporaries stay in the cache, and needs no memory for them. The chunk is a matter of
speed alone: any size gives the same result. Derivation of the backward: README.md.

Shape letters: G = B·H, C chunk; S_GFV1 is the running sum, its last column the normaliser's. Others: features.py.
"""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

from kernels.taylor.features import augmented, autocast_off, expand, placed_values, pull_back
from kernels.taylor.quadratic import total_gradient, value_gradient, vector_gradient


def _add_keys(sums: torch.Tensor | None, k1: torch.Tensor, v1: torch.Tensor) -> torch.Tensor:
    """sums + phi(k)^T [v, 1], a new tensor."""
    features = expand(k1).transpose(1, 2)
    return torch.bmm(features, v1) if sums is None else torch.baddbmm(sums, features, v1)


def scan_forward(q1, k1, v1, sums, chunk, eps, want_sums, saved=None):
    """Numerator over divisor for every query; returns (totals with the divisor in the last column, final sums).

    `saved` collects the sums before each chunk when a backward will follow; without it they are updated in place
    (the caller passes a private copy).
    """
    G, L, _ = q1.shape
    V = v1.shape[-1] - 1
    total = torch.empty(G, L, V + 1, dtype=q1.dtype, device=q1.device)
    one = torch.ones((), dtype=q1.dtype, device=q1.device)
    for start in range(0, L, chunk):
        part = slice(start, min(start + chunk, L))
        q_, k_, v_ = q1[:, part], k1[:, part], v1[:, part]
        u = torch.bmm(q_, k_.transpose(1, 2))
        out = torch.bmm(torch.addcmul(one, u, u, out=u).tril_(), v_)
        if sums is not None:
            out.baddbmm_(expand(q_), sums, alpha=2)
        total[:, part] = out
        if saved is not None:
            saved.append(sums)
        if want_sums or part.stop < L:
            if saved is None and sums is not None:
                sums.baddbmm_(expand(k_).transpose(1, 2), v_)
            else:
                sums = _add_keys(sums, k_, v_)
    total[..., V:] += 2 * eps
    return total, sums


class Scan(torch.autograd.Function):
    """The causal sum over a row from initial sums S0 (or None): returns (y_BLHV, final sums or None)."""

    @staticmethod
    def forward(ctx, q_BLHK, k_BLHK, v_BLHV, initial, keep_BL, scale, eps, chunk, want_sums):
        B, L, H, K = q_BLHK.shape
        factor = scale**0.5
        q1, k1, v1 = augmented(q_BLHK, factor), augmented(k_BLHK, factor), placed_values(v_BLHV, keep_BL)
        saved: list[torch.Tensor | None] = []
        total, sums = scan_forward(q1, k1, v1, initial, chunk, eps, want_sums, saved)
        y_BLHV = divide(total, torch.empty(v_BLHV.shape, dtype=v_BLHV.dtype, device=v_BLHV.device))
        ctx.save_for_backward(q1, k1, v1, total, y_BLHV, keep_BL, *saved)
        ctx.settings = (factor, chunk, initial is not None)
        ctx.set_materialize_grads(False)
        return y_BLHV, sums if want_sums else None

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy_BLHV, d_sums):
        q1, k1, v1, total, y_BLHV, keep_BL, *saved = ctx.saved_tensors
        factor, chunk, had_initial = ctx.settings
        B, L, H, V = y_BLHV.shape
        if dy_BLHV is None:
            dy_BLHV = torch.zeros_like(y_BLHV)
        g = total_gradient(dy_BLHV, y_BLHV, total[..., V:])
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
        factor = scale**0.5
        k1, v1 = augmented(k_BMHK, factor), placed_values(v_BMHV, keep_BM)
        sums = None if initial is None else initial.clone()
        for start in range(0, k1.shape[1], chunk):
            k_, v_ = k1[:, start : start + chunk], v1[:, start : start + chunk]
            features = expand(k_).transpose(1, 2)
            sums = torch.bmm(features, v_) if sums is None else sums.baddbmm_(features, v_)
        ctx.save_for_backward(k1, v1, keep_BM)
        ctx.settings = (factor, chunk, k_BMHK.shape, k_BMHK.dtype, initial is not None)
        return sums

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, d_sums):
        k1, v1, keep_BM = ctx.saved_tensors
        factor, chunk, (B, M, H, _), dtype, had_initial = ctx.settings
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


def divide(total: torch.Tensor, out_BLHV: torch.Tensor) -> torch.Tensor:
    """Numerator over divisor (G, L, V+1), written with heads behind positions."""
    total = total.unflatten(0, (out_BLHV.shape[0], -1))
    torch.div(total[..., :-1], total[..., -1:], out=out_BLHV.transpose(1, 2))
    return out_BLHV
