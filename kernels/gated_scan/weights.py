"""What the tokens of a chunk read of each other, and its gradients: one decay a head, or one a key channel.

Both forms have the same two functions, over N chunks at once. q carries the scale already; `prefix` and `suffix` are
the decays since the chunk's start and until its end (decay.py).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.gated_scan.decay import Triangle, halves, head_decay, in_halves, lower_left


class Parts(NamedTuple):
    """A chunk taken apart: y = weights v + seen S, and S <- total S + kept^T v."""

    weights: torch.Tensor  # (N, C, C)
    seen: torch.Tensor  # (N, C, K) queries, decayed since the chunk's start
    kept: torch.Tensor  # (N, C, K) keys, decayed until its end
    total: torch.Tensor  # (N, K or 1, 1)


class Gradients(NamedTuple):
    """The weights again, what their gradient gives to q and k, and the factors of the rest."""

    weights: torch.Tensor
    dq: torch.Tensor
    dk: torch.Tensor
    prefix: torch.Tensor  # (N, C, K or 1)
    suffix: torch.Tensor
    total: torch.Tensor


def head_parts(q, k, logs, triangle: Triangle) -> Parts:
    """One decay a token and head: logs (N, C, 1). Overwrites q and k."""
    prefix, suffix, total = head_decay(logs, triangle)
    weights = torch.bmm(q, k.transpose(1, 2)).mul_(triangle.matrix)
    return Parts(weights, q.mul_(prefix), k.mul_(suffix), total)


def head_gradients(q, k, logs, d_weights, triangle: Triangle) -> Gradients:
    """The gradient of `head_parts`; d_weights (N, C, C) may hold anything above the diagonal, and is overwritten."""
    prefix, suffix, total = head_decay(logs, triangle)
    weights = torch.bmm(q, k.transpose(1, 2)).mul_(triangle.matrix)
    d_weights.mul_(triangle.matrix)
    return Gradients(weights, torch.bmm(d_weights, k), torch.bmm(d_weights.transpose(1, 2), q), prefix, suffix, total)


def channel_parts(q, k, logs, triangle: Triangle) -> Parts:
    """One decay a token and key channel: logs (N, C, K). Overwrites q, k and logs."""
    total = logs.sum(1).exp().unsqueeze(-1)
    triangle.diagonal.copy_(torch.linalg.vecdot(q, k))
    block = logs.exp_()
    q.mul_(block)
    for h, quarter in zip(halves(q.shape[1]), triangle.quarters):
        (earlier, _), (_, later), (first, second) = in_halves(k, h), in_halves(q, h), in_halves(block, 1)
        products = (later * earlier).sum(-1) if h == 1 else torch.bmm(later, earlier.transpose(1, 2))
        quarter.copy_(products.view(quarter.shape))
        later.mul_(first)
        earlier.mul_(second)
        block = first * second
    return Parts(triangle.matrix, q, k, total)


def channel_gradients(q, k, logs, d_weights, triangle: Triangle) -> Gradients:
    """The gradient of `channel_parts`; d_weights (N, C, C) may hold anything above the diagonal."""
    total = logs.sum(1).exp().unsqueeze(-1)
    triangle.diagonal.copy_(torch.linalg.vecdot(q, k))
    own = d_weights.diagonal(dim1=1, dim2=2).unsqueeze(-1)
    dq, dk = k * own, q * own
    block = logs.exp()
    prefix, suffix = block.clone(), torch.ones_like(logs)
    for h, quarter in zip(halves(q.shape[1]), triangle.quarters):
        d_quarter = lower_left(d_weights, h).reshape(-1, h, h)
        later, earlier = in_halves(prefix, h)[1], in_halves(suffix, h)[0]
        seen, kept = in_halves(q, h)[1] * later, in_halves(k, h)[0] * earlier
        quarter.copy_(torch.bmm(seen, kept.transpose(1, 2)).view(quarter.shape))
        in_halves(dq, h)[1].addcmul_(later, torch.bmm(d_quarter, kept))
        in_halves(dk, h)[0].addcmul_(earlier, torch.bmm(d_quarter.transpose(1, 2), seen))
        first, second = in_halves(block, 1)
        later.mul_(first)
        earlier.mul_(second)
        block = first * second
    return Gradients(triangle.matrix, dq, dk, prefix, suffix, total)
