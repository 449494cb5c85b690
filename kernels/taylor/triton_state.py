"""Sums over a row: one program takes one group of features of one head from segment to segment.

Before each segment it writes what it has so far, in the type of operands; the running sum stays float32 in registers.
The same kernel sums keys and values (forward), encoder keys and values (prefix), and queries and output gradients
(backward, last segment first, the normaliser weighted by `weight`). Few heads leave most of a GPU idle: then every
segment is a program of its own and a cumulative sum over segments follows (`parts` = segments).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.taylor.triton_operands import blocks_of, operand, outer, tile


@triton.jit
def state_scan(
    k, v, weight, first_kv, first_z, before_kv, before_z, last_kv, last_z, lengths, L, H, segments, parts,
    k_b, k_l, k_h, v_b, v_l, v_h,
    K: tl.constexpr, V: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, BLOCKS: tl.constexpr, C: tl.constexpr,
    SEGMENT: tl.constexpr, FIRST: tl.constexpr, BEFORE: tl.constexpr, LAST: tl.constexpr, WEIGHTED: tl.constexpr,
    REVERSE: tl.constexpr, RAGGED: tl.constexpr, FD: tl.constexpr, ROUND: tl.constexpr, PRECISION: tl.constexpr,
):
    """Grid: heads x parts x (groups + 1), the last group being [x, 1].

    Args:
        k (B, L, H, K), v (B, L, H, V): strides _b, _l, _h. weight (G, L) with WEIGHTED. lengths (B) with RAGGED.
        first_kv (G, R, VP), first_z (G, R): start, with FIRST (one part only).
        before_kv (G, segments, R, VP), before_z (G, segments, R): before each segment, with BEFORE (one part only).
        last_kv (G, parts, R, VP), last_z (G, parts, R): sums of each part, with LAST.
    """
    QUADRATIC: tl.constexpr = BLOCKS * (BLOCKS + 1) // 2
    program = tl.program_id(0)
    group = program % (QUADRATIC + 1)
    part = program // (QUADRATIC + 1) % parts
    head = (program // (QUADRATIC + 1) // parts).to(tl.int64)
    b, h = head // H, head % H
    n = L
    if RAGGED:
        n = tl.load(lengths + b).to(tl.int32)
    a, other = blocks_of(group, BLOCKS)
    low = part * tl.cdiv(segments, parts)
    high = tl.minimum(low + tl.cdiv(segments, parts), tl.cdiv(n, SEGMENT))
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    if group < QUADRATIC:
        _scan_group(
            k, v, weight, first_kv, first_z, before_kv, before_z, last_kv, last_z, head, part, segments, parts, low,
            high, n, L, KP + 1 + group * 64, a * 8, other * 8, k_l, v_l, K, V, KP, VP, BLOCKS, C, SEGMENT, FIRST, BEFORE,
            LAST, WEIGHTED, REVERSE, False, FD, ROUND, PRECISION)
    else:
        _scan_group(
            k, v, weight, first_kv, first_z, before_kv, before_z, last_kv, last_z, head, part, segments, parts, low,
            high, n, L, 0, 0, 0, k_l, v_l, K, V, KP, VP, BLOCKS, C, SEGMENT, FIRST, BEFORE,
            LAST, WEIGHTED, REVERSE, True, FD, ROUND, PRECISION)


@triton.jit
def _scan_group(
    k, v, weight, first_kv, first_z, before_kv, before_z, last_kv, last_z, head, part, segments, parts, low, high,
    n, L, row, a_column, b_column, k_l, v_l,
    K: tl.constexpr, V: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, BLOCKS: tl.constexpr, C: tl.constexpr,
    SEGMENT: tl.constexpr, FIRST: tl.constexpr, BEFORE: tl.constexpr, LAST: tl.constexpr, WEIGHTED: tl.constexpr,
    REVERSE: tl.constexpr, LINEAR: tl.constexpr, FD: tl.constexpr, ROUND: tl.constexpr, PRECISION: tl.constexpr,
):
    """One group's 64 rows from `row` on; LINEAR is the group [x, 1], of which KP + 1 rows exist."""
    R: tl.constexpr = KP + 1 + BLOCKS * (BLOCKS + 1) // 2 * 64
    t, e, f, i8, one = tl.arange(0, C), tl.arange(0, VP), tl.arange(0, 64), tl.arange(0, 8), tl.arange(0, 16)
    exists = f < 64
    if LINEAR:
        exists = f <= KP
    rows = row + f
    kv = tl.zeros([64, VP], tl.float32)
    z = tl.zeros([64, 16], tl.float32)  # a product with 16 columns is cheaper than a sum over rows; column 0 counts
    if FIRST:
        kv += tl.load(first_kv + (head * R + rows)[:, None] * VP + e[None, :], mask=exists[:, None], other=0.0)
        z += tl.where(one == 0, tl.load(first_z + head * R + rows, mask=exists, other=0.0)[:, None], 0.0)
    for turn in range(low, high):
        s = turn
        if REVERSE:
            s = low + high - 1 - turn
        if BEFORE:
            at = (head * segments + s) * R + rows
            tl.store(before_kv + at[:, None] * VP + e[None, :], kv.to(before_kv.dtype.element_ty), mask=exists[:, None])
            tl.store(before_z + at[:, None] + one[None, :], z, mask=exists[:, None] & (one == 0)[None, :])
        for c in range(s * SEGMENT, tl.minimum(s * SEGMENT + SEGMENT, n), C):
            inside = (c + t) < n
            start = tl.cast(c, tl.int64)
            values = tile(v + start * v_l, v_l, t, inside, e, V, V < VP, FD, ROUND)
            if LINEAR:
                features = tile(k + start * k_l, k_l, t, inside, f, K, True, FD, ROUND)
                features = tl.where((f == KP)[None, :] & inside[:, None], 1.0, features).to(FD)
            else:
                features = outer(
                    tile(k + start * k_l, k_l, t, inside, a_column + i8, K, K < 8 * BLOCKS, FD, ROUND),
                    tile(k + start * k_l, k_l, t, inside, b_column + i8, K, K < 8 * BLOCKS, FD, ROUND), C, FD, ROUND)
            kv = tl.dot(tl.trans(features), values, kv, input_precision=PRECISION)
            weights = tl.full([C, 16], 1.0, FD)
            if WEIGHTED:
                weights = operand(tl.broadcast_to(
                    tl.load(weight + head * L + start + t, mask=inside, other=0.0)[:, None], [C, 16]), FD, ROUND)
            z = tl.dot(tl.trans(features), weights, z, input_precision=PRECISION)
    if LAST:
        at = (head * parts + part) * R + rows
        tl.store(last_kv + at[:, None] * VP + e[None, :], kv, mask=exists[:, None])
        tl.store(last_z + at[:, None] + one[None, :], z, mask=exists[:, None] & (one == 0)[None, :])
