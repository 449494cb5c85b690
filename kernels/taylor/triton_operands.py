"""Pieces that all kernels share: loading a tile, outer products of blocks, and the types products are made of."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.triton_mode import interpreted, operand_type


def single(dtype: torch.dtype) -> bool:
    """Whether operands are float32, which take other shapes to fit a GPU's registers (none in the interpreter)."""
    return dtype != torch.bfloat16 and not interpreted()


def numbers(dtype: torch.dtype, amd: bool) -> dict[str, Any]:
    """Constants that fix the arithmetic for inputs of `dtype`.

    float16 works as float32 (tf32 keeps its ten bits): features are products, sums of them leave float16's range.
    float32 takes three tf32 products, and AMD's matrix units take it as it is. ROUND makes the interpreter round
    bfloat16 operands as a GPU does.
    """
    rounded, precision = dtype == torch.bfloat16, "ieee"
    if single(dtype) and not amd:
        precision = "tf32" if dtype == torch.float16 else "tf32x3"
    return {"FD": operand_type(torch.bfloat16 if rounded else torch.float32), "ROUND": rounded and interpreted(),
            "PRECISION": precision}


def stored(dtype: torch.dtype) -> torch.dtype:
    """Type in which boundary sums and output gradients wait in memory."""
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32


@triton.jit
def operand(x, FD: tl.constexpr, ROUND: tl.constexpr):
    """x in the type of products."""
    if ROUND:
        x = x.to(tl.bfloat16)
    return x.to(FD)


@triton.jit
def tile(pointer, stride, rows, inside, columns, WIDTH: tl.constexpr, PADDED: tl.constexpr, FD: tl.constexpr,
         ROUND: tl.constexpr):
    """(rows, columns) of a matrix as operands, zeros outside; PADDED says that columns may reach beyond WIDTH.

    Offsets within a tile are int32 (the launcher sees to it), offsets of tiles int64.
    """
    mask = inside[:, None]
    if PADDED:
        mask = mask & (columns < WIDTH)[None, :]
    x = tl.load(pointer + rows[:, None] * stride + columns[None, :], mask=mask, other=0.0)
    if ROUND:
        x = x.to(tl.bfloat16)
    return x.to(FD)


@triton.jit
def blocks_of(group, BLOCKS: tl.constexpr):
    """The pair a <= b of a group, row-major."""
    number = tl.cast(group, tl.int32)
    a = number * 0
    for i in tl.static_range(1, BLOCKS):
        a += (number >= i * BLOCKS - i * (i - 1) // 2).to(tl.int32)
    return a, number - (a * BLOCKS - a * (a - 1) // 2) + a


@triton.jit
def outer(a, b, ROWS: tl.constexpr, FD: tl.constexpr, ROUND: tl.constexpr):
    """(ROWS, 8) and (ROWS, 8) -> (ROWS, 64): column 8 i + j is a_i b_j."""
    return operand(tl.reshape(a[:, :, None] * b[:, None, :], [ROWS, 64]), FD, ROUND)


@triton.jit
def repeated_inner(b, ROWS: tl.constexpr):
    """(ROWS, 8) -> (ROWS, 64): column 8 i + j is b_j."""
    return tl.reshape(tl.broadcast_to(b[:, None, :], [ROWS, 8, 8]), [ROWS, 64])


@triton.jit
def repeated_outer(a, ROWS: tl.constexpr):
    """(ROWS, 8) -> (ROWS, 64): column 8 i + j is a_i."""
    return tl.reshape(tl.broadcast_to(a[:, :, None], [ROWS, 8, 8]), [ROWS, 64])


def on_device(device: torch.device) -> contextlib.AbstractContextManager:
    """Triton launches on the current GPU, which need not be the tensors'."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
