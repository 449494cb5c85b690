"""The memory's kernel: one program reads one memory per token for C tokens of a head, with or without a window's output.

    running   sums up to each token = sums before the block + (triangle of ones) (x Bᵀ), divided by the tokens so far
    given     one mean for `group` tokens each, from a table

With `WINDOW` the same program attends to the last W keys, and writes the mean of both (LAVO with raw values in memory).
Letters: R slots, padded to DR; D padded head width.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.window.triton_tiles import key_span, put, seen, table_terms, tile


@triton.jit
def slots(basis, r, d, R: tl.constexpr, K: tl.constexpr):
    """(DR, D) rows of a head's basis, 0 in the padding."""
    return tl.load(basis + r[:, None] * K + d[None, :], mask=(r < R)[:, None] & (d < K)[None, :], other=0.0)


@triton.jit
def memory_read(q, basis, mean, r, R: tl.constexpr, scale, FD: tl.constexpr):
    """(C, D) what queries find, each beside its mean (C, DR); `scale` in powers of two."""
    s = tl.dot(q, tl.trans(basis), input_precision="ieee") * mean * scale
    s = tl.where((r < R)[None, :], s, -1e30)
    p = tl.exp2(s - tl.max(s, 1)[:, None])
    p = p / tl.sum(p, 1)[:, None]
    return tl.dot((p * mean).to(FD), basis, input_precision="ieee")


@triton.jit
def memory_forward(
    q, k, x, basis, before, count_B, table, y, missing_B, sqb, sql, sqh, skb, skl, skh, sxb, sxl, sxh,
    L, P, N, H, W, means, group, scale, scale_local, RUNNING: tl.constexpr, WINDOW: tl.constexpr, TABLE: tl.constexpr,
    PAST: tl.constexpr, STEP: tl.constexpr, R: tl.constexpr, K: tl.constexpr, DR: tl.constexpr, D: tl.constexpr,
    C: tl.constexpr, FD: tl.constexpr,
):
    """y contiguous (B, L, H, K); x are the values too, P of them before the first query's token.

    before: float32 (B·H, means, R): sums before each block of C tokens, or the means of groups.
    """
    start, bh = tl.program_id(0) * C, tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    q += (b * sqb + h * sqh) * STEP
    x += (b * sxb + h * sxh) * STEP
    t, r, d = tl.arange(0, C), tl.arange(0, DR), tl.arange(0, D)
    qt = tile(q, start, sql * STEP, t, d, L, K, D).to(FD)
    bt = slots(basis + h * R * K, r, d, R, K).to(FD)
    before += bh * means * R
    if RUNNING:
        xt = tile(x, P + start, sxl * STEP, t, d, N, K, D).to(FD)
        features = tl.dot(xt, tl.trans(bt), input_precision="ieee")
        triangle = (t[:, None] >= t[None, :]).to(FD)
        mean = tl.dot(triangle, features.to(FD), input_precision="ieee")
        mean += tl.load(before + tl.program_id(0) * R + r, mask=r < R, other=0.0)[None, :]
        count = tl.load(count_B + b) + start + t + 1
        mean = mean / count.to(tl.float32)[:, None]
    else:
        which = tl.minimum((start + t) // group, means - 1)
        mean = tl.load(before + which[:, None] * R + r[None, :], mask=(r < R)[None, :], other=0.0)
    out = memory_read(qt, bt, mean, r, R, scale, FD)
    if WINDOW:
        k += (b * skb + h * skh) * STEP
        i, first = P + start + t, 0
        if PAST:
            first = tl.load(missing_B + b)
        if TABLE == 2:
            table += h * (2 * W - 1)
        low, high = key_span(P + start, P + tl.minimum(start + C, L), N, W, 0)
        m = tl.full([C], -1e30, tl.float32)
        total = tl.zeros([C], tl.float32)
        acc = tl.zeros([C, D], tl.float32)
        for at in range(low, high, C):
            j = at + t
            s = tl.dot(qt, tl.trans(tile(k, at, skl * STEP, t, d, N, K, D).to(FD)), input_precision="ieee") * scale_local
            if TABLE > 0:
                s += table_terms(table, i[:, None], j[None, :], W)
            keep = seen(i[:, None], j[None, :], first, N, W, 0)
            s = tl.where(keep, s, -1e30)
            m2 = tl.maximum(m, tl.max(s, 1))
            p = tl.where(keep, tl.exp2(s - m2[:, None]), 0.0)
            fade = tl.exp2(m - m2)
            total = total * fade + tl.sum(p, 1)
            vt = tile(x, at, sxl * STEP, t, d, N, K, D).to(FD)
            acc = tl.dot(p.to(FD), vt, acc * fade[:, None], input_precision="ieee")
            m = m2
        out = 0.5 * (out + acc / tl.maximum(total, 1e-30)[:, None])
    put(y + b * L * H * K + h * K, start, H * K, t, d, L, K, D, out)
