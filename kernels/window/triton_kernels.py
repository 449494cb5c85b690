"""The window kernels: outputs; gradients of queries, of keys and values, and of the position table.

One program is one block of one head. Scores are in powers of two, so `scale` and the table come times log2 e, and
`lse` is the base-2 logarithm of each row's sum. Strides come divided by STEP, so that the compiler knows a divisor. Letters as in chunked.py; BQ, BK block sizes; DK, DV padded widths.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.window.triton_tiles import key_span, put, query_span, seen, table_terms, tile


@triton.jit
def window_forward(
    q, k, v, table, y, lse, first_B, last_B, sqb, sql, sqh, skb, skl, skh, svb, svl, svh, syb, syl, syh,
    L, N, P, H, W, scale, REACH: tl.constexpr, TABLE: tl.constexpr, BOUNDS: tl.constexpr, STEP: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, FD: tl.constexpr,
):
    start, bh = tl.program_id(0) * BQ, tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    q += (b * sqb + h * sqh) * STEP
    k += (b * skb + h * skh) * STEP
    v += (b * svb + h * svh) * STEP
    y += (b * syb + h * syh) * STEP
    t, u, dk, dv = tl.arange(0, BQ), tl.arange(0, BK), tl.arange(0, DK), tl.arange(0, DV)
    i = P + start + t
    first, last = 0, N
    if BOUNDS:
        first, last = tl.load(first_B + b), tl.load(last_B + b)
    if TABLE == 2:
        table += h * (2 * W - 1)
    qt = tile(q, start, sql * STEP, t, dk, L, K, DK).to(FD)
    low, high = key_span(P + start, P + tl.minimum(start + BQ, L), N, W, REACH)
    m = tl.full([BQ], -1e30, tl.float32)
    total = tl.zeros([BQ], tl.float32)
    acc = tl.zeros([BQ, DV], tl.float32)
    for at in range(low, high, BK):
        j = at + u
        kt = tile(k, at, skl * STEP, u, dk, N, K, DK).to(FD)
        s = tl.dot(qt, tl.trans(kt), input_precision="ieee") * scale
        if TABLE > 0:
            s += table_terms(table, i[:, None], j[None, :], W)
        keep = seen(i[:, None], j[None, :], first, last, W, REACH)
        s = tl.where(keep, s, -1e30)
        m2 = tl.maximum(m, tl.max(s, 1))
        p = tl.where(keep, tl.exp2(s - m2[:, None]), 0.0)
        fade = tl.exp2(m - m2)
        total = total * fade + tl.sum(p, 1)
        vt = tile(v, at, svl * STEP, u, dv, N, V, DV).to(FD)
        acc = tl.dot(p.to(FD), vt, acc * fade[:, None], input_precision="ieee")
        m = m2
    total = tl.maximum(total, 1e-30)  # a row that sees nothing gives 0
    put(y, start, syl * STEP, t, dv, L, V, DV, acc / total[:, None])
    tl.store(lse + bh * L + start + t, m + tl.log2(total), mask=start + t < L)


@triton.jit
def window_query_gradient(
    q, k, v, table, y, g, lse, delta, dq, first_B, last_B, sqb, sql, sqh, skb, skl, skh, svb, svl, svh, syb, syl, syh,
    sgb, sgl, sgh, L, N, P, H, W, scale, factor, REACH: tl.constexpr, TABLE: tl.constexpr, BOUNDS: tl.constexpr, STEP: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, FD: tl.constexpr,
):
    """Also writes delta = sum of g y, which the other gradients read. dq is contiguous (B, L, H, K)."""
    start, bh = tl.program_id(0) * BQ, tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    q += (b * sqb + h * sqh) * STEP
    k += (b * skb + h * skh) * STEP
    v += (b * svb + h * svh) * STEP
    g += (b * sgb + h * sgh) * STEP
    y += (b * syb + h * syh) * STEP
    dq += b * L * H * K + h * K
    t, u, dk, dv = tl.arange(0, BQ), tl.arange(0, BK), tl.arange(0, DK), tl.arange(0, DV)
    i = P + start + t
    first, last = 0, N
    if BOUNDS:
        first, last = tl.load(first_B + b), tl.load(last_B + b)
    if TABLE == 2:
        table += h * (2 * W - 1)
    gt = tile(g, start, sgl * STEP, t, dv, L, V, DV).to(FD)
    d = tl.sum(gt.to(tl.float32) * tile(y, start, syl * STEP, t, dv, L, V, DV).to(FD).to(tl.float32), 1)
    tl.store(delta + bh * L + start + t, d, mask=start + t < L)
    logs = tl.load(lse + bh * L + start + t, mask=start + t < L, other=0.0)
    qt = tile(q, start, sql * STEP, t, dk, L, K, DK).to(FD)
    low, high = key_span(P + start, P + tl.minimum(start + BQ, L), N, W, REACH)
    acc = tl.zeros([BQ, DK], tl.float32)
    for at in range(low, high, BK):
        j = at + u
        kt = tile(k, at, skl * STEP, u, dk, N, K, DK).to(FD)
        s = tl.dot(qt, tl.trans(kt), input_precision="ieee") * scale
        if TABLE > 0:
            s += table_terms(table, i[:, None], j[None, :], W)
        keep = seen(i[:, None], j[None, :], first, last, W, REACH)
        p = tl.where(keep, tl.exp2(tl.where(keep, s, -1e30) - logs[:, None]), 0.0)
        dp = tl.dot(gt, tl.trans(tile(v, at, svl * STEP, u, dv, N, V, DV).to(FD)), input_precision="ieee")
        acc = tl.dot((p * (dp - d[:, None])).to(FD), kt, acc, input_precision="ieee")
    put(dq, start, H * K, t, dk, L, K, DK, acc * factor)


@triton.jit
def window_key_gradient(
    q, k, v, table, g, lse, delta, dk_out, dv_out, first_B, last_B, sqb, sql, sqh, skb, skl, skh, svb, svl, svh,
    sgb, sgl, sgh, L, N, P, H, W, scale, factor, REACH: tl.constexpr, TABLE: tl.constexpr, BOUNDS: tl.constexpr, STEP: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, FD: tl.constexpr,
):
    """One program a block of keys: keys down, queries across. dk_out, dv_out are contiguous (B, N, H, ·)."""
    at, bh = tl.program_id(0) * BK, tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    q += (b * sqb + h * sqh) * STEP
    k += (b * skb + h * skh) * STEP
    v += (b * svb + h * svh) * STEP
    g += (b * sgb + h * sgh) * STEP
    t, u, dk, dv = tl.arange(0, BQ), tl.arange(0, BK), tl.arange(0, DK), tl.arange(0, DV)
    j = at + u
    first, last = 0, N
    if BOUNDS:
        first, last = tl.load(first_B + b), tl.load(last_B + b)
    if TABLE == 2:
        table += h * (2 * W - 1)
    kt = tile(k, at, skl * STEP, u, dk, N, K, DK).to(FD)
    vt = tile(v, at, svl * STEP, u, dv, N, V, DV).to(FD)
    low, high = query_span(at, tl.minimum(at + BK, N), P, L, W, REACH)
    acc_k = tl.zeros([BK, DK], tl.float32)
    acc_v = tl.zeros([BK, DV], tl.float32)
    for start in range(low, high, BQ):
        i = P + start + t
        real = start + t < L
        qt = tile(q, start, sql * STEP, t, dk, L, K, DK).to(FD)
        s = tl.dot(kt, tl.trans(qt), input_precision="ieee") * scale
        if TABLE > 0:
            s += table_terms(table, i[None, :], j[:, None], W)
        keep = seen(i[None, :], j[:, None], first, last, W, REACH) & real[None, :]
        logs = tl.load(lse + bh * L + start + t, mask=real, other=0.0)
        p = tl.where(keep, tl.exp2(tl.where(keep, s, -1e30) - logs[None, :]), 0.0)
        gt = tile(g, start, sgl * STEP, t, dv, L, V, DV).to(FD)
        acc_v = tl.dot(p.to(FD), gt, acc_v, input_precision="ieee")
        d = tl.load(delta + bh * L + start + t, mask=real, other=0.0)
        dp = tl.dot(vt, tl.trans(gt), input_precision="ieee")
        acc_k = tl.dot((p * (dp - d[None, :])).to(FD), qt, acc_k, input_precision="ieee")
    put(dk_out + b * N * H * K + h * K, at, H * K, u, dk, N, K, DK, acc_k * factor)
    put(dv_out + b * N * H * V + h * V, at, H * V, u, dv, N, V, DV, acc_v)


@triton.jit
def window_table_gradient(
    q, k, v, table, g, lse, delta, tiles, first_B, last_B, sqb, sql, sqh, skb, skl, skh, svb, svl, svh, sgb, sgl, sgh,
    L, N, P, H, W, scale, lowest, each, REACH: tl.constexpr, TABLE: tl.constexpr, BOUNDS: tl.constexpr,
    STEP: tl.constexpr, K: tl.constexpr, V: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, FD: tl.constexpr,
):
    """Sums of score gradients over query blocks, of the keys `lowest` + BK·step from each block's first query on.

    Query blocks all stand alike to such keys, so that the sum over blocks keeps offsets apart: its diagonals are the
    table. Program (step, part, bh) sums `each` blocks into tiles (B·H, parts, steps, BQ, BK).
    """
    step, part, bh = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    b, h = bh // H, bh % H
    q += (b * sqb + h * sqh) * STEP
    k += (b * skb + h * skh) * STEP
    v += (b * svb + h * svh) * STEP
    g += (b * sgb + h * sgh) * STEP
    t, u, dk, dv = tl.arange(0, BQ), tl.arange(0, BK), tl.arange(0, DK), tl.arange(0, DV)
    first, last = 0, N
    if BOUNDS:
        first, last = tl.load(first_B + b), tl.load(last_B + b)
    if TABLE == 2:
        table += h * (2 * W - 1)
    acc = tl.zeros([BQ, BK], tl.float32)
    for block in range(part * each, part * each + each):
        start = block * BQ
        i = P + start + t
        at = P + start + lowest + step * BK
        j = at + u
        real = start + t < L
        qt = tile(q, start, sql * STEP, t, dk, L, K, DK).to(FD)
        gt = tile(g, start, sgl * STEP, t, dv, L, V, DV).to(FD)
        kt = tile(k, at, skl * STEP, u, dk, N, K, DK).to(FD)
        vt = tile(v, at, svl * STEP, u, dv, N, V, DV).to(FD)
        s = tl.dot(qt, tl.trans(kt), input_precision="ieee") * scale
        s += table_terms(table, i[:, None], j[None, :], W)
        keep = seen(i[:, None], j[None, :], first, last, W, REACH) & real[:, None]
        logs = tl.load(lse + bh * L + start + t, mask=real, other=0.0)
        d = tl.load(delta + bh * L + start + t, mask=real, other=0.0)
        p = tl.where(keep, tl.exp2(tl.where(keep, s, -1e30) - logs[:, None]), 0.0)
        dp = tl.dot(gt, tl.trans(vt), input_precision="ieee")
        acc += p * (dp - d[:, None])
    out = tiles + ((bh * tl.num_programs(1) + part) * tl.num_programs(0) + step) * BQ * BK
    tl.store(out + t[:, None] * BK + u[None, :], acc)
