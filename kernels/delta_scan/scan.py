"""The delta rule as a loop over chunks, forward and backward by hand.

Inside a chunk the corrections x depend on each other: (1 + M) x = beta (v - (p k) S), M strictly lower triangular. The
inverse T of 1 + M is made for all chunks of a stretch at once; then each chunk costs products alone (README.md):

    x = T beta (v - (p k) S)        y = (q k^T . D) x + (p q) S        S <- t S + (s k)^T x

D the decay between tokens, p since the chunk's start, s until its end, t of the whole chunk. Letters as in
gated_scan/packing.py; N chunks of a stretch and all its heads.
"""

from __future__ import annotations

import torch

from kernels.gated_scan.decay import Triangle, head_decay
from kernels.gated_scan.packing import pack, unpack
from kernels.gated_scan.scan import Triangles, stretches
from kernels.gradients import once_differentiable
from kernels.taylor.features import accumulator_dtype, autocast_off


def chunk_matrices(q, k, beta, logs, triangle: Triangle):
    """(T, the weights of reading, prefix, suffix, total) of N chunks; `triangle` is left holding the decays D."""
    prefix, suffix, total = head_decay(logs, triangle)
    couplings = torch.bmm(k, k.transpose(1, 2)).mul_(triangle.matrix).mul_(beta)
    one = torch.eye(k.shape[1], dtype=k.dtype, device=k.device).expand_as(couplings)
    # reads what is below the diagonal, no more
    inverse = torch.linalg.solve_triangular(couplings, one, upper=False, unitriangular=True)
    return inverse, torch.bmm(q, k.transpose(1, 2)).mul_(triangle.matrix), prefix, suffix, total


def scan(q_BLHK, k_BLHK, v_BLHV, beta_BLH1, log_decay_BLH1, state, keep_BL, scale, chunk, want_state, saved=None):
    """(y_BLHV, final state (G, K, V) or None).

    `state` (G, K, V) or None is overwritten; `saved` collects, per stretch, the state before each of its chunks.
    """
    (B, L, H, K), V, dtype = q_BLHK.shape, v_BLHV.shape[-1], accumulator_dtype(q_BLHK.dtype)
    triangles = Triangles(chunk, dtype, q_BLHK.device)
    if state is None:
        state = torch.zeros(B * H, K, V, dtype=dtype, device=q_BLHK.device)
    y_BLHV = torch.empty(v_BLHV.shape, dtype=v_BLHV.dtype, device=v_BLHV.device)
    for part in stretches(L, chunk, B * H):
        q = pack(q_BLHK, part, chunk, dtype, factor=scale).flatten(0, 1)
        k, v = (pack(x, part, chunk, dtype).flatten(0, 1) for x in (k_BLHK, v_BLHV))
        beta, logs = (pack(x, part, chunk, dtype, keep_BL=keep_BL).flatten(0, 1) for x in (beta_BLH1, log_decay_BLH1))
        S = q.shape[0] // (B * H)
        *parts, prefix, suffix, total = chunk_matrices(q, k, beta, logs, triangles[q.shape[0]])
        recalling = k * (beta * prefix)
        parts += (v.mul_(beta), recalling, q.mul_(prefix), k.mul_(suffix), total)
        inverse, weights, v, recalling, seen, kept, total = (x.unflatten(0, (S, -1)) for x in parts)
        y = torch.empty_like(v)
        if saved is not None:
            saved.append(torch.empty(S, *state.shape, dtype=dtype, device=state.device))
        for s in range(S):
            if saved is not None:
                saved[-1][s] = state
            x = torch.bmm(inverse[s], v[s].baddbmm_(recalling[s], state, alpha=-1))
            torch.bmm(weights[s], x, out=y[s]).baddbmm_(seen[s], state)
            if want_state or part.stop < L or s < S - 1:
                state.mul_(total[s]).baddbmm_(kept[s].transpose(1, 2), x)
        unpack(y, part, y_BLHV)
    return y_BLHV, state if want_state else None


