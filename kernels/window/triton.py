"""Sliding-window attention on GPUs: launches, their sizes by GPU, and the variants that are compiled ahead of time.

A forward kernel that keeps one logarithm a query, and three gradient kernels that make the weights again from it. The
table's gradient is summed over query blocks as tiles first, then over their diagonals (README.md).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.compile import Variant
from kernels.gradients import once_differentiable
from kernels.taylor.features import autocast_off
from kernels.triton_mode import capability, operand_type
from kernels.window.band import diagonal_sums
from kernels.window.chunked import shorten
from kernels.window.past import with_past
from kernels.window.triton_kernels import (
    window_forward,
    window_key_gradient,
    window_query_gradient,
    window_table_gradient,
)

REACH = {"causal": 0, "both": 1, "own": 2}
VECTOR = 8  # strides are given in units of so many numbers where they all divide by it
PARTS = 64  # programs that share the query blocks of a head, for the table's gradient


def config(target: int | str, single: bool, wide: bool) -> dict[str, dict[str, int]]:
    """Kernel -> block sizes, warps and stages, for capability 80, 90, 100 or "gfx942".

    Args:
        single: float32 operands. wide: heads of more than 64.
    """
    warps = 8 if wide else 4
    if single:
        sizes = {"BQ": 32, "BK": 32, "num_warps": 8, "num_stages": 1}
        return {"forward": sizes, "query": sizes, "key": sizes, "table": {**sizes, "num_warps": warps}}
    sizes = {"BQ": 64, "BK": 64, "num_warps": warps, "num_stages": 1}
    return {
        "forward": {**sizes, "num_stages": 2},
        "query": sizes,
        "key": {**sizes, "BQ": 32 if wide or target == 80 else 64, "num_warps": 8 if wide else 4},
        "table": {**sizes, "BQ": 32 if wide or target == 80 else 64, "BK": 32 if wide else 64},
    }


def padded(width: int) -> int:
    """The block a head's width is computed in."""
    return max(16, triton.next_power_of_2(width))


def rows(x: torch.Tensor) -> torch.Tensor:
    """x as the kernels read it: the last dimension without gaps, any strides before it."""
    return x if x.stride(-1) == 1 else x.contiguous()


class Launch:
    """What all four kernels are told about one call."""

    def __init__(self, q, k, v, table, bounds, window, reach, scale):
        (self.B, self.L, self.H, self.K), self.N, self.V = q.shape, k.shape[1], v.shape[-1]
        self.window, self.scale, self.table_heads = window, scale, 0 if table is None else table.shape[0]
        nothing = q.new_empty(1, dtype=torch.float32)
        self.table = nothing if table is None else (table.float() * math.log2(math.e)).contiguous()
        self.first, self.last = bounds or (q.new_empty(1, dtype=torch.int32),) * 2
        self.sizes = (self.L, self.N, self.N - self.L, self.H, window, scale * math.log2(math.e))
        self.constants = {
            "REACH": REACH[reach], "TABLE": 0 if table is None else 1 if table.shape[0] == 1 else 2,
            "BOUNDS": bounds is not None, "K": self.K, "V": self.V, "DK": padded(self.K), "DV": padded(self.V), "FD": operand_type(q.dtype)}
        self.config = config(capability(q.device), q.dtype == torch.float32, max(self.K, self.V) > 64)

    def run(self, name: str, kernel: Any, grid: tuple[int, ...], *arguments: Any, strides_of: tuple, after: tuple = ()) -> None:
        strides = [stride for x in strides_of for stride in x.stride()[:3]]
        step = VECTOR if all(stride % VECTOR == 0 for stride in strides) else 1
        kernel[grid](*arguments, self.first, self.last, *(stride // step for stride in strides), *self.sizes, *after,
                     STEP=step, **self.constants, **self.config[name])

    def forward(self, q, k, v):
        y = torch.empty(self.B, self.L, self.H, self.V, dtype=v.dtype, device=v.device)
        lse = torch.empty(self.B * self.H, self.L, dtype=torch.float32, device=v.device)
        grid = (triton.cdiv(self.L, self.config["forward"]["BQ"]), self.B * self.H)
        self.run("forward", window_forward, grid, q, k, v, self.table, y, lse, strides_of=(q, k, v, y))
        return y, lse

    def backward(self, q, k, v, y, lse, g):
        delta = torch.empty_like(lse)
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (k, v))
        blocks = triton.cdiv(self.L, self.config["query"]["BQ"])
        self.run("query", window_query_gradient, (blocks, self.B * self.H), q, k, v, self.table, y, g, lse, delta, dq,
                 strides_of=(q, k, v, y, g), after=(self.scale,))
        blocks = triton.cdiv(self.N, self.config["key"]["BK"])
        self.run("key", window_key_gradient, (blocks, self.B * self.H), q, k, v, self.table, g, lse, delta, dk, dv,
                 strides_of=(q, k, v, g), after=(self.scale,))
        return dq, dk, dv, delta

    def table_gradient(self, q, k, v, lse, g, delta) -> torch.Tensor:
        """(T, 2W-1) float32."""
        BQ, BK = (self.config["table"][name] for name in ("BQ", "BK"))
        back = triton.cdiv(self.window - 1, BK) * BK
        ahead = 0 if self.constants["REACH"] == 0 else self.window - 1
        width = triton.cdiv(back + BQ + ahead, BK)
        blocks = triton.cdiv(self.L, BQ)
        each = triton.cdiv(blocks, PARTS)
        parts = triton.cdiv(blocks, each)
        tiles = torch.empty(self.B, self.H, parts, width, BQ, BK, dtype=torch.float32, device=q.device)
        grid = (width, parts, self.B * self.H)
        self.run("table", window_table_gradient, grid, q, k, v, self.table, g, lse, delta, tiles,
                 strides_of=(q, k, v, g), after=(-back, each))
        summed = tiles.sum((0, 2)) if self.table_heads > 1 else tiles.sum((0, 1, 2))[None]
        band_TQN = summed.transpose(1, 2).reshape(self.table_heads, BQ, width * BK)
        sums, zero, W = diagonal_sums(band_TQN), BQ - 1 + back, self.window  # `zero` is where offset 0 stands
        gradient = sums.new_zeros(self.table_heads, 2 * W - 1)
        low, high = max(zero - W + 1, 0), min(zero + W, sums.shape[1])
        gradient[:, low - zero + W - 1 : high - zero + W - 1] = sums[:, low:high]
        return gradient


