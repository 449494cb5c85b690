"""The causal memory: every token reads the mean of B x up to itself, in spans that carry R numbers a head.

Letters: G = B·H; h = H, or 1 where the heads share one memory; S span.
"""

from __future__ import annotations

import torch

from kernels.gradients import once_differentiable
from kernels.orthogonal_memory.read import basis_of_rows, read_span, read_span_backward
from kernels.orthogonal_memory.read import span as span_of
from kernels.taylor.features import accumulator_dtype, autocast_off
from kernels.window.heads import heads_first


def running_sums(x_GSK, basis_GRK, before_BhR, shared: bool, keep_BS=None) -> torch.Tensor:
    """Sums of B x up to each token of a span, itself included: (B, h, S, R). Tokens that are not kept add nothing."""
    features = torch.bmm(x_GSK, basis_GRK.transpose(1, 2)).unflatten(0, (before_BhR.shape[0], -1))
    if shared:
        features = features.sum(1, keepdim=True)
    if keep_BS is not None:
        features.mul_(keep_BS[:, None, :, None])
    return features.cumsum(2).add_(before_BhR.unsqueeze(2))


def counts(count_B: torch.Tensor | None, start: int, stop: int, like: torch.Tensor) -> torch.Tensor:
    """Tokens that each slot's mean is over, (B or 1, 1, S, 1); the sums are divided by them last."""
    count = torch.arange(start + 1, stop + 1, device=like.device)
    if count_B is not None:
        count = count + count_B[:, None]
    return count.to(like.dtype).view(-1, 1, stop - start, 1)


def scan(q_BLHK, x_BLHK, basis_HRK, sum_BhR, count_B, keep_BL, shared, scale, span, boundaries=None):
    """(y_BLHK, sums after the last kept token); appends the sums before each span to `boundaries`."""
    B, L, H, _ = q_BLHK.shape
    dtype = accumulator_dtype(q_BLHK.dtype)
    basis_GRK, y_BLHK = basis_of_rows(basis_HRK, B, dtype), torch.empty_like(q_BLHK)
    for start in range(0, L, span):
        part = slice(start, min(start + span, L))
        if boundaries is not None:
            boundaries.append(sum_BhR)
        sums = running_sums(heads_first(x_BLHK[:, part], dtype), basis_GRK, sum_BhR, shared,
                            None if keep_BL is None else keep_BL[:, part])
        sum_BhR = sums[:, :, -1].clone()
        mean = sums.div_(counts(count_B, part.start, part.stop, sums))
        y_GSK = read_span(heads_first(q_BLHK[:, part], dtype, scale), basis_GRK, mean)
        y_BLHK[:, part] = y_GSK.unflatten(0, (B, H)).transpose(1, 2)
    return y_BLHK, sum_BhR


class Scan(torch.autograd.Function):
    """Keeps the inputs and the sums before each span; the backward runs over the spans from the last to the first."""

    @staticmethod
    def forward(ctx, q_BLHK, x_BLHK, basis_HRK, sum_BhR, count_B, keep_BL, shared, scale, span):
        boundaries: list[torch.Tensor] = []
        y_BLHK, sums = scan(q_BLHK, x_BLHK, basis_HRK, sum_BhR, count_B, keep_BL, shared, scale, span, boundaries)
        ctx.save_for_backward(q_BLHK, x_BLHK, basis_HRK, count_B, keep_BL, *boundaries)
        ctx.settings = (shared, scale, span)
        return y_BLHK, sums

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy_BLHK, dsum_BhR):
        q_BLHK, x_BLHK, basis_HRK, count_B, keep_BL, *boundaries = ctx.saved_tensors
        shared, scale, span = ctx.settings
        B, L, H, _ = q_BLHK.shape
        dtype = accumulator_dtype(q_BLHK.dtype)
        basis_GRK = basis_of_rows(basis_HRK, B, dtype)
        dq, dx, dbasis = torch.empty_like(q_BLHK), torch.empty_like(x_BLHK), torch.zeros_like(basis_GRK)
        for index in reversed(range(len(boundaries))):
            part = slice(index * span, min(index * span + span, L))
            x, keep_BS = heads_first(x_BLHK[:, part], dtype), None if keep_BL is None else keep_BL[:, part]
            sums = running_sums(x, basis_GRK, boundaries[index], shared, keep_BS)
            count = counts(count_B, part.start, part.stop, sums)
            dq_GSK, dmean = read_span_backward(
                heads_first(q_BLHK[:, part], dtype, scale), basis_GRK, sums.div_(count),
                heads_first(dy_BLHK[:, part], dtype), dbasis)
            dsums = dmean.div_(count)
            # token j counts in every sum from its own to the end: a cumulative sum from the right
            upto = dsums.cumsum(2)
            dfeatures = dsums.sub_(upto).add_((upto[:, :, -1] + dsum_BhR).unsqueeze(2))
            dsum_BhR = upto[:, :, -1] + dsum_BhR
            if keep_BS is not None:
                dfeatures.mul_(keep_BS[:, None, :, None])
            dfeatures_GSR = dfeatures.expand(B, H, -1, -1).flatten(0, 1)
            dbasis.baddbmm_(dfeatures_GSR.transpose(1, 2), x)
            dx[:, part] = torch.bmm(dfeatures_GSR, basis_GRK).unflatten(0, (B, H)).transpose(1, 2)
            dq[:, part] = dq_GSK.mul_(scale).unflatten(0, (B, H)).transpose(1, 2)
        return (dq, dx, dbasis.unflatten(0, (B, H)).sum(0).to(basis_HRK.dtype), dsum_BhR,
                None, None, None, None, None)


def causal_memory(q_BLHK, x_BLHK, basis_HRK, sum_BhR, count_B, keep_BL, shared, scale, span=None):
    """(y_BLHK in q's dtype, sums after the last kept token)."""
    differentiable = torch.is_grad_enabled() and any(
        x.requires_grad for x in (q_BLHK, x_BLHK, basis_HRK, sum_BhR))
    return (Scan.apply if differentiable else scan)(
        q_BLHK, x_BLHK, basis_HRK, sum_BhR, count_B, keep_BL, shared, scale, span or span_of(q_BLHK.device))
