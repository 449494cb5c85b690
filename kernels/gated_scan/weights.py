"""What the tokens of a chunk read of each other, and its gradients: one decay a head, or one a key channel.

Both forms have the same two functions, over N chunks at once: all of a room (room.py), or its gradients. q carries the scale already; `prefix` and `suffix` are
the decays since the chunk's start and until its end (decay.py).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.gated_scan.decay import Triangle, halves, head_decay, in_halves, lower_left
from kernels.gated_scan.room import Room


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


def head_parts(room: Room) -> Parts:
    """One decay a token and head: logs (N, C, 1). Overwrites the room's q and k."""
    q, k, logs = (x.flatten(0, 1) for x in (room.q, room.k, room.logs))
    prefix, suffix, total = head_decay(logs, room.triangle)
    weights = torch.bmm(q, k.transpose(1, 2)).mul_(room.triangle.matrix)
    return Parts(weights, q.mul_(prefix), k.mul_(suffix), total)


def head_gradients(q, k, logs, d_weights, triangle: Triangle) -> Gradients:
    """The gradient of `head_parts`; d_weights (N, C, C) may hold anything above the diagonal, and is overwritten."""
    prefix, suffix, total = head_decay(logs, triangle)
    weights = torch.bmm(q, k.transpose(1, 2)).mul_(triangle.matrix)
    d_weights.mul_(triangle.matrix)
    return Gradients(weights, torch.bmm(d_weights, k), torch.bmm(d_weights.transpose(1, 2), q), prefix, suffix, total)


def channel_parts(room: Room) -> Parts:
    """One decay a token and key channel: logs (N, C, K). Overwrites the room's q, k and logs."""
    q, k, logs = (x.flatten(0, 1) for x in (room.q, room.k, room.logs))
    total = logs.sum(1).exp().unsqueeze(-1)
    room.triangle.diagonal.copy_(torch.mul(q, k, out=room.own.flatten(0, 1)).sum(-1))
    q.mul_(logs.exp_())
    for earlier, later, products, quarter, first, second, both in room.levels:
        torch.bmm(later, earlier.transpose(1, 2), out=products)
        quarter.copy_(products.view(quarter.shape))
        later.mul_(first)
        earlier.mul_(second)
        torch.mul(first, second, out=both)
    return Parts(room.triangle.matrix, q, k, total)


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
