"""Selective state space scan (Mamba, Gu and Dao 2023): a diagonal recurrence whose step, input and output are per token.

    h_t = exp(delta_t A) h_{t-1} + delta_t x_t B_t        y_t = h_t C_t + skip x_t

h is (D, N); B_t is `input`, C_t is `output`, both of width N and shared by all channels.
"""

from __future__ import annotations

import torch

from kernels.adapters import mamba
from kernels.backends import choose_backend
from kernels.checks import check_chunk, check_counts
from kernels.errors import LayoutError
from kernels.selective_scan.chunked import selective_scan_chunked
from kernels.selective_scan.naive import selective_scan_naive
from kernels.selective_scan.step import selective_step
from kernels.taylor.features import accumulator_dtype, first_tokens, without_autocast

__all__ = ["empty_state", "selective_scan", "selective_step"]


def empty_state(B: int, D: int, N: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """h before the first token: zeros (B, D, N), float32 (float64 for float64 inputs)."""
    return torch.zeros(B, D, N, dtype=accumulator_dtype(dtype), device=device)


def selective_scan(
    x_BLD: torch.Tensor, delta_BLD: torch.Tensor, A_DN: torch.Tensor, input_BLN: torch.Tensor, output_BLN: torch.Tensor, *,
    skip_D: torch.Tensor | None = None, lengths_B: torch.Tensor | None = None, state: torch.Tensor | None = None,
    chunk: int | None = None, backend: str = "auto", return_state: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """The scan over rows whose real tokens come first.

    Args:
        x_BLD: what enters, after Mamba's convolution and activation; its dtype is the output's.
        delta_BLD: step sizes, at least 0: after bias and softplus. Take float32: exp(delta A) magnifies rounding.
        A_DN: below 0 (Mamba's -exp(A_log)).
        input_BLN, output_BLN: Mamba's B and C.
        skip_D: Mamba's D; None leaves x out of the output.
        lengths_B: real tokens of each row; a pad has delta 0, so that it neither fades nor writes. None: all are real.
        state: h (B, D, N) to start from; consumed. None: zeros.
        chunk: tokens per step of the chunk loop; changes speed, never the result. None: chosen by size.
        backend: "auto" | "naive" | "chunked" | "mamba_ssm" (its CUDA kernel; no initial state).
    Returns:
        y_BLD, or (y_BLD, h after each row's last real token) with `return_state`; outputs at pads mean nothing.
    Raises:
        LayoutError: shapes that do not belong together, counts beyond the row, a chunk below 1. UnsupportedUse: a backend that cannot run.
    """
    given = (x_BLD, delta_BLD, A_DN, input_BLN, output_BLN)
    dtype = torch.float64 if any(x.dtype == torch.float64 for x in given) else torch.float32
    check_inputs(*given, skip_D, state, dtype)
    check_counts("lengths_B", lengths_B, len(x_BLD), most=x_BLD.shape[1])
    check_chunk("selective_scan", chunk)
    backend = choose_backend(
        "selective_scan", backend, x_BLD.device, fast={"mamba_ssm": mamba.selective_reason(*given, state)})
    B, L, D = x_BLD.shape
    if x_BLD.numel() == 0:
        state = empty_state(B, D, A_DN.shape[1], dtype, x_BLD.device) if state is None else state
        return (torch.zeros_like(x_BLD), state) if return_state else torch.zeros_like(x_BLD)
    with without_autocast(x_BLD.device):
        if backend == "mamba_ssm":
            y_BLD, state = mamba.selective_scan(*given, skip_D, lengths_B)
        else:
            if lengths_B is not None:
                delta_BLD = delta_BLD * first_tokens(lengths_B, L).unsqueeze(-1)
            form = selective_scan_naive if backend == "naive" else selective_scan_chunked
            y_BLD, state = form(x_BLD, delta_BLD, A_DN, input_BLN, output_BLN, skip_D, state, dtype, chunk)
    return (y_BLD, state) if return_state else y_BLD


def check_inputs(x, delta, A, entering, leaving, skip, state, dtype: torch.dtype) -> None:
    """Shapes as the signature names them, and a state in the type that sums are kept in."""
    if x.dim() != 3 or A.dim() != 2:
        raise LayoutError(f"selective_scan: expected x (B, L, D) and A (D, N); got {tuple(x.shape)} and {tuple(A.shape)}")
    (B, L, D), N = x.shape, A.shape[1]
    expected = {"delta": (delta, (B, L, D)), "A": (A, (D, N)), "input": (entering, (B, L, N)), "output": (leaving, (B, L, N)),
                "skip": (skip, (D,)), "state": (state, (B, D, N))}
    for name, (tensor, shape) in expected.items():
        if tensor is not None and tensor.shape != shape:
            raise LayoutError(f"selective_scan: expected {name} of shape {shape} beside x {tuple(x.shape)}; got {tuple(tensor.shape)}")
    if state is not None and state.dtype != dtype:
        raise LayoutError(f"selective_scan: expected a state in {dtype}, the type that sums are kept in; got {state.dtype}")