class DeltaScan(torch.autograd.Function):
    """`scan` with its gradients; the state is kept once a chunk, all else is made again."""

    @staticmethod
    def forward(ctx, q_BLHK, k_BLHK, v_BLHV, beta_BLH1, log_decay_BLH1, state, keep_BL, scale, chunk, want_state):
        saved: list[torch.Tensor] = []
        initial = None if state is None else state.clone()
        y_BLHV, after = scan(
            q_BLHK, k_BLHK, v_BLHV, beta_BLH1, log_decay_BLH1, initial, keep_BL, scale, chunk, want_state, saved)
        ctx.save_for_backward(q_BLHK, k_BLHK, v_BLHV, beta_BLH1, log_decay_BLH1, keep_BL, *saved)
        ctx.settings = (scale, chunk, state is not None)
        ctx.set_materialize_grads(False)
        return y_BLHV, after

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy_BLHV, d_state):
        q_BLHK, k_BLHK, v_BLHV, beta_BLH1, log_decay_BLH1, keep_BL, *saved = ctx.saved_tensors
        scale, chunk, had_state = ctx.settings
        (B, L, H, K), V, dtype = q_BLHK.shape, v_BLHV.shape[-1], accumulator_dtype(q_BLHK.dtype)
        triangles = Triangles(chunk, dtype, q_BLHK.device)
        dy_BLHV = torch.zeros_like(v_BLHV) if dy_BLHV is None else dy_BLHV
        d_state = torch.zeros(B * H, K, V, dtype=dtype, device=q_BLHK.device) if d_state is None else d_state.clone()
        inputs = (q_BLHK, k_BLHK, v_BLHV, beta_BLH1, log_decay_BLH1)
        outputs = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in inputs)
        for part, states in zip(reversed(stretches(L, chunk, B * H)), reversed(saved)):
            q = pack(q_BLHK, part, chunk, dtype, factor=scale).flatten(0, 1)
            k, v, dy = (pack(x, part, chunk, dtype).flatten(0, 1) for x in (k_BLHK, v_BLHV, dy_BLHV))
            beta, logs = (
                pack(x, part, chunk, dtype, keep_BL=keep_BL).flatten(0, 1) for x in (beta_BLH1, log_decay_BLH1))
            gradients, d_state = stretch_gradients(q, k, v, beta, logs, dy, states, d_state, triangles[q.shape[0]])
            gradients[0].mul_(scale)
            for x, out, keep in zip(gradients, outputs, (None, None, None, keep_BL, keep_BL)):
                unpack(x.unflatten(0, (states.shape[0], -1)), part, out, keep_BL=keep)
        return *outputs, d_state if had_state else None, None, None, None, None


def stretch_gradients(q, k, v, beta, logs, dy, states, d_state, triangle):
    """Gradients of a stretch's (q, k, v, beta, logs), and of the state before it. `d_state` is overwritten."""
    S, before = states.shape[0], states.flatten(0, 1)
    inverse, weights, prefix, suffix, total = chunk_matrices(q, k, beta, logs, triangle)
    missed = torch.baddbmm(v, k * prefix, before, alpha=-1)  # what the state does not know of v yet
    x = torch.bmm(inverse, missed * beta)
    seen, kept, recalling, by_chunk, gradient_x, gradient_y = (
        tensor.unflatten(0, (S, -1)) for tensor in (
            q * prefix, k * suffix, k * (beta * prefix), total, torch.bmm(weights.transpose(1, 2), dy), dy))
    inverse = inverse.unflatten(0, (S, -1))
    d_missed, d_states = torch.empty_like(gradient_y), torch.empty_like(states)
    for s in range(S - 1, -1, -1):  # the gradients of each chunk's corrections and of the state behind it
        d_states[s] = d_state
        torch.bmm(inverse[s].transpose(1, 2), gradient_x[s].baddbmm_(kept[s], d_state), out=d_missed[s])
        d_state.mul_(by_chunk[s]).baddbmm_(seen[s].transpose(1, 2), gradient_y[s])
        d_state.baddbmm_(recalling[s].transpose(1, 2), d_missed[s], alpha=-1)
    behind, d_right = d_states.flatten(0, 1), d_missed.flatten(0, 1)
    d_weights = torch.bmm(dy, x.transpose(1, 2)).mul_(triangle.matrix)
    dq = torch.bmm(d_weights, k).addcmul_(prefix, torch.bmm(dy, before.transpose(1, 2)))
    # k counts three ways: as what is written (its decay divides), as what recalls, and in M from either side
    written = torch.bmm(x, behind.transpose(1, 2)).mul_(suffix)
    d_couplings = torch.bmm(d_right, x.transpose(1, 2)).mul_(triangle.matrix).neg_().tril_(-1)
    coupled = torch.bmm(d_couplings, k)
    d_beta = ((k * coupled).sum(-1) + (d_right * missed).sum(-1)).unsqueeze(-1)
    dv = d_right * beta
    d_writing = torch.bmm(d_weights.transpose(1, 2), q).add_(written)
    d_writing.baddbmm_(d_couplings.transpose(1, 2), k * beta)
    d_recalling = coupled.mul_(beta).addcmul_(prefix, torch.bmm(dv, before.transpose(1, 2)), value=-1)
    sums = (q * dq).addcmul_(k, d_recalling).addcmul_(k, d_writing, value=-1).sum(-1, keepdim=True)
    sums[:, -1, 0] += (k * written).sum((1, 2)) + total[:, 0, 0] * (before * behind).sum((1, 2))
    dg = sums.flip(1).cumsum(1).flip(1)
    return (dq, d_writing + d_recalling, dv, d_beta, dg), d_state
