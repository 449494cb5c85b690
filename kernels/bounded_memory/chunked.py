"""The slots in chunks: linear in time and memory, exact for logits of every size.

Every weight is exp(a_j - m) with m a greatest logit over a range that holds j, so that none overflows and none that
counts vanishes: up to a query inside its chunk m_t runs with the query, and the chunk's sums stand at the chunk's end.
With gradients a block of chunks is computed again in the backward: kept are the inputs and the sums before each block.

Letters: G = B·H, S streams of weights, N chunks of C tokens (t the query's, j the key's), R slots.
"""

from __future__ import annotations

import torch

from kernels.bounded_memory.state import SlotState, empty_state, nonzero
from kernels.gradients import once_differentiable
from kernels.taylor.features import accumulator_dtype, autocast_off, first_tokens

CHUNK = 16
NUMBERS = 2**20  # of the largest temporary of a block: weights of (query, key, slot)
NOTHING = -1e30  # greatest logit of no tokens


def memory_chunked(q_BLHK, k_BLHK, v_BLHV, logits, *, lengths_B, state, scale, chunk) -> tuple[torch.Tensor, SlotState]:
    """See `kernels.bounded_memory.bounded_memory`; `logits` is one stream of weights or two."""
    (B, L, H, K), V = q_BLHK.shape, v_BLHV.shape[-1]
    dtype, C = accumulator_dtype(q_BLHK.dtype), min(chunk or CHUNK, L)
    keep_BL = first_tokens(lengths_B, L)
    q, k, v = (heads_first(t, dtype, keep_BL) for t in (q_BLHK, k_BLHK, v_BLHV))
    logits = torch.stack([heads_first(stream, dtype, keep_BL, float("-inf")) for stream in logits], 1)  # (G, S, L, R)
    S, R = logits.shape[1], logits.shape[3]
    state = state or empty_state(B, H, R, K, V, dtype, q.device, streams=S)
    keys, values, total, peak = (t.flatten(0, 1) for t in state)
    none = total == 0
    before = torch.where(none, NOTHING, peak).detach()
    sums, outputs = rescaled((keys, values, total), peak - peak.detach()), []
    step = C * max(1, NUMBERS // (B * H * S * R * C * C))
    differentiable = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v, logits, *sums))
    after = before
    for start in range(0, L, step):
        part = slice(start, min(start + step, L))
        inputs = (q[:, part] * scale, k[:, part], v[:, part], logits[:, :, part], after, *sums, C)
        y, *sums, after = Block.apply(*inputs) if differentiable else block(*inputs)
        outputs.append(y)
    y_BLHV = torch.cat(outputs, 1).unflatten(0, (B, H)).transpose(1, 2).to(v_BLHV.dtype)
    if differentiable:  # what the loop held fixed, as a function of the logits
        peak = torch.maximum(torch.where(none, NOTHING, peak), logits.amax(2))
        sums = rescaled(sums, after - peak)
    else:
        peak = after
    peak = torch.where(after == NOTHING, 0, peak)
    return y_BLHV, SlotState(*(t.unflatten(0, (B, H)) for t in (*sums, peak)))


def rescaled(sums, shift_GSR):
    """(keys, values, total) times exp(shift). With a shift of zero that has a gradient, sums relative to a peak that the
    loop holds fixed get the peak's gradient."""
    if not shift_GSR.requires_grad:
        return sums
    keys, values, total = sums
    factor = shift_GSR.exp()
    return factor[:, 0, :, None] * keys, factor[:, -1, :, None] * values, factor * total


def heads_first(x_BLHK: torch.Tensor, dtype: torch.dtype, keep_BL: torch.Tensor | None, fill: float = 0.0) -> torch.Tensor:
    """(B, L, H, K) -> (B·H, L, K) of `dtype`, `fill` at slots that are not kept."""
    if keep_BL is not None:
        x_BLHK = x_BLHK.masked_fill(~keep_BL[..., None, None], fill)
    return x_BLHK.transpose(1, 2).to(dtype).flatten(0, 1)


class Block(torch.autograd.Function):
    """`block` that keeps its inputs alone and is computed again in the backward."""

    @staticmethod
    def forward(ctx, *inputs):
        *tensors, ctx.C = inputs
        ctx.save_for_backward(*tensors)
        y, *sums, after = block(*inputs)
        ctx.mark_non_differentiable(after)
        return y, *sums, after

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, *gradients):
        leaves = [tensor.detach().requires_grad_(needed) for tensor, needed in zip(ctx.saved_tensors, ctx.needs_input_grad)]
        with torch.enable_grad():
            *outputs, _ = block(*leaves, ctx.C)
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        found = iter(torch.autograd.grad(outputs, wanted, gradients[:-1], materialize_grads=True))
        return *(next(found) if leaf.requires_grad else None for leaf in leaves), None


def block(q, k, v, logits, before_GSR, keys_GRK, values_GRV, total_GSR, C):
    """(y of some chunks, the sums and greatest logits after them); the last chunk may be short, q is scaled."""
    length = q.shape[1]
    short = -length % C
    if short:
        q, k, v = (torch.nn.functional.pad(t, (0, 0, 0, short)) for t in (q, k, v))
        logits = torch.nn.functional.pad(logits, (0, 0, 0, short), value=float("-inf"))
    q, k, v = (t.unflatten(1, (-1, C)) for t in (q, k, v))
    peak = torch.maximum(logits.detach().cummax(2).values, before_GSR[:, :, None]).unflatten(2, (-1, C))  # (G, S, N, C, R)
    logits = logits.unflatten(2, (-1, C))
    ends = peak[:, :, :, -1]  # (G, S, N, R)
    starts = torch.cat((before_GSR[:, :, None], ends[:, :, :-1]), 2)
    keys, values, total, after = carried(k, v, (logits - ends[..., None, :]).exp(), (starts - ends).exp(),
                                         (keys_GRK, values_GRV, total_GSR))
    later = torch.ones(C, C, dtype=torch.bool, device=q.device).triu(1)[..., None]
    weight = (logits[..., None, :, :] - peak[..., None, :]).masked_fill_(later, float("-inf")).exp_()  # (G, S, N, t, j, R)
    old = (starts[..., None, :] - peak).exp()  # (G, S, N, t, R)
    under = nonzero(weight.sum(-2) + old * total[..., None, :])
    scores = (q @ k.transpose(-1, -2))[..., None, :] @ weight[:, 0]
    scores = scores.squeeze(-2) + old[:, 0] * (q @ keys.transpose(-1, -2))
    read = (scores / under[:, 0]).softmax(-1) / under[:, -1]
    y = (weight[:, -1] @ read[..., None]).squeeze(-1) @ v + (read * old[:, -1]) @ values
    return y.flatten(1, 2)[:, :length], *after, ends[:, :, -1].clone()


def carried(k, v, weight, kept, sums):
    """The sums before each chunk, (G, N, R, K), (G, N, R, V) and (G, S, N, R), and those after the last."""
    new = (weight[:, 0].transpose(-1, -2) @ k, weight[:, -1].transpose(-1, -2) @ v, weight.sum(-2))
    before = ([], [], [])
    for n in range(k.shape[1]):
        for held, one in zip(before, sums):
            held.append(one)
        keys, values, total = sums
        sums = (kept[:, 0, n, :, None] * keys + new[0][:, n], kept[:, -1, n, :, None] * values + new[1][:, n],
                kept[:, :, n] * total + new[2][:, :, n])
    keys, values, total = (torch.stack(held, axis) for held, axis in zip(before, (1, 1, 2)))
    return keys, values, total, sums
