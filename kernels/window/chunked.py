"""Sliding-window attention in blocks of queries, each against the keys it can reach, with a hand-written backward.

A block of C queries multiplies the keys of its frame (band.py), so that cost and memory are linear in L. Without
gradients a span of queries at a time is brought heads-first, so that everything but the output stays in the cache.
Letters: G = B·H, N keys = [P past | L new], S span, T tables.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.gradients import once_differentiable
from kernels.taylor.features import accumulator_dtype, autocast_off
from kernels.window.band import blocks, frame, plain_frame, table_gradient
from kernels.window.heads import heads_first, heads_last
from kernels.window.past import with_past

SPAN = 512  # queries brought heads-first at a time: they and their keys stay in the cache (measured)


class Hidden(NamedTuple):
    """Keys that no real query sees: what stands before a document began, and pads."""

    mask_BN: torch.Tensor
    clear: tuple[int, int]  # between these two keys no row hides any, known without reading the mask

    def at(self, low: int, high: int) -> Hidden:
        """The same, of keys low..high-1 counted from 0."""
        return Hidden(self.mask_BN[:, low:high], (self.clear[0] - low, self.clear[1] - low))


class Reach(NamedTuple):
    """What a block sees, as the loop needs it."""

    name: str  # "causal" | "both" | "own"
    window: int
    C: int
    frame_TCN: torch.Tensor


def query_block(window: int, reach: str = "causal") -> int:
    """Queries a block: wide enough that a bmm pays, near the window so that few products are masked (measured)."""
    if reach == "own":
        return window * max(1, 64 // window)
    return 48 if window <= 64 else 128


def reach_of(name: str, window: int, table_TW: torch.Tensor | None, like: torch.Tensor) -> Reach:
    C = query_block(window, name)
    dtype = accumulator_dtype(like.dtype)
    if table_TW is None:
        return Reach(name, window, C, plain_frame(name, C, window, dtype, like.device))
    return Reach(name, window, C, frame(table_TW.detach().to(dtype), name, C, window))


def attend(q_GLK, k_GNK, v_GNV, y_BLHV, reach: Reach, P: int, hidden: Hidden | None, keep: bool) -> list[torch.Tensor]:
    """Writes the attention of scaled queries, standing at keys P..P+L-1, into y; returns the blocks' weights if `keep`."""
    B, L, H, V = y_BLHV.shape
    kept = []
    for start, stop, low, high, column in blocks(reach.name, L, P, k_GNK.shape[1], reach.C, reach.window):
        scores = torch.bmm(q_GLK[:, start:stop], k_GNK[:, low:high].transpose(1, 2))
        per_head = scores.view(B, H, stop - start, high - low)
        per_head.add_(reach.frame_TCN[:, : stop - start, column : column + high - low])
        if hidden is not None and (low < hidden.clear[0] or high > hidden.clear[1]):
            queries = hidden.mask_BN[:, P + start : P + stop, None]  # a pad sees itself, so that no row is empty
            per_head.masked_fill_((hidden.mask_BN[:, None, low:high] & ~queries)[:, None], float("-inf"))
        w = torch.softmax(scores, -1, out=None if keep else scores)
        y_BLHV[:, start:stop] = torch.bmm(w, v_GNV[:, low:high]).view(B, H, stop - start, V).transpose(1, 2)
        if keep:
            kept.append(w)
    return kept


