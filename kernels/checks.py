"""Refusals that operations share: what was given does not fit the other arguments."""

from __future__ import annotations

import torch

from kernels.errors import LayoutError


def check_counts(name: str, counts_B: torch.Tensor | None, B: int, *, most: int | None = None) -> None:
    """One integer a row, or nothing given; none below 0 or above `most` (None: no limit).

    Numbers are read where that is free, on a CPU. On a GPU a reader must not rely on them: a mask holds by itself, any
    other use clamps.
    """
    if counts_B is None:
        return
    if tuple(counts_B.shape) != (B,) or counts_B.is_floating_point() or counts_B.dtype == torch.bool:
        raise LayoutError(
            f"{name}: got {counts_B.dtype} {tuple(counts_B.shape)}, expected integers ({B},): one number for each row")
    if most is None or B == 0 or counts_B.device.type != "cpu" or not readable(counts_B):
        return
    numbers = counts_B.tolist()
    if min(numbers) < 0 or max(numbers) > most:
        raise LayoutError(f"{name}: got numbers from {min(numbers)} to {max(numbers)}, expected 0 to {most}, the size of a row")


def readable(tensor: torch.Tensor) -> bool:
    """Whether it holds numbers: not while a graph is traced, where there are shapes alone."""
    return type(tensor) is torch.Tensor and not torch.compiler.is_compiling()


def check_chunk(name: str, chunk: int | None) -> None:
    """Tokens a step, at least 1, or nothing given."""
    if chunk is not None and chunk < 1:
        raise LayoutError(f"{name}: chunk is {chunk}, expected at least 1 token a step, or None for the measured choice")


def sizes(name: str, tensor: torch.Tensor, axes: str) -> torch.Size:
    """The shape of a tensor with one axis a letter of `axes`."""
    if tensor.dim() != len(axes):
        raise LayoutError(f"{name}: got {tuple(tensor.shape)}, expected ({', '.join(axes)})")
    return tensor.shape


def check_step(
    operation: str, inputs: tuple[tuple[str, torch.Tensor | None, tuple[int, ...]], ...],
    state: tuple[tuple[str, torch.Tensor, tuple[int, ...]], ...], dtype: torch.dtype,
) -> None:
    """One token and the state it meets: exact shapes, and sums in `dtype`. A step has time for comparisons alone."""
    for name, tensor, shape in inputs:
        if tensor is not None and tensor.shape != shape:
            raise LayoutError(f"{operation}: {name}: got {tuple(tensor.shape)}, expected {shape}")
    for name, tensor, shape in state:
        if tensor.shape != shape or tensor.dtype != dtype:
            raise LayoutError(f"{operation}: {name}: got {tensor.dtype} {tuple(tensor.shape)}, expected {dtype} {shape}")


def writable(state: torch.Tensor) -> torch.Tensor:
    """A state to write to: a copy where its entries share memory, as those of an expanded tensor do."""
    return state.clone(memory_format=torch.contiguous_format) if 0 in state.stride() else state


def check_shape(
    name: str, tensor: torch.Tensor | None, shape: tuple[int | None, ...], dtype: torch.dtype | None = None,
) -> None:
    """A tensor of this shape (None: any size) and type (None: any), or nothing given."""
    if tensor is None:
        return
    fits = tensor.dim() == len(shape) and all(want is None or want == got for want, got in zip(shape, tensor.shape))
    if not fits or dtype not in (None, tensor.dtype):
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        raise LayoutError(
            f"{name}: got {tensor.dtype} {tuple(tensor.shape)}, expected {f'{dtype} ' if dtype else ''}({sizes})")
