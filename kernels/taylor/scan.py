"""Long rows under autograd: the chunk loop of forward.py with the hand-written gradients of backward.py.

The chunk is a matter of speed alone: any size gives the same result. Inputs, outputs, divisors and the sums before each
chunk are kept for the backward; everything else is made again.

Shape letters: G = B·H; others: features.py.
"""

from __future__ import annotations

import torch

from kernels.gradients import once_differentiable
from kernels.taylor.backward import key_sum_backward, scan_backward
from kernels.taylor.features import accumulator_dtype, autocast_off, expanded_width
from kernels.taylor.forward import key_sum, scan_forward


class Scan(torch.autograd.Function):
    """The causal sum over a row from initial sums S0 (or None): returns (y_BLHV, final sums or None)."""

    @staticmethod
    def forward(ctx, q_BLHK, k_BLHK, v_BLHV, initial, keep_BL, scale, eps, chunk, want_sums):
        B, L, H, K = q_BLHK.shape
        new = lambda *shape: torch.empty(shape, dtype=accumulator_dtype(q_BLHK.dtype), device=q_BLHK.device)  # noqa: E731
        divisor_GL1, chunks, F = new(B * H, L, 1), -(-L // chunk), expanded_width(K)
        saved = (new(chunks, B, H, F, v_BLHV.shape[-1]), new(chunks, B, H, F))
        y_BLHV, sums = scan_forward(
            q_BLHK, k_BLHK, v_BLHV, initial, keep_BL, scale=scale, eps=eps, chunk=chunk, want_sums=want_sums,
            divisor_GL1=divisor_GL1, saved=saved)
        ctx.save_for_backward(q_BLHK, k_BLHK, v_BLHV, keep_BL, y_BLHV, divisor_GL1, *saved)
        ctx.settings = {"factor": scale**0.5, "chunk": chunk, "had_initial": initial is not None}
        ctx.set_materialize_grads(False)
        return y_BLHV, sums if want_sums else None

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy_BLHV, d_sums):
        *inputs, y_BLHV, divisor_GL1, sums, z = ctx.saved_tensors
        dy_BLHV = torch.zeros_like(y_BLHV) if dy_BLHV is None else dy_BLHV
        gradients = scan_backward(*inputs, y_BLHV, divisor_GL1, (sums, z), dy_BLHV, d_sums, **ctx.settings)
        return *gradients, None, None, None, None, None


class KeySum(torch.autograd.Function):
    """sum over a row's kept tokens of phi(k) [v, 1], on top of `initial` (or None): the encoder sum of a prefix."""

    @staticmethod
    def forward(ctx, k_BMHK, v_BMHV, initial, keep_BM, scale):
        ctx.save_for_backward(k_BMHK, v_BMHV, keep_BM)
        ctx.factor, ctx.had_initial = scale**0.5, initial is not None
        return key_sum(k_BMHK, v_BMHV, initial, keep_BM, scale=scale)

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, d_sums):
        d_sums = d_sums.contiguous()
        dk, dv = key_sum_backward(*ctx.saved_tensors, d_sums, factor=ctx.factor)
        return dk, dv, d_sums if ctx.had_initial else None, None, None
