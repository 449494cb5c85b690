"""Causal linear attention as a loop over chunks that carries the sum of k [v, 1], with a hand-written backward.

Design: inside a chunk the masked quadratic form, across chunks the state. Temporaries have the size of a chunk and stay
in the cache. A row of one chunk is the quadratic form alone. Derivation of the backward: README.md.

Shape letters: G = B·H, C chunk; v1 = [v, 1], zero at tokens that are left out; sums (G, F, V+1), their last column the
normaliser's; totals (G, L, V+1) are [numerator, sum of weights].
"""

from __future__ import annotations

import torch

from kernels.gradients import once_differentiable
from kernels.linear_scan.state import Divisor
from kernels.taylor.features import accumulator_dtype, autocast_off, placed_values
from kernels.taylor.quadratic import value_gradient


def heads_first(x_BLHF: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(B, L, H, F) -> contiguous (B·H, L, F) of `dtype`."""
    B, L, H, F = x_BLHF.shape
    return x_BLHF.transpose(1, 2).to(dtype, memory_format=torch.contiguous_format).reshape(B * H, L, F)


def heads_last(x_GLF: torch.Tensor, B: int, dtype: torch.dtype) -> torch.Tensor:
    """(B·H, L, F) -> contiguous (B, L, H, F) of `dtype`."""
    G, L, F = x_GLF.shape
    out = torch.empty(B, L, G // B, F, dtype=dtype, device=x_GLF.device)
    return out.copy_(x_GLF.view(B, G // B, L, F).transpose(1, 2))


def add_keys(sums: torch.Tensor | None, k_GCF: torch.Tensor, v1_GCV1: torch.Tensor, private: bool) -> torch.Tensor:
    """sums + k^T [v, 1]; into the same tensor if it is private.

    A chunk is summed by itself first: one rounding of the long sum a chunk, where baddbmm makes one a token.
    """
    new = torch.bmm(k_GCF.transpose(1, 2), v1_GCV1)
    if sums is None:
        return new
    return sums.add_(new) if private else new.add_(sums)


def scan_forward(q, k, v1, sums, chunk, want_sums, saved=None):
    """Totals of every query and the final sums.

    `saved` collects the sums before each chunk when a backward will follow; without it they are updated in place
    (the caller passes a private copy).
    """
    G, L, _ = q.shape
    total = torch.empty(G, L, v1.shape[-1], dtype=q.dtype, device=q.device)
    for start in range(0, L, chunk):
        part = slice(start, min(start + chunk, L))
        q_, k_, v_ = q[:, part], k[:, part], v1[:, part]
        out = torch.bmm(torch.bmm(q_, k_.transpose(1, 2)).tril_(), v_)
        if sums is not None:
            out.baddbmm_(q_, sums)
        total[:, part] = out
        if saved is not None:
            saved.append(sums)
        if want_sums or part.stop < L:
            sums = add_keys(sums, k_, v_, private=saved is None)
    return total, sums


def divide(total: torch.Tensor, divisor: Divisor, out_BLHV: torch.Tensor) -> torch.Tensor:
    """Numerator over divisor, written with heads behind positions; the sum of weights is replaced by the divisor."""
    B, L, H, V = out_BLHV.shape
    total = total.view(B, H, L, V + 1)
    out = out_BLHV.transpose(1, 2)
    if not divisor.normalise:
        out.copy_(total[..., :V])
        return out_BLHV
    total[..., V:] = divisor.of(total[..., V:])
    torch.div(total[..., :V], total[..., V:], out=out)
    return out_BLHV


def total_gradient(dy_BLHV, y_BLHV, divisor_GL1, divisor: Divisor) -> torch.Tensor:
    """Gradient of the totals (G, L, V+1), from y = numerator / divisor; nothing flows through a divisor at its floor."""
    B, L, H, V = y_BLHV.shape
    g = torch.empty(B, H, L, V + 1, dtype=divisor_GL1.dtype, device=divisor_GL1.device)
    if divisor.normalise:
        under = divisor_GL1.view(B, H, L, 1)
        torch.div(dy_BLHV.transpose(1, 2), under, out=g[..., :V])
        g[..., V] = (g[..., :V] * y_BLHV.transpose(1, 2)).sum(-1).neg_()
        if divisor.floor is not None:
            g[..., V:].masked_fill_(under.abs() <= divisor.floor, 0.0)
    else:
        g[..., :V] = dy_BLHV.transpose(1, 2)
        g[..., V] = 0.0
    return g.view(B * H, L, V + 1)


class Scan(torch.autograd.Function):
    """The causal sum over a row from initial sums S0 (or None): returns (y_BLHV, final sums or None)."""

    @staticmethod
    def forward(ctx, q_BLHF, k_BLHF, v_BLHV, initial, keep_BL, divisor, chunk, want_sums):
        dtype = accumulator_dtype(q_BLHF.dtype)
        q, k, v1 = heads_first(q_BLHF, dtype), heads_first(k_BLHF, dtype), placed_values(v_BLHV, keep_BL)
        saved: list[torch.Tensor | None] = []
        total, sums = scan_forward(q, k, v1, initial, chunk, want_sums, saved)
        y_BLHV = divide(total, divisor, torch.empty(v_BLHV.shape, dtype=v_BLHV.dtype, device=v_BLHV.device))
        ctx.save_for_backward(q, k, v1, total[..., -1:].clone(), y_BLHV, keep_BL, *saved)
        ctx.settings = (divisor, chunk, initial is not None, q_BLHF.dtype, k_BLHF.dtype)
        ctx.set_materialize_grads(False)
        return y_BLHV, sums if want_sums else None

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy_BLHV, d_sums):
        q, k, v1, under, y_BLHV, keep_BL, *saved = ctx.saved_tensors
        divisor, chunk, had_initial, q_dtype, k_dtype = ctx.settings
        B, L, H, V = y_BLHV.shape
        g = total_gradient(torch.zeros_like(y_BLHV) if dy_BLHV is None else dy_BLHV, y_BLHV, under, divisor)
        dq, dk, dv1 = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v1)
        reverse = None if d_sums is None else d_sums.to(q.dtype).clone()  # gradient of the sums after the chunk
        for index in range(len(saved) - 1, -1, -1):
            part = slice(index * chunk, min((index + 1) * chunk, L))
            q_, k_, v_, g_, sums = q[:, part], k[:, part], v1[:, part], g[:, part], saved[index]
            weights = torch.bmm(q_, k_.transpose(1, 2)).tril_()
            d_weights = torch.bmm(g_, v_.transpose(1, 2)).tril_()
            dq_, dk_ = torch.bmm(d_weights, k_), torch.bmm(d_weights.transpose(1, 2), q_)
            dv_ = torch.bmm(weights.transpose(1, 2), g_)
            if sums is not None:
                dq_.baddbmm_(g_, sums.transpose(1, 2))
            if reverse is not None:
                dk_.baddbmm_(v_, reverse.transpose(1, 2))
                dv_.baddbmm_(k_, reverse)
            if sums is not None:
                reverse = add_keys(reverse, q_, g_, private=True)
            dq[:, part], dk[:, part], dv1[:, part] = dq_, dk_, dv_
        return (
            heads_last(dq, B, q_dtype), heads_last(dk, B, k_dtype),
            value_gradient(dv1.view(B, H, L, V + 1), keep_BL, y_BLHV.dtype),
            reverse if had_initial else None, None, None, None, None,
        )
