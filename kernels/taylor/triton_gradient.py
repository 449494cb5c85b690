"""Backward kernels. With u = 1 + scale q·k, g = dy / divisor and gz = -(dy·y) / divisor (README.md):

    dq = scale ( Σ_k (g·v + gz) u k + features' gradient by the sums before the segment )
    dk = scale ( Σ_q (g·v + gz) u q + features' gradient by the reverse sums behind the segment )
    dv = Σ_q w g + φ(k) R

The gradient through a group x_a (outer) x_b is one product with a 0/1 matrix a block: t (rows, 64) times x_b, summed
over j into column a·8 + i, and the other way round.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.taylor.triton_operands import blocks_of, operand, outer, repeated_inner, repeated_outer, tile


@triton.jit
def output_gradient(
    dy, y, z, g, gz, lengths, L, H, blocks, dy_b, dy_l, dy_h,
    V: tl.constexpr, VP: tl.constexpr, C: tl.constexpr, RAGGED: tl.constexpr,
):
    """g (B, L, H, V) and gz (G, L) from dy (strides), y (contiguous) and the divisors z (G, L); zeros at pads."""
    program = tl.program_id(0)
    head = (program // blocks).to(tl.int64)
    b, h = head // H, head % H
    n = L
    if RAGGED:
        n = tl.load(lengths + b).to(tl.int32)
    t, e = tl.arange(0, C), tl.arange(0, VP)
    start = program % blocks * C
    first = tl.cast(start, tl.int64)
    inside, row = (start + t) < n, (start + t) < L
    mask = inside[:, None] & (e < V)[None, :]
    at = ((b * L + first) * H + h) * V + t[:, None] * (H * V) + e[None, :]
    dy += b * dy_b + h * dy_h + first * dy_l
    divisor = tl.load(z + head * L + first + t, mask=inside, other=1.0)
    gradient = tl.load(dy + t[:, None] * dy_l + e[None, :], mask=mask, other=0.0).to(tl.float32) / divisor[:, None]
    outputs = tl.load(y + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(g + at, gradient.to(g.dtype.element_ty), mask=row[:, None] & (e < V)[None, :])
    tl.store(gz + head * L + first + t, -tl.sum(gradient * outputs, 1), mask=row)


@triton.jit
def in_every_block(x, ROWS: tl.constexpr, KP: tl.constexpr):
    """(ROWS, 8) -> (ROWS, KP): column d is x[d % 8]."""
    return tl.reshape(tl.broadcast_to(x[:, None, :], [ROWS, KP // 8, 8]), [ROWS, KP])


@triton.jit
def through_group(t, left, right, into, a, other, ROWS: tl.constexpr, KP: tl.constexpr, FD: tl.constexpr,
                  ROUND: tl.constexpr, PRECISION: tl.constexpr):
    """into (ROWS, KP) + gradient of x from t (ROWS, 64), that of the group x_a (outer) x_other."""
    d, f = tl.arange(0, KP), tl.arange(0, 64)
    if PRECISION != "ieee":
        square = tl.reshape(t, [ROWS, 8, 8])
        into += tl.where((d // 8 == a)[None, :], in_every_block(tl.sum(square * right[:, None, :], 2), ROWS, KP), 0.0)
        half = in_every_block(tl.sum(square * left[:, :, None], 1), ROWS, KP)
        return into + tl.where(((d // 8 == other) & (other > a))[None, :], half, 0.0)
    columns = (d[None, :] == (a * 8 + f // 8)[:, None]).to(FD)
    half = operand(t * repeated_inner(right, ROWS).to(tl.float32), FD, ROUND)
    into = tl.dot(half, columns, into, input_precision=PRECISION)
    # within one block t is symmetric: both halves are the same, and together one product
    columns = ((d[None, :] == (other * 8 + f % 8)[:, None]) & (other > a)).to(FD)
    half = operand(t * repeated_outer(left, ROWS).to(tl.float32), FD, ROUND)
    return tl.dot(half, columns, into, input_precision=PRECISION)


@triton.jit
def query_gradient(
    q, k, v, g, gz, before_kv, before_z, dq, lengths, L, H, segments, blocks, scale,
    q_b, q_l, q_h, k_b, k_l, k_h, v_b, v_l, v_h,
    K: tl.constexpr, V: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, BLOCKS: tl.constexpr, C: tl.constexpr,
    SEGMENT: tl.constexpr, UNROLL: tl.constexpr, STATE: tl.constexpr, RAGGED: tl.constexpr, FD: tl.constexpr,
    ROUND: tl.constexpr, PRECISION: tl.constexpr,
):
    """dq (B, L, H, K), contiguous, zeros at pads. Grid and arguments as `outputs`; g and gz from `output_gradient`."""
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
    inside = (start + t) < n
    total = tl.zeros([C, KP], tl.float32)
    if start < n:
        q += b * q_b + h * q_h + first * q_l
        k += b * k_b + h * k_h
        v += b * v_b + h * v_h
        segment = start // SEGMENT
        gradient = tile(g + ((b * L + first) * H + h) * V, H * V, t, inside, e, V, V < VP, FD, ROUND)
        weight = tl.load(gz + head * L + first + t, mask=inside, other=0.0)
        if STATE:
            before_kv += (head * segments + segment) * R * VP
            before_z += (head * segments + segment) * R
            for group in tl.range(0, BLOCKS * (BLOCKS + 1) // 2, loop_unroll_factor=UNROLL):
                a, other = blocks_of(group, BLOCKS)
                left = tile(q, q_l, t, inside, a * 8 + i8, K, K < 8 * BLOCKS, FD, ROUND)
                right = tile(q, q_l, t, inside, other * 8 + i8, K, K < 8 * BLOCKS, FD, ROUND)
                rows = KP + 1 + group * 64 + f
                sums = operand(tl.load(before_kv + rows[:, None] * VP + e[None, :]), FD, ROUND)
                features = tl.dot(gradient, tl.trans(sums), input_precision=PRECISION)
                features += weight[:, None] * tl.load(before_z + rows)[None, :]
                total = through_group(features, left, right, total, a, other, C, KP, FD, ROUND, PRECISION)
            sums = operand(tl.load(before_kv + d[:, None] * VP + e[None, :]), FD, ROUND)
            total = tl.dot(gradient, tl.trans(sums), total * scale, input_precision=PRECISION)
            total += weight[:, None] * tl.load(before_z + d)[None, :]
        queries = tile(q, q_l, t, inside, d, K, K < KP, FD, ROUND)
        for c in range(segment * SEGMENT, start + C, C):
            at = tl.cast(c, tl.int64)
            near = (c + t) < n
            keys = tile(k + at * k_l, k_l, t, near, d, K, K < KP, FD, ROUND)
            values = tile(v + at * v_l, v_l, t, near, e, V, V < VP, FD, ROUND)
            u = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale + 1.0
            u *= tl.dot(gradient, tl.trans(values), input_precision=PRECISION) + weight[:, None]
            u = tl.where((start + t)[:, None] >= (c + t)[None, :], u, 0.0)
            total = tl.dot(operand(u, FD, ROUND), keys, total, input_precision=PRECISION)
    dq += ((b * L + first) * H + h) * K
    tl.store(dq + t[:, None] * (H * K) + d[None, :], (total * scale).to(dq.dtype.element_ty),
             mask=((start + t) < L)[:, None] & (d < K)[None, :])


@triton.jit
def key_gradient(
    q, k, v, g, gz, after_kv, after_z, dk, dv, lengths, L, H, segments, blocks, scale,
    q_b, q_l, q_h, k_b, k_l, k_h, v_b, v_l, v_h,
    K: tl.constexpr, V: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, BLOCKS: tl.constexpr, C: tl.constexpr,
    SEGMENT: tl.constexpr, UNROLL: tl.constexpr, STATE: tl.constexpr, CAUSAL: tl.constexpr, KEYS: tl.constexpr,
    VALUES: tl.constexpr, RAGGED: tl.constexpr, FD: tl.constexpr, ROUND: tl.constexpr, PRECISION: tl.constexpr,
):
    """dk (B, L, H, K) and dv (B, L, H, V), contiguous, zeros at pads. Grid: heads x blocks of C keys.

    after_kv (G, segments, R, VP), after_z (G, segments, R): reverse sums over queries behind each segment, with STATE.
    KEYS, VALUES: which of the two to make; float32 operands leave registers for one at a time.
    CAUSAL False is the encoder of a prefix: all queries are in one sum, and q, g, gz are not read.
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
    inside = (start + t) < n
    key_total = tl.zeros([C, KP], tl.float32)
    value_total = tl.zeros([C, VP], tl.float32)
    if start < n:
        k += b * k_b + h * k_h + first * k_l
        v += b * v_b + h * v_h + first * v_l
        segment = start // SEGMENT
        keys = tile(k, k_l, t, inside, d, K, K < KP, FD, ROUND)
        values = tile(v, v_l, t, inside, e, V, V < VP, FD, ROUND)
        if STATE:
            sums_of = head  # an encoder's queries are one sum a head
            if CAUSAL:
                sums_of = head * segments + segment
            after_kv += sums_of * R * VP
            after_z += sums_of * R
            for group in tl.range(0, BLOCKS * (BLOCKS + 1) // 2, loop_unroll_factor=UNROLL):
                a, other = blocks_of(group, BLOCKS)
                left = tile(k, k_l, t, inside, a * 8 + i8, K, K < 8 * BLOCKS, FD, ROUND)
                right = tile(k, k_l, t, inside, other * 8 + i8, K, K < 8 * BLOCKS, FD, ROUND)
                rows = KP + 1 + group * 64 + f
                sums = operand(tl.load(after_kv + rows[:, None] * VP + e[None, :]), FD, ROUND)
                if KEYS:
                    features = tl.dot(values, tl.trans(sums), input_precision=PRECISION)
                    features += tl.load(after_z + rows)[None, :]
                    key_total = through_group(features, left, right, key_total, a, other, C, KP, FD, ROUND, PRECISION)
                if VALUES:
                    products = outer(left, (right * tl.where(other > a, 2.0, 1.0)).to(FD), C, FD, ROUND)
                    value_total = tl.dot(products, sums, value_total, input_precision=PRECISION)
            sums = operand(tl.load(after_kv + d[:, None] * VP + e[None, :]), FD, ROUND)
            if KEYS:
                key_total = tl.dot(values, tl.trans(sums), key_total * scale, input_precision=PRECISION)
                key_total += tl.load(after_z + d)[None, :]
            if VALUES:
                value_total = tl.dot(keys, sums, value_total * (0.5 * scale), input_precision=PRECISION) * scale
                value_total += tl.load(after_kv + KP * VP + e).to(tl.float32)[None, :]
        if CAUSAL:
            q += b * q_b + h * q_h
            g += (b * L * H + h) * V
            gz += head * L
            for c in range(start, tl.minimum(segment * SEGMENT + SEGMENT, n), C):
                at = tl.cast(c, tl.int64)
                near = (c + t) < n
                queries = tile(q + at * q_l, q_l, t, near, d, K, K < KP, FD, ROUND)
                gradient = tile(g + at * H * V, H * V, t, near, e, V, V < VP, FD, ROUND)
                u = tl.dot(keys, tl.trans(queries), input_precision=PRECISION) * scale + 1.0
                seen = (start + t)[:, None] <= (c + t)[None, :]
                if VALUES:
                    w = tl.where(seen, 0.5 * u * u + 0.5, 0.0)
                    value_total = tl.dot(operand(w, FD, ROUND), gradient, value_total, input_precision=PRECISION)
                if KEYS:
                    weight = tl.load(gz + at + t, mask=near, other=0.0)
                    u *= tl.dot(values, tl.trans(gradient), input_precision=PRECISION) + weight[None, :]
                    u = tl.where(seen, u, 0.0)
                    key_total = tl.dot(operand(u, FD, ROUND), queries, key_total, input_precision=PRECISION)
    kept = ((start + t) < L)[:, None]
    row = (b * L + first) * H + h
    if KEYS:
        key_total = tl.where(inside[:, None], key_total * scale, 0.0)
        tl.store(dk + row * K + t[:, None] * (H * K) + d[None, :], key_total.to(dk.dtype.element_ty),
                 mask=kept & (d < K)[None, :])
    if VALUES:
        value_total = tl.where(inside[:, None], value_total, 0.0)
        tl.store(dv + row * V + t[:, None] * (H * V) + e[None, :], value_total.to(dv.dtype.element_ty),
                 mask=kept & (e < V)[None, :])
