"""Launching the kernels: one `Call` knows the sizes, the types and the GPU, its methods are the passes over a row."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from kernels.taylor.triton_blocks import block_count, group_count, key_width, row_count, value_width
from kernels.taylor.triton_config import config, sequence_parts
from kernels.taylor.triton_gradient import key_gradient, output_gradient, query_gradient
from kernels.taylor.triton_operands import numbers, on_device, single, stored
from kernels.taylor.triton_output import outputs
from kernels.taylor.triton_state import state_scan
from kernels.triton_mode import capability

Sums = tuple[torch.Tensor, torch.Tensor]  # (G, ..., R, VP) and (G, ..., R): kv and z in the layout of triton_blocks
NOTHING = (None, None)


@dataclass(frozen=True)
class Call:
    """What every launch of one call shares. Rows are given as (k, v) with strides, lengths (B) or None."""

    B: int
    H: int
    K: int
    V: int
    scale: float
    eps: float
    segment: int
    dtype: torch.dtype
    device: torch.device

    def segments(self, L: int) -> int:
        return -(-L // self.segment)

    def options(self, kernel: Any, name: str) -> dict[str, Any]:
        """Constants and launch options of a kernel, `name` its entry of the configuration."""
        return options(kernel, name, capability(self.device), self.K, self.V, self.dtype, self.segment)

    def empty(self, *between: int, dtype: torch.dtype = torch.float32) -> Sums:
        """Uninitialised sums (G, *between, R, VP) of `dtype` and (G, *between, R) float32."""
        shape = (self.B * self.H, *between, row_count(self.K))
        return (torch.empty(*shape, value_width(self.V), dtype=dtype, device=self.device),
                torch.empty(shape, dtype=torch.float32, device=self.device))

    def as_boundary(self, sums: Sums | None) -> Sums | None:
        """Sums of whole rows in the form of boundary sums of one segment."""
        return None if sums is None else (sums[0].to(stored(self.dtype)).unsqueeze(1), sums[1].unsqueeze(1))

    def scan(self, k, v, lengths, first: Sums | None, *, before: bool, last: bool, weight=None):
        """Sums over rows that start with `first`: (before each segment, of the whole row), None where not wanted.

        With `weight` (G, L), the factor of the normaliser, rows are summed from their end.
        """
        L = k.shape[1]
        segments, groups = self.segments(L), group_count(self.K) + 1
        parts = sequence_parts(self.B * self.H * groups, segments, processors(self.device))
        split = parts > 1
        boundaries = self.empty(segments, dtype=stored(self.dtype)) if before and not split else None
        ends = self.empty(parts) if last or split else None
        start = None if split else first
        with on_device(self.device):
            state_scan[(self.B * self.H * parts * groups,)](
                k, v, weight, *(start or NOTHING), *(boundaries or NOTHING), *(ends or NOTHING), lengths, L, self.H,
                segments, parts, *k.stride()[:3], *v.stride()[:3], FIRST=start is not None,
                BEFORE=boundaries is not None, LAST=ends is not None, WEIGHTED=weight is not None,
                REVERSE=weight is not None, RAGGED=lengths is not None, **self.options(state_scan, "state_scan"))
        if split:
            return join_parts(ends, first, reverse=weight is not None, before=before, dtype=stored(self.dtype))
        return boundaries, None if ends is None else (ends[0][:, 0], ends[1][:, 0])

    def outputs(self, q, k, v, lengths, before: Sums | None) -> tuple[torch.Tensor, torch.Tensor]:
        """(y_BLHV, divisors (G, L)) from the sums before each segment."""
        y = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        divisor = torch.empty(self.B * self.H, v.shape[1], dtype=torch.float32, device=v.device)
        self._launch(outputs, v.shape[1], (q, k, v), (q, k, v, *(before or NOTHING), y, divisor, lengths),
                     (self.scale, self.eps), STATE=before is not None, RAGGED=lengths is not None)
        return y, divisor

    def output_gradient(self, dy, y, divisor, lengths) -> tuple[torch.Tensor, torch.Tensor]:
        """g_BLHV, the gradient of the numerators, and gz (G, L), that of the divisors."""
        g, gz = torch.empty(y.shape, dtype=stored(self.dtype), device=y.device), torch.empty_like(divisor)
        self._launch(output_gradient, y.shape[1], (dy,), (dy, y, divisor, g, gz, lengths), RAGGED=lengths is not None)
        return g, gz

    def query_gradient(self, q, k, v, g, gz, lengths, before: Sums | None) -> torch.Tensor:
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self._launch(query_gradient, q.shape[1], (q, k, v), (q, k, v, g, gz, *(before or NOTHING), dq, lengths),
                     (self.scale,), STATE=before is not None, RAGGED=lengths is not None)
        return dq

    def key_gradient(self, k, v, lengths, after: Sums | None, queries=None) -> tuple[torch.Tensor, torch.Tensor]:
        """(dk, dv) from the sums behind each segment; `queries` (q, g, gz), None for an encoder: in the sum."""
        dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (k, v))
        q, g, gz = queries or (k, None, None)
        for keys, values in key_gradient_passes(self.dtype):
            self._launch(key_gradient, k.shape[1], (q, k, v), (q, k, v, g, gz, *(after or NOTHING), dk, dv, lengths),
                         (self.scale,), STATE=after is not None, CAUSAL=queries is not None, KEYS=keys, VALUES=values,
                         RAGGED=lengths is not None)
        return dk, dv

    def _launch(self, kernel, L: int, strided, tensors, settings=(), **constants) -> None:
        """One of the kernels whose grid is heads x blocks."""
        chosen = self.options(kernel, "value_gradient" if constants.get("KEYS") is False else kernel.__name__)
        blocks = -(-L // chosen["C"])
        segments = () if kernel is output_gradient else (self.segments(L),)
        strides = [stride for x in strided for stride in x.stride()[:3]]
        with on_device(self.device):
            kernel[(self.B * self.H * blocks,)](
                *tensors, L, self.H, *segments, blocks, *settings, *strides, **constants, **chosen)


def options(
    kernel: Any, name: str, capability: int | str, K: int, V: int, dtype: torch.dtype, segment: int,
) -> dict[str, Any]:
    """Constants and launch options that follow from the GPU, the widths and the type of the inputs."""
    launch = config(capability, V > 64, single(dtype))[name]
    shared = {"V": V, "VP": value_width(V), "C": launch.C}
    shared |= {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    if kernel is output_gradient:
        return shared
    shared |= numbers(dtype, amd=isinstance(capability, str) or torch.version.hip is not None)
    shared |= {"K": K, "KP": key_width(K), "BLOCKS": block_count(K), "SEGMENT": segment}
    return shared if kernel is state_scan else shared | {
        "UNROLL": group_count(K) if launch.unroll and group_count(K) <= 3 else 1}


def key_gradient_passes(dtype: torch.dtype) -> tuple[tuple[bool, bool], ...]:
    """(KEYS, VALUES) of each launch."""
    return ((True, False), (False, True)) if single(dtype) else ((True, True),)


def join_parts(ends: Sums, first: Sums | None, *, reverse: bool, before: bool, dtype: torch.dtype):
    """Sums of single segments -> (before each segment, of the whole row)."""
    boundaries, totals = [], []
    for index, part in enumerate(ends):
        start = torch.zeros_like(part[:, :1]) if first is None else first[index].unsqueeze(1)
        running = torch.cat((start, part.flip(1) if reverse else part), 1).cumsum(1)
        totals.append(running[:, -1].contiguous())
        running = running[:, :-1].flip(1) if reverse else running[:, :-1]
        boundaries.append(running.to(torch.float32 if index else dtype).contiguous())
    return tuple(boundaries) if before else None, tuple(totals)


@functools.cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; the interpreter counts as one, and takes whole rows."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0
