"""Which keys a block of queries sees, and what the position table adds to their scores: one small matrix, the frame.

Query i of a block stands at column i + shift of its frame. A key's column minus the query's is its offset, so a frame is
a table of offsets laid along diagonals, -inf outside the window, and a table's gradient is the sums of those diagonals.

    reach     columns (block of C)   shift    visible columns of query i
    causal    C + W - 1              W - 1    i .. i + W - 1
    both      C + 2W - 2             W - 1    i .. i + 2W - 2
    own       C, a multiple of W     0        those with column // W = i // W

Letters: T tables, 1 or one a head.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from kernels.gradients import outside_inference


def columns(reach: str, C: int, W: int) -> int:
    """Keys that a block of C queries can reach."""
    return C + {"causal": W - 1, "both": 2 * W - 2, "own": 0}[reach]


def diagonals(reach: str, C: int, W: int) -> tuple[slice, slice]:
    """(where the visible part of a table stands among a frame's N + C - 1 diagonals, which part of the table it is)."""
    if reach == "own":
        return slice(C - W, C + W - 1), slice(0, 2 * W - 1)
    entries = W if reach == "causal" else 2 * W - 1
    return slice(C - 1, C - 1 + entries), slice(0, entries)


def frame(table_TW: torch.Tensor, reach: str, C: int, W: int) -> torch.Tensor:
    """(T, C, N) scores to add, from tables (T, 2W-1); the entry of offset o stands at index o + W - 1."""
    N = columns(reach, C, W)
    there, part = diagonals(reach, C, W)
    line = table_TW.new_full((table_TW.shape[0], N + C - 1), float("-inf"))
    line[:, there] = table_TW[:, part]
    framed = line.unfold(1, N, 1).flip(1)  # row i begins at diagonal C - 1 - i
    if reach == "own":
        window = torch.arange(C, device=table_TW.device) // W
        framed.masked_fill_(window[:, None] != window, float("-inf"))
    return framed


@lru_cache(maxsize=64)
@outside_inference
def plain_frame(reach: str, C: int, W: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The frame without a table: 0 where a key is seen."""
    return frame(torch.zeros(1, 2 * W - 1, dtype=dtype, device=device), reach, C, W)


def diagonal_sums(gradient_TCN: torch.Tensor) -> torch.Tensor:
    """(T, N + C - 1) sums along the diagonals of matrices: entry e of those whose column minus row is e - (C - 1)."""
    T, C, N = gradient_TCN.shape
    width = N + C - 1
    skewed = gradient_TCN.new_zeros(T, C, width)
    skewed.as_strided((T, C, N), (C * width, width - 1, 1), C - 1).copy_(gradient_TCN)
    return skewed.sum(1)


def table_gradient(gradient_TCN: torch.Tensor, reach: str, W: int) -> torch.Tensor:
    """Gradient (T, 2W-1) of the tables from that of the frame, which is 0 where nothing is seen."""
    T, C, _ = gradient_TCN.shape
    there, part = diagonals(reach, C, W)
    gradient = gradient_TCN.new_zeros(T, 2 * W - 1)
    gradient[:, part] = diagonal_sums(gradient_TCN)[:, there]
    return gradient


def blocks(reach: str, L: int, P: int, N: int, C: int, W: int) -> list[tuple[int, int, int, int, int]]:
    """(first query, after the last, first key, after the last, frame's column of the first key) of each block.

    Queries 0..L-1 stand at keys P..P+L-1 of N. With "own", P is 0 or a multiple of W.
    """
    plan = []
    for start in range(0, L, C):
        stop = min(start + C, L)
        first = P + start - (0 if reach == "own" else W - 1)
        last = P + stop + (W - 1 if reach == "both" else 0)
        low, high = max(first, 0), min(last, N)
        plan.append((start, stop, low, high, low - first))
    return plan
