"""Refusals that operations share: what was given does not fit the other arguments."""

from __future__ import annotations

import torch

from kernels.errors import LayoutError


def check_counts(name: str, counts_B: torch.Tensor | None, B: int) -> None:
    """One integer a row, or nothing given."""
    if counts_B is None:
        return
    if tuple(counts_B.shape) != (B,) or counts_B.is_floating_point() or counts_B.dtype == torch.bool:
        raise LayoutError(
            f"{name}: got {counts_B.dtype} {tuple(counts_B.shape)}, expected integers ({B},): one number for each row")


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