class Attention(torch.autograd.Function):
    """y of queries that stand behind N - L past keys."""

    @staticmethod
    def forward(ctx, q, k, v, table, bounds, window, reach, scale):
        q, k, v = rows(q), rows(k), rows(v)
        y, lse = Launch(q, k, v, table, bounds, window, reach, scale).forward(q, k, v)
        ctx.save_for_backward(q, k, v, table, y, lse)
        ctx.settings = (bounds, window, reach, scale)
        return y

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy):
        q, k, v, table, y, lse = ctx.saved_tensors
        launch, g = Launch(q, k, v, table, *ctx.settings), rows(dy)
        dq, dk, dv, delta = launch.backward(q, k, v, y, lse, g)
        dtable = launch.table_gradient(q, k, v, lse, g, delta).to(table.dtype) if ctx.needs_input_grad[3] else None
        return dq, dk, dv, dtable, None, None, None, None


def window_triton(
    q_BLHK, k_BLHK, v_BLHV, *, window, reach, table=None, past_k=None, past_v=None, past_B=None, lengths_B=None, scale,
) -> torch.Tensor:
    """See `kernels.window.window`. Pads give 0 where they see no key."""
    L, P = q_BLHK.shape[1], 0 if past_k is None else past_k.shape[1]
    bounds = None
    if P:
        k_BLHK, v_BLHV = with_past(k_BLHK, v_BLHV, past_k, past_v, past_B)
        missing_B = (P - past_B).clamp(min=0).int()
        bounds = (missing_B, torch.full_like(missing_B, P + L))
    elif reach != "causal" and lengths_B is not None:
        last_B = lengths_B.clamp(0, L).int()
        bounds = (torch.zeros_like(last_B), last_B)
    window, table = shorten(window, table, reach, P + L)
    return Attention.apply(q_BLHK, k_BLHK, v_BLHV, table, bounds, window, reach, scale)


def variants(target: int | str) -> list[Variant]:
    """What `python -m kernels.compile window` compiles: bfloat16 and float32, with and without a table, two widths."""
    pointers = {"forward": ("q", "k", "v", "y"), "query": ("q", "k", "v", "y", "g", "dq"),
                "key": ("q", "k", "v", "g", "dk_out", "dv_out"), "table": ("q", "k", "v", "g")}
    kernels = {"forward": window_forward, "query": window_query_gradient, "key": window_key_gradient,
               "table": window_table_gradient}
    found = []
    for width, kind, table, reach in (
            (64, "bf16", 0, 0), (64, "bf16", 1, 0), (64, "bf16", 1, 1), (128, "bf16", 1, 0), (64, "fp32", 1, 0)):
        table_of = config(target, kind == "fp32", width > 64)
        for name, kernel in kernels.items():
            if name == "table" and not table:
                continue
            sizes = dict(table_of[name])
            options = {key: sizes.pop(key) for key in ("num_warps", "num_stages")}
            constants = {"REACH": reach, "TABLE": table, "BOUNDS": reach != 0, "STEP": VECTOR, "K": width, "V": width,
                         "DK": width, "DV": width,
                         "FD": tl.float32 if kind == "fp32" else tl.bfloat16, **sizes}
            types = {argument: argument_type(argument, pointers[name], kind) for argument in kernel.arg_names
                     if argument not in constants}
            label = f"window_{name} {kind} {width}{' table' if table else ''} {'causal' if reach == 0 else 'both'}"
            found.append(Variant(label, kernel, types, constants, options))
    return found


def argument_type(name: str, data: tuple[str, ...], kind: str) -> str:
    """The Triton type of a run-time argument."""
    if name in data:
        return f"*{kind}"
    if name in ("first_B", "last_B"):
        return "*i32"
    if name in ("table", "lse", "delta", "tiles"):
        return "*fp32"
    return "fp32" if name in ("scale", "factor") else "i32"
