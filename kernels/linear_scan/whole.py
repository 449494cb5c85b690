"""Linear attention in which every query reads every kept key: the sums of a row, then one product a query.

Design: keys, then queries, a chunk at a time, so that temporaries stay in the cache; the backward goes the other way
round. Shape letters as in scan.py.
"""

from __future__ import annotations

import torch

from kernels.gradients import once_differentiable
from kernels.linear_scan.scan import add_keys, divide, heads_first, heads_last, total_gradient
from kernels.taylor.features import accumulator_dtype, autocast_off, placed_values
from kernels.taylor.quadratic import value_gradient


def parts(length: int, chunk: int) -> list[slice]:
    return [slice(start, min(start + chunk, length)) for start in range(0, length, chunk)]


def whole_forward(q_BLHF, k_BMHF, v_BMHV, sums, keep_BM, divisor, chunk):
    """(y_BLHV, sums with every kept key); `sums` is overwritten."""
    (B, L, H, F), V = q_BLHF.shape, v_BMHV.shape[-1]
    dtype = accumulator_dtype(q_BLHF.dtype)
    sums = torch.zeros(B * H, F, V + 1, dtype=dtype, device=q_BLHF.device) if sums is None else sums
    for part in parts(k_BMHF.shape[1], chunk):
        keep = None if keep_BM is None else keep_BM[:, part]
        add_keys(sums, heads_first(k_BMHF[:, part], dtype), placed_values(v_BMHV[:, part], keep), private=True)
    y_BLHV = torch.empty(B, L, H, V, dtype=v_BMHV.dtype, device=q_BLHF.device)
    for part in parts(L, chunk):
        divide(torch.bmm(heads_first(q_BLHF[:, part], dtype), sums), divisor, y_BLHV[:, part])
    return y_BLHV, sums


class Whole(torch.autograd.Function):
    """`whole_forward` with a backward that keeps nothing but the inputs, the output and the sums."""

    @staticmethod
    def forward(ctx, q_BLHF, k_BMHF, v_BMHV, initial, keep_BM, divisor, chunk):
        sums = None if initial is None else initial.clone()
        y_BLHV, sums = whole_forward(q_BLHF, k_BMHF, v_BMHV, sums, keep_BM, divisor, chunk)
        ctx.save_for_backward(q_BLHF, k_BMHF, v_BMHV, y_BLHV, sums, keep_BM)
        ctx.settings = (divisor, chunk, initial is not None)
        ctx.set_materialize_grads(False)
        return y_BLHV, sums

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy_BLHV, d_sums):
        q_BLHF, k_BMHF, v_BMHV, y_BLHV, sums, keep_BM = ctx.saved_tensors
        divisor, chunk, had_initial = ctx.settings
        B, L, H, _ = q_BLHF.shape
        M, V, dtype = k_BMHF.shape[1], v_BMHV.shape[-1], sums.dtype
        reverse = torch.zeros_like(sums) if d_sums is None else d_sums.to(dtype).clone()
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q_BLHF, k_BMHF, v_BMHV))
        for part in parts(L, chunk) if dy_BLHV is not None else []:
            q = heads_first(q_BLHF[:, part], dtype)
            under = divisor.of(torch.bmm(q, sums[..., V:]))
            g = total_gradient(dy_BLHV[:, part], y_BLHV[:, part], under, divisor)
            dq[:, part] = heads_last(torch.bmm(g, sums.transpose(1, 2)), B, dq.dtype)
            add_keys(reverse, q, g, private=True)
        for part in parts(M, chunk):
            keep = None if keep_BM is None else keep_BM[:, part]
            v1 = placed_values(v_BMHV[:, part], keep)
            dk[:, part] = heads_last(torch.bmm(v1, reverse.transpose(1, 2)), B, dk.dtype)
            dv1 = torch.bmm(heads_first(k_BMHF[:, part], dtype), reverse)
            dv[:, part] = value_gradient(dv1.view(B, H, -1, V + 1), keep, dv.dtype)
        if dy_BLHV is None:
            dq.zero_()
        return dq, dk, dv, reverse if had_initial else None, None, None, None
