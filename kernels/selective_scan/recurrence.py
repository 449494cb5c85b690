"""The recurrence inside a chunk, in place, for a CPU and for devices where each operation has a cost of its own."""

from __future__ import annotations

import torch


def accumulate(decay: torch.Tensor, values: torch.Tensor, *, reverse: bool = False) -> None:
    """values[t] += decay[t] values[t-1] along the first axis; reversed, values[t] += decay[t+1] values[t+1].

    `decay` keeps its content. On a CPU one multiply-add a token (a row of numbers at a time); elsewhere log2(C) rounds
    over the whole chunk.
    """
    if values.device.type != "cpu":
        double(decay, values, reverse=reverse)
        return
    a, v = decay.unbind(0), values.unbind(0)
    steps = zip(a[:0:-1], v[-2::-1], v[:0:-1]) if reverse else zip(a[1:], v[1:], v[:-1])
    for factor, value, neighbour in steps:
        value.addcmul_(factor, neighbour)


def double(decay: torch.Tensor, values: torch.Tensor, *, reverse: bool = False) -> None:
    """`accumulate` by doubling: after k rounds each value holds the part of its last 2^k tokens."""
    C = values.shape[0]
    factor = torch.empty_like(decay)  # factor[t]: decay between t and its neighbour, of the span reached so far
    if reverse:
        factor[:-1] = decay[1:]
    else:
        factor[1:] = decay[1:]
    span = 1
    while span < C:
        here, there = (slice(0, C - span), slice(span, C)) if reverse else (slice(span, C), slice(0, C - span))
        values[here] += factor[here] * values[there]
        further = slice(0, max(C - 2 * span, 0)) if reverse else slice(2 * span, C)
        factor[further] = factor[further] * factor[span : max(C - span, span)]
        span *= 2
