"""Blocks of queries against the keys near them and the summaries before them; the backward computes the weights again.

Nothing as long as a row times the summaries is ever kept: memory is linear in the row, also with gradients.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.gradients import once_differentiable
from kernels.summary_window.near import Places, Rule, first_near, reach
from kernels.taylor.features import accumulator_dtype, autocast_off

BLOCK = 64  # queries a block


class Block(NamedTuple):
    """Query slots start..stop-1, key columns low..high-1, slots 0..slots-1."""

    start: int
    stop: int
    low: int
    high: int
    slots: int


def plan(L: int, N: int, S: int, rule: Rule, moved: bool) -> list[Block]:
    """The blocks of a row. `moved`: rows began at positions of their own, so that borders differ by row."""
    found = []
    for start in range(0, L, BLOCK):
        stop = min(start + BLOCK, L)
        first = N - L + start - reach(rule) + 1 if moved else first_near(rule, start)
        slots = S if moved else min((stop - 1) // rule.chunk * rule.rank, S)
        found.append(Block(start, stop, max(first, 0), N - L + stop, slots))
    return found


def attend(q, k, v, far_k, far_v, near, table, far, key_bias, *, block: Block, P: int, rule: Rule, before_B, scale) -> torch.Tensor:
    """(B, queries, H, V) of one block: q, k, v and key_bias cut to it, summaries to the slots that it may read."""
    dtype, device = accumulator_dtype(q.dtype), q.device
    q = (q.to(dtype) * scale).transpose(1, 2)
    k, v, far_k, far_v = (t.to(dtype).transpose(1, 2) for t in (k, v, far_k, far_v))
    query, column = (torch.arange(*ends, device=device) for ends in ((block.start, block.stop), (block.low, block.high)))
    offset_CN = P + query[:, None] - column
    position = query[None] if before_B is None else before_B[:, None] + query  # (1 or B, C)
    scores = q @ k.transpose(2, 3)
    if near is not None:
        by_offset = torch.einsum("bhck,ohk->bhco", q, near.to(dtype))
        scores = scores + by_offset.gather(3, offset_CN.clamp(0, len(near) - 1).expand_as(scores))
    if table is not None:
        scores = scores + table.to(dtype)[:, offset_CN.clamp(0, table.shape[1] - 1)]
    if key_bias is not None:
        scores = scores + key_bias.to(dtype).transpose(1, 2)[:, :, None]
    key = position[..., None] - offset_CN
    seen = (offset_CN >= 0) & (key >= first_near(rule, position).clamp(min=0)[..., None])
    slot = torch.arange(block.slots, device=device)
    back = (position // rule.chunk * rule.rank)[..., None] - 1 - slot  # (1 or B, C, S)
    far_scores = q @ far_k.transpose(2, 3)
    if far is not None and block.slots:
        by_back = torch.einsum("bhck,shk->bhcs", q, far.to(dtype))
        far_scores = far_scores + by_back.gather(3, back.clamp(0, len(far) - 1)[:, None].expand_as(far_scores))
    both = torch.cat((scores.masked_fill(~seen[:, None], float("-inf")),
                      far_scores.masked_fill((back < 0)[:, None], float("-inf"))), -1)
    weights = both.softmax(-1)
    return (weights[..., :k.shape[2]] @ v + weights[..., k.shape[2]:] @ far_v).transpose(1, 2)


def cut(tensors: tuple, block: Block) -> list[torch.Tensor | None]:
    """Views of what a block reads: q; k, v; summaries; places; key bias."""
    q, k, v, far_k, far_v, near, table, far, key_bias = tensors
    queries, keys, slots = slice(block.start, block.stop), slice(block.low, block.high), slice(block.slots)
    return [q[:, queries], k[:, keys], v[:, keys], far_k[:, slots], far_v[:, slots], near, table,
            None if far is None else far[:block.slots], None if key_bias is None else key_bias[:, keys]]


class SummaryWindow(torch.autograd.Function):
    """All blocks of a row; keeps the inputs alone."""

    @staticmethod
    def forward(ctx, settings, before_B, *tensors):
        rule, scale = settings
        q, k, v, far_k = tensors[:4]
        L, N = q.shape[1], k.shape[1]
        blocks = plan(L, N, far_k.shape[1], rule, before_B is not None)
        fixed = {"P": N - L, "rule": rule, "before_B": before_B, "scale": scale}
        y_BLHV = v.new_empty(*q.shape[:3], v.shape[-1])
        for block in blocks:
            y_BLHV[:, block.start:block.stop] = attend(*cut(tensors, block), block=block, **fixed)
        ctx.save_for_backward(*tensors)
        ctx.settings = (blocks, fixed)
        return y_BLHV

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy_BLHV):
        tensors, (blocks, fixed) = ctx.saved_tensors, ctx.settings
        wanted = ctx.needs_input_grad[2:]
        total = tuple(torch.zeros_like(t, dtype=accumulator_dtype(t.dtype)) if need else None
                      for t, need in zip(tensors, wanted))
        for block in blocks:
            parts = [None if part is None else part.detach().requires_grad_(need)
                     for part, need in zip(cut(tensors, block), wanted)]
            with torch.enable_grad():
                y = attend(*parts, block=block, **fixed)
            leaves = [part for part, need in zip(parts, wanted) if need]
            found = iter(torch.autograd.grad(y, leaves, dy_BLHV[:, block.start:block.stop].to(y.dtype), materialize_grads=True))
            into = cut(tuple(sum_ if need else t for sum_, t, need in zip(total, tensors, wanted)), block)
            for part, need in zip(into, wanted):
                if need:
                    part.add_(next(found))
        return None, None, *(None if t is None else t.to(tensor.dtype) for t, tensor in zip(total, tensors))


def summary_window_blocks(q, k, v, far_k, far_v, *, rule: Rule, places: Places, past_B, scale: float) -> torch.Tensor:
    """See `kernels.summary_window.summary_window`."""
    return SummaryWindow.apply((rule, scale), past_B, q, k, v, far_k, far_v, places.near_OHK, places.table_HO, places.far_SHK,
                               places.key_BNH)
