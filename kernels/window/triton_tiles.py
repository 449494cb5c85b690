"""What the window kernels share: loads of tiles, and which keys of a tile its queries see.

Positions count keys: query t of the row stands at key P + t. A tile's base pointer is advanced in int64, offsets within it
are int32. Products come from operands of type FD and are summed in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

CAUSAL, BOTH, OWN = 0, 1, 2


@triton.jit
def tile(base, start, stride, rows, columns, end, width: tl.constexpr, block: tl.constexpr):
    """(rows, columns) of the matrix at base, from row `start` on; 0 beyond `end` rows and `width` columns."""
    pointers = base + tl.cast(start, tl.int64) * stride + rows[:, None] * stride + columns[None, :]
    inside = ((start + rows) >= 0) & ((start + rows) < end)
    if width == block:
        return tl.load(pointers, mask=inside[:, None], other=0.0)
    return tl.load(pointers, mask=inside[:, None] & (columns < width)[None, :], other=0.0)


@triton.jit
def put(base, start, stride, rows, columns, end, width: tl.constexpr, block: tl.constexpr, x):
    """Writes a tile, in the type that is kept there."""
    pointers = base + tl.cast(start, tl.int64) * stride + rows[:, None] * stride + columns[None, :]
    inside = (start + rows) < end
    if width == block:
        tl.store(pointers, x.to(base.dtype.element_ty), mask=inside[:, None])
    else:
        tl.store(pointers, x.to(base.dtype.element_ty), mask=inside[:, None] & (columns < width)[None, :])


@triton.jit
def seen(i, j, first, last, W, REACH: tl.constexpr):
    """Whether the queries at positions i see the keys at j: two vectors that broadcast against each other."""
    if REACH == 0:
        inside = (j <= i) & (j > i - W)
    elif REACH == 1:
        inside = (j < i + W) & (j > i - W)
    else:
        inside = (i // W) == (j // W)
    return inside & (j >= first) & (j < last)


@triton.jit
def table_terms(table, i, j, W):
    """The table's entries for offsets j - i, whichever are in it; others are masked later."""
    index = j - i + (W - 1)
    return tl.load(table + tl.minimum(tl.maximum(index, 0), 2 * W - 2))


@triton.jit
def key_span(low, high, N, W, REACH: tl.constexpr):
    """[from, to) keys that the queries at positions low..high-1 can see."""
    if REACH == 2:
        return low // W * W, tl.minimum((high - 1) // W * W + W, N)
    if REACH == 1:
        return tl.maximum(low - W + 1, 0), tl.minimum(high + W - 1, N)
    return tl.maximum(low - W + 1, 0), tl.minimum(high, N)


@triton.jit
def query_span(low, high, P, L, W, REACH: tl.constexpr):
    """[from, to) queries, counted from 0, that can see the keys low..high-1."""
    if REACH == 2:
        a, b = low // W * W, (high - 1) // W * W + W
    elif REACH == 1:
        a, b = low - W + 1, high + W - 1
    else:
        a, b = low, high + W - 1
    return tl.maximum(a - P, 0), tl.minimum(b - P, L)
