"""Diagonal complex recurrence with fixed coefficients (S4D, Gu et al. 2022): a convolution with sums of fading waves.

    h_t = exp(log_decay + i angle) h_{t-1} + x_t        y_t = sum_n Re((real + i imag) h_t)

h is complex (D, N), kept as real numbers (D, N, 2); R reads of one state give R outputs a channel.
"""

from __future__ import annotations

import torch

from kernels.backends import choose_backend
from kernels.checks import check_chunk, check_counts
from kernels.diagonal_scan.chunked import diagonal_scan_chunked
from kernels.diagonal_scan.naive import diagonal_scan_naive
from kernels.diagonal_scan.step import diagonal_step
from kernels.errors import LayoutError
from kernels.taylor.features import accumulator_dtype, first_tokens, without_autocast

__all__ = ["diagonal_scan", "diagonal_step", "empty_state"]


def empty_state(B: int, D: int, N: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """h before the first token: zeros (B, D, N, 2), float32 (float64 for float64 inputs)."""
    return torch.zeros(B, D, N, 2, dtype=accumulator_dtype(dtype), device=device)


def diagonal_scan(
    x_BLD: torch.Tensor, log_decay_DN: torch.Tensor, angle_DN: torch.Tensor, real_RDN: torch.Tensor, imag_RDN: torch.Tensor, *,
    lengths_B: torch.Tensor | None = None, state: torch.Tensor | None = None, chunk: int | None = None,
    backend: str = "auto", return_state: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """The scan over rows whose real tokens come first.

    Args:
        x_BLD: what enters; its dtype is the output's.
        log_decay_DN: natural logarithm of the decay of a token, at most 0 (S4D: delta Re A).
        angle_DN: radians that a token turns the state by (S4D: delta Im A). Give both in float64 where they are products:
            t tokens multiply the angle's rounding by t.
        real_RDN, imag_RDN: the reads (S4D: twice C (exp(delta A) - 1)/A, the conjugate pairs being one).
        lengths_B: real tokens of each row; at pads no time passes and nothing is written. None: all are real.
        state: h (B, D, N, 2) to start from, real part first; consumed. None: zeros.
        chunk: tokens per step of the chunk loop; changes speed, never the result.
        backend: "auto" | "naive" | "chunked".
    Returns:
        y (B, L, R, D), or (y, h after each row's last real token) with `return_state`; outputs at pads mean nothing.
    Raises:
        LayoutError: shapes that do not belong together, counts beyond the row, a chunk below 1. UnsupportedUse: a backend that cannot run.
    """
    dtype = accumulator_dtype(x_BLD.dtype)
    check_inputs(x_BLD, log_decay_DN, angle_DN, real_RDN, imag_RDN, state, dtype)
    check_counts("lengths_B", lengths_B, len(x_BLD), most=x_BLD.shape[1])
    check_chunk("diagonal_scan", chunk)
    backend = choose_backend("diagonal_scan", backend, x_BLD.device)
    (B, L, D), (R, _, N) = x_BLD.shape, real_RDN.shape
    if x_BLD.numel() == 0 or R * N == 0:
        y = x_BLD.new_zeros(B, L, R, D)
        return (y, empty_state(B, D, N, dtype, x_BLD.device) if state is None else state) if return_state else y
    with without_autocast(x_BLD.device):
        x = x_BLD.to(dtype)
        if lengths_B is not None:
            x = torch.where(first_tokens(lengths_B, L).unsqueeze(-1), x, 0)
        form = diagonal_scan_naive if backend == "naive" else diagonal_scan_chunked
        y, state = form(x, log_decay_DN, angle_DN, real_RDN, imag_RDN, lengths_B, state, chunk, return_state)
        y = y.to(x_BLD.dtype)
    return (y, state) if return_state else y


def check_inputs(x, log_decay, angle, real, imag, state, dtype: torch.dtype) -> None:
    """Shapes as the signature names them, and a state in the type that sums are kept in."""
    if x.dim() != 3 or real.dim() != 3:
        raise LayoutError(f"diagonal_scan: expected x (B, L, D) and real (R, D, N); got {tuple(x.shape)} and {tuple(real.shape)}")
    (B, _, D), (R, _, N) = x.shape, real.shape
    expected = {"log_decay": (log_decay, (D, N)), "angle": (angle, (D, N)), "real": (real, (R, D, N)),
                "imag": (imag, (R, D, N)), "state": (state, (B, D, N, 2))}
    for name, (tensor, shape) in expected.items():
        if tensor is not None and tensor.shape != shape:
            raise LayoutError(f"diagonal_scan: expected {name} of shape {shape} beside x {tuple(x.shape)} and real "
                              f"{tuple(real.shape)}; got {tuple(tensor.shape)}")
    if state is not None and state.dtype != dtype:
        raise LayoutError(f"diagonal_scan: expected a state in {dtype}, the type that sums are kept in; got {state.dtype}")
