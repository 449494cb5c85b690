"""Outputs, all blocks of queries at once: the sums before the segment, and the quadratic form inside it."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.taylor.triton_operands import blocks_of, operand, outer, tile


@triton.jit
def outputs(
    q, k, v, before_kv, before_z, y, z, lengths, L, H, segments, blocks, scale, eps,
    q_b, q_l, q_h, k_b, k_l, k_h, v_b, v_l, v_h,
    K: tl.constexpr, V: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, BLOCKS: tl.constexpr, C: tl.constexpr,
    SEGMENT: tl.constexpr, UNROLL: tl.constexpr, STATE: tl.constexpr, RAGGED: tl.constexpr, FD: tl.constexpr,
    ROUND: tl.constexpr, PRECISION: tl.constexpr,
):
    """Grid: heads x blocks of C queries; C divides SEGMENT.

    Args:
        before_kv (G, segments, R, VP), before_z (G, segments, R): sums before each segment, with STATE.
        y (B, L, H, V), contiguous: outputs, zeros at pads. z (G, L) float32: the divisors, for the backward.
    """
    R: tl.constexpr = KP + 1 + BLOCKS * (BLOCKS + 1) // 2 * 64
    program = tl.program_id(0)
    head = (program // blocks).to(tl.int64)
    b, h = head // H, head % H
    n = L
    if RAGGED:
        n = tl.load(lengths + b).to(tl.int32)
    t, d, e, f, i8 = tl.arange(0, C), tl.arange(0, KP), tl.arange(0, VP), tl.arange(0, 64), tl.arange(0, 8)
    start = program % blocks * C
    first = tl.cast(start, tl.int64)
    y += ((b * L + first) * H + h) * V
    inside = (start + t) < n
    kept = ((start + t) < L)[:, None] & (e < V)[None, :]
    if start >= n:
        tl.store(y + t[:, None] * (H * V) + e[None, :], tl.zeros([C, VP], y.dtype.element_ty), mask=kept)
    else:
        q += b * q_b + h * q_h + first * q_l
        k += b * k_b + h * k_h
        v += b * v_b + h * v_h
        segment = start // SEGMENT
        total = tl.zeros([C, VP], tl.float32)
        divisor = tl.zeros([C], tl.float32)
        queries = tile(q, q_l, t, inside, d, K, K < KP, FD, ROUND)
        if STATE:
            before_kv += (head * segments + segment) * R * VP
            before_z += (head * segments + segment) * R
            for group in tl.range(0, BLOCKS * (BLOCKS + 1) // 2, loop_unroll_factor=UNROLL):
                a, other = blocks_of(group, BLOCKS)
                left = tile(q, q_l, t, inside, a * 8 + i8, K, K < 8 * BLOCKS, FD, ROUND)
                right = tile(q, q_l, t, inside, other * 8 + i8, K, K < 8 * BLOCKS, FD, ROUND)
                features = outer(left, (right * tl.where(other > a, 2.0, 1.0)).to(FD), C, FD, ROUND)
                rows = KP + 1 + group * 64 + f
                sums = operand(tl.load(before_kv + rows[:, None] * VP + e[None, :]), FD, ROUND)
                total = tl.dot(features, sums, total, input_precision=PRECISION)
                divisor += tl.sum(features.to(tl.float32) * tl.load(before_z + rows)[None, :], 1)
            sums = operand(tl.load(before_kv + d[:, None] * VP + e[None, :]), FD, ROUND)
            total = tl.dot(queries, sums, total * (0.5 * scale), input_precision=PRECISION) * scale
            total += tl.load(before_kv + KP * VP + e).to(tl.float32)[None, :]
            divisor = divisor * (0.5 * scale) + tl.sum(queries.to(tl.float32) * tl.load(before_z + d)[None, :], 1)
            divisor = divisor * scale + tl.load(before_z + KP)
        every = t < C
        for c in range(segment * SEGMENT, start, C):
            at = tl.cast(c, tl.int64)
            keys = tile(k + at * k_l, k_l, t, every, d, K, K < KP, FD, ROUND)
            values = tile(v + at * v_l, v_l, t, every, e, V, V < VP, FD, ROUND)
            w = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale + 1.0
            w = 0.5 * w * w + 0.5
            divisor += tl.sum(w, 1)
            total = tl.dot(operand(w, FD, ROUND), values, total, input_precision=PRECISION)
        keys = tile(k + first * k_l, k_l, t, inside, d, K, K < KP, FD, ROUND)
        values = tile(v + first * v_l, v_l, t, inside, e, V, V < VP, FD, ROUND)
        w = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale + 1.0
        w = tl.where(t[:, None] >= t[None, :], 0.5 * w * w + 0.5, 0.0)
        divisor += tl.sum(w, 1) + eps
        total = tl.dot(operand(w, FD, ROUND), values, total, input_precision=PRECISION)
        total = tl.where(inside[:, None], total / divisor[:, None], 0.0)
        tl.store(y + t[:, None] * (H * V) + e[None, :], total.to(y.dtype.element_ty), mask=kept)
        tl.store(z + head * L + first + t, divisor, mask=inside)
