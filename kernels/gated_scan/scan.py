"""The gated scan as a loop over chunks, forward and backward by hand.

A stretch of several chunks is taken apart at once (weights.py), so that the fixed price of a torch call is paid by more
numbers; then the state goes through its chunks one by one, updated in place; what a chunk writes is summed by itself first, so that
the long sum is rounded once a chunk and not once a token. Letters as in packing.py.
"""

from __future__ import annotations

import torch

from kernels.gated_scan.decay import Triangle
from kernels.gated_scan.packing import pack, unpack
from kernels.gated_scan.room import Room
from kernels.gated_scan.weights import channel_gradients, channel_parts, head_gradients, head_parts
from kernels.gradients import once_differentiable
from kernels.taylor.features import accumulator_dtype, autocast_off


def stretches(L: int, chunk: int, G: int) -> list[slice]:
    """The parts of a row that are taken apart at once: 2,048 tokens of all heads together (measured, README.md)."""
    tokens = chunk * max(1, 2048 // (G * chunk))
    return [slice(start, min(start + tokens, L)) for start in range(0, L, tokens)]


class Triangles(dict):
    """Triangle buffers by their number of matrices: a row needs one, or two if its last stretch is shorter."""

    def __init__(self, C: int, dtype: torch.dtype, device: torch.device):
        super().__init__()
        self.arguments = (C, dtype, device)

    def __missing__(self, N: int) -> Triangle:
        self[N] = Triangle(N, *self.arguments)
        return self[N]


def scan(q_BLHK, k_BLHK, v_BLHV, log_decay_BLHK, state, keep_BL, scale, chunk, want_state, saved=None):
    """(y_BLHV, final state (G, K, V) or None). log_decay (B, L, H, K) or (B, L, H, 1).

    `state` (G, K, V) or None is overwritten; `saved` collects, per stretch, the state before each of its chunks.
    """
    (B, L, H, K), V, dtype = q_BLHK.shape, v_BLHV.shape[-1], accumulator_dtype(q_BLHK.dtype)
    take_apart = head_parts if log_decay_BLHK.shape[-1] == 1 else channel_parts
    rooms: dict[int, Room] = {}  # by chunks of a stretch: all alike but the last
    fresh = state is None
    if fresh:
        state = torch.zeros(B * H, K, V, dtype=dtype, device=q_BLHK.device)
    y_BLHV = torch.empty(v_BLHV.shape, dtype=v_BLHV.dtype, device=v_BLHV.device)
    for part in stretches(L, chunk, B * H):
        S = -(-(part.stop - part.start) // chunk)
        if S not in rooms:
            rooms[S] = Room(S, B * H, chunk, K, V, log_decay_BLHK.shape[-1], dtype, q_BLHK.device)
        room = rooms[S]
        pack(q_BLHK, part, chunk, dtype, factor=scale, out=room.q)
        pack(k_BLHK, part, chunk, dtype, keep_BL=keep_BL, out=room.k)
        pack(log_decay_BLHK, part, chunk, dtype, keep_BL=keep_BL, out=room.logs)
        v, y = pack(v_BLHV, part, chunk, dtype, out=room.v), room.y
        weights, *parts = take_apart(room)
        seen, kept, total = (x.unflatten(0, (S, -1)) for x in parts)
        torch.bmm(weights, v.flatten(0, 1), out=y.flatten(0, 1))
        if saved is not None:
            saved.append(torch.empty(S, *state.shape, dtype=dtype, device=state.device))
        for s in range(S):
            if saved is not None:
                saved[-1][s] = state
            if not (fresh and part.start == s == 0):
                y[s].baddbmm_(seen[s], state)
            if want_state or part.stop < L or s < S - 1:
                state.mul_(total[s]).add_(torch.bmm(kept[s].transpose(1, 2), v[s]))
        unpack(y, part, y_BLHV)
    return y_BLHV, state if want_state else None


class GatedScan(torch.autograd.Function):
    """`scan` with its gradients; the state is kept once a chunk, all else is made again."""

    @staticmethod
    def forward(ctx, q_BLHK, k_BLHK, v_BLHV, log_decay_BLHK, state, keep_BL, scale, chunk, want_state):
        saved: list[torch.Tensor] = []
        initial = None if state is None else state.clone()
        y_BLHV, after = scan(
            q_BLHK, k_BLHK, v_BLHV, log_decay_BLHK, initial, keep_BL, scale, chunk, want_state, saved)
        ctx.save_for_backward(q_BLHK, k_BLHK, v_BLHV, log_decay_BLHK, keep_BL, *saved)
        ctx.settings = (scale, chunk, state is not None)
        ctx.set_materialize_grads(False)
        return y_BLHV, after

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy_BLHV, d_state):
        q_BLHK, k_BLHK, v_BLHV, log_decay_BLHK, keep_BL, *saved = ctx.saved_tensors
        scale, chunk, had_state = ctx.settings
        (B, L, H, K), V, dtype = q_BLHK.shape, v_BLHV.shape[-1], accumulator_dtype(q_BLHK.dtype)
        gradients = head_gradients if log_decay_BLHK.shape[-1] == 1 else channel_gradients
        triangles = Triangles(chunk, dtype, q_BLHK.device)
        dy_BLHV = torch.zeros_like(v_BLHV) if dy_BLHV is None else dy_BLHV
        d_state = torch.zeros(B * H, K, V, dtype=dtype, device=q_BLHK.device) if d_state is None else d_state.clone()
        dq_BLHK, dk_BLHK, dv_BLHV, dg_BLHK = (
            torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q_BLHK, k_BLHK, v_BLHV, log_decay_BLHK))
        for part, states in zip(reversed(stretches(L, chunk, B * H)), reversed(saved)):
            S = states.shape[0]
            packed_q, packed_dy = pack(q_BLHK, part, chunk, dtype, factor=scale), pack(dy_BLHV, part, chunk, dtype)
            q, dy, v = (x.flatten(0, 1) for x in (packed_q, packed_dy, pack(v_BLHV, part, chunk, dtype)))
            k, logs = (pack(x, part, chunk, dtype, keep_BL=keep_BL).flatten(0, 1) for x in (k_BLHK, log_decay_BLHK))
            weights, dq, dk, prefix, suffix, total = gradients(
                q, k, logs, torch.bmm(dy, v.transpose(1, 2)), triangles[S * B * H])
            dv = torch.bmm(weights.transpose(1, 2), dy)
            seen, total_by_chunk = (q * prefix).view(packed_q.shape), total.unflatten(0, (S, -1))
            d_states = torch.empty_like(states)
            for s in range(S - 1, -1, -1):  # the gradient of the state behind each chunk
                d_states[s] = d_state
                d_state.mul_(total_by_chunk[s]).add_(torch.bmm(seen[s].transpose(1, 2), packed_dy[s]))
            behind, before = d_states.flatten(0, 1), states.flatten(0, 1)
            dq.addcmul_(prefix, torch.bmm(dy, before.transpose(1, 2)))
            written = torch.bmm(v, behind.transpose(1, 2)).mul_(suffix)
            dk.add_(written)
            dv.baddbmm_(k * suffix, behind)
            # a query's decay multiplies all it reads, a key's divides; the last sum also carries the state onwards
            sums = (q * dq).addcmul_(k, dk, value=-1)
            sums[:, -1] += (k * written).sum(1) + total.squeeze(-1) * (before * behind).sum(-1)
            if log_decay_BLHK.shape[-1] == 1:
                sums = sums.sum(-1, keepdim=True)
            dg = sums.flip(1).cumsum(1).flip(1)
            for x, out, keep in ((dq.mul_(scale), dq_BLHK, None), (dk, dk_BLHK, keep_BL), (dv, dv_BLHV, None),
                                 (dg, dg_BLHK, keep_BL)):
                unpack(x.unflatten(0, (S, -1)), part, out, keep_BL=keep)
        return dq_BLHK, dk_BLHK, dv_BLHV, dg_BLHK, d_state if had_state else None, None, None, None, None