class Window(torch.autograd.Function):
    """The blocks of whole rows, their weights kept for the backward."""

    @staticmethod
    def forward(ctx, q_BLHK, k_BNHK, v_BNHV, table_TW, hidden, window, name, scale):
        B, L, H, _ = q_BLHK.shape
        P = k_BNHK.shape[1] - L
        dtype = accumulator_dtype(q_BLHK.dtype)
        q, k, v = heads_first(q_BLHK, dtype, scale), heads_first(k_BNHK, dtype), heads_first(v_BNHV, dtype)
        y_BLHV = torch.empty(B, L, H, v.shape[-1], dtype=v_BNHV.dtype, device=v.device)
        reach = reach_of(name, window, table_TW, q)
        weights = attend(q, k, v, y_BLHV, reach, P, hidden, True)
        ctx.save_for_backward(q, k, v, *weights)
        ctx.settings = (name, window, reach.C, tuple(reach.frame_TCN.shape), P, scale, H)
        ctx.table_dtype = None if table_TW is None else table_TW.dtype
        return y_BLHV

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy_BLHV):
        q, k, v, *weights = ctx.saved_tensors
        name, W, C, framed, P, scale, H = ctx.settings
        T, L, dtype = framed[0], q.shape[1], dy_BLHV.dtype
        g = heads_first(dy_BLHV, q.dtype)
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        dframe = q.new_zeros(framed) if ctx.needs_input_grad[3] else None
        for (start, stop, low, high, column), w in zip(blocks(name, L, P, k.shape[1], C, W), weights):
            dv[:, low:high].add_(torch.bmm(w.transpose(1, 2), g[:, start:stop]))
            dw = torch.bmm(g[:, start:stop], v[:, low:high].transpose(1, 2))
            ds = torch._softmax_backward_data(dw, w, -1, w.dtype)
            dq[:, start:stop] = torch.bmm(ds, k[:, low:high])
            dk[:, low:high].add_(torch.bmm(ds.transpose(1, 2), q[:, start:stop]))
            if dframe is not None:
                each = ds.sum(0, keepdim=True) if T == 1 else ds.unflatten(0, (-1, H)).sum(0)
                dframe[:, : stop - start, column : column + high - low] += each
        dtable = None if dframe is None else table_gradient(dframe, name, W).to(ctx.table_dtype)
        return (heads_last(dq, H, scale, dtype), heads_last(dk, H, 1.0, dtype), heads_last(dv, H, 1.0, dtype),
                dtable, None, None, None, None)


def forward_only(q_BLHK, k_BNHK, v_BNHV, table_TW, hidden, window, name, scale) -> torch.Tensor:
    """The blocks, span by span, nothing kept."""
    B, L, H, _ = q_BLHK.shape
    N, dtype = k_BNHK.shape[1], accumulator_dtype(q_BLHK.dtype)
    y_BLHV = torch.empty(B, L, H, v_BNHV.shape[-1], dtype=v_BNHV.dtype, device=q_BLHK.device)
    reach = reach_of(name, window, table_TW, q_BLHK)
    for start, stop, low, high, _ in blocks(name, L, N - L, N, span(reach), window):
        q = heads_first(q_BLHK[:, start:stop], dtype, scale)
        k, v = heads_first(k_BNHK[:, low:high], dtype), heads_first(v_BNHV[:, low:high], dtype)
        attend(q, k, v, y_BLHV[:, start:stop], reach, N - L + start - low,
               None if hidden is None else hidden.at(low, high), False)
    return y_BLHV


def span(reach: Reach) -> int:
    """Queries of a span: whole blocks."""
    return reach.C * max(1, SPAN // reach.C)


def hidden_keys(L: int, P: int, past_B: torch.Tensor | None, lengths_B: torch.Tensor | None) -> Hidden | None:
    """Which of the keys [P past | L new] are none: entries from before the document, and pads."""
    if P:
        return Hidden(torch.arange(P + L, device=past_B.device) < (P - past_B).clamp(min=0)[:, None], (P, P + L))
    if lengths_B is None:
        return None
    first = int(lengths_B.min()) if lengths_B.device.type == "cpu" else 0  # reading it elsewhere would wait for the GPU
    return None if first >= L else Hidden(torch.arange(L, device=lengths_B.device) >= lengths_B[:, None], (0, first))


def shorten(window: int, table_TW: torch.Tensor | None, reach: str, N: int) -> tuple[int, torch.Tensor | None]:
    """A window no wider than the keys there are, and the middle of the table that belongs to it."""
    if window <= N:
        return window, table_TW
    return N, None if table_TW is None else table_TW[:, window - N : window + N - 1]


def window_chunked(
    q_BLHK, k_BLHK, v_BLHV, *, window, reach, table=None, past_k=None, past_v=None, past_B=None, lengths_B=None, scale,
) -> torch.Tensor:
    """See `kernels.window.window`."""
    L, P = q_BLHK.shape[1], 0 if past_k is None else past_k.shape[1]
    # pads come after the tokens, where causal queries do not look
    hidden = hidden_keys(L, P, past_B, None if reach == "causal" else lengths_B)
    if P:
        k_BLHK, v_BLHV = with_past(k_BLHK, v_BLHV, past_k, past_v, past_B)
    window, table = shorten(window, table, reach, P + L)
    differentiable = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (q_BLHK, k_BLHK, v_BLHV, table))
    form = Window.apply if differentiable else forward_only
    return form(q_BLHK, k_BLHK, v_BLHV, table, hidden, window, reach, scale)
