"""Sliding-window attention in blocks of queries, each against the keys it can reach, with a hand-written backward.

A block of C queries multiplies C + W - 1 keys, so that cost and memory are linear in L. Letters: G = B·H, P past keys
before the row's new ones, C block, W window.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.autograd.function import once_differentiable

from kernels.taylor.features import autocast_off


def query_block(window: int) -> int:
    """Queries a block: wide enough that a bmm pays, near the window so that few products are masked (measured)."""
    return 48 if window <= 64 else 128


@lru_cache(maxsize=64)
def band(queries: int, keys: int, shift: int, window: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """(queries, keys) scores to add: 0 where 0 <= distance < window, else -inf; query i stands at key i + shift."""
    distance = torch.arange(queries, device=device)[:, None] + shift - torch.arange(keys, device=device)
    hidden = (distance < 0) | (distance >= window)
    return torch.zeros(queries, keys, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))


class Window(torch.autograd.Function):
    """Softmax attention of each query to the last W keys up to its own, keys being [P past | L new]."""

    @staticmethod
    def forward(ctx, q_BLHK, k_BNHK, v_BNHV, missing_B, window, scale, keep_for_backward):
        B, L, H, _ = q_BLHK.shape
        P, V = k_BNHK.shape[1] - L, v_BNHV.shape[-1]
        dtype = torch.float64 if q_BLHK.dtype == torch.float64 else torch.float32
        q, k, v = (heads_first(x, dtype) for x in (q_BLHK, k_BNHK, v_BNHV))
        y_BLHV = torch.empty(B, L, H, V, dtype=v_BNHV.dtype, device=v.device)
        weights = []
        for start, stop, low in blocks(L, P, window):
            high = P + stop
            scores = torch.bmm(q[:, start:stop], k[:, low:high].transpose(1, 2))
            mask = band(stop - start, high - low, P + start - low, window, dtype, q.device)
            scores = torch.add(mask, scores, alpha=scale)
            if missing_B is not None and low < P:
                absent = torch.arange(low, P, device=q.device) < missing_B[:, None]
                scores.view(B, H, stop - start, -1)[..., : P - low].masked_fill_(absent[:, None, None], float("-inf"))
            w = scores.softmax(-1)
            y_BLHV[:, start:stop] = torch.bmm(w, v[:, low:high]).view(B, H, stop - start, V).transpose(1, 2)
            weights.append(w if keep_for_backward else None)
        if keep_for_backward:
            ctx.save_for_backward(q, k, v, *weights)
            ctx.settings = (P, window, scale, H)
        return y_BLHV

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy_BLHV):
        q, k, v, *weights = ctx.saved_tensors
        P, window, scale, H = ctx.settings
        g = heads_first(dy_BLHV, q.dtype)
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for (start, stop, low), w in zip(blocks(q.shape[1], P, window), weights):
            seen = slice(low, P + stop)
            dv[:, seen].add_(torch.bmm(w.transpose(1, 2), g[:, start:stop]))
            dw = torch.bmm(g[:, start:stop], v[:, seen].transpose(1, 2))
            ds = torch._softmax_backward_data(dw, w, -1, w.dtype)
            dq[:, start:stop] = torch.bmm(ds, k[:, seen])
            dk[:, seen].add_(torch.bmm(ds.transpose(1, 2), q[:, start:stop]))
        dtype = dy_BLHV.dtype
        return (heads_last(dq, H, scale, dtype), heads_last(dk, H, scale, dtype), heads_last(dv, H, 1.0, dtype),
                None, None, None, None)


def blocks(L: int, P: int, window: int) -> list[tuple[int, int, int]]:
    """(first query, query after the last, first key) of each block."""
    size = query_block(window)
    return [(a, min(a + size, L), max(P + a - window + 1, 0)) for a in range(0, L, size)]


def heads_first(x_BLHK: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(B, L, H, K) -> contiguous (B·H, L, K)."""
    B, L, H, K = x_BLHK.shape
    return x_BLHK.transpose(1, 2).to(dtype, memory_format=torch.contiguous_format).reshape(B * H, L, K)


def heads_last(x_GLK: torch.Tensor, H: int, factor: float, dtype: torch.dtype) -> torch.Tensor:
    """(B·H, L, K) -> contiguous (B, L, H, K), times `factor`."""
    G, L, K = x_GLK.shape
    out = torch.empty(G // H, L, H, K, dtype=dtype, device=x_GLK.device)
    return torch.mul(x_GLK.view(G // H, H, L, K).transpose(1, 2), factor, out=out)


def window_chunked(q_BLHK, k_BLHK, v_BLHV, *, window, past_k, past_v, past_B, scale) -> torch.Tensor:
    """See `kernels.window.window`."""
    missing_B = None
    if past_k is not None and past_k.shape[1]:
        missing_B = (past_k.shape[1] - past_B).clamp(min=0)
        k_BLHK, v_BLHV = torch.cat((past_k, k_BLHK), 1), torch.cat((past_v, v_BLHV), 1)
    needs = torch.is_grad_enabled() and (q_BLHK.requires_grad or k_BLHK.requires_grad or v_BLHV.requires_grad)
    return Window.apply(q_BLHK, k_BLHK, v_BLHV, missing_B, window, scale, needs)
