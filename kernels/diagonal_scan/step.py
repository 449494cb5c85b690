"""One token of the diagonal scan."""

from __future__ import annotations

import torch

from kernels.checks import check_step, sizes
from kernels.taylor.features import accumulator_dtype, without_autocast


def turned(log_decay: torch.Tensor, angle: torch.Tensor, tokens: torch.Tensor | int = 1) -> torch.Tensor:
    """exp((log_decay + i angle) tokens), complex128: t tokens turn far, and an angle's rounding grows with them."""
    return torch.complex(log_decay.double() * tokens, angle.double() * tokens).exp()


def advance(x_BD, factor_DN, real_RDN, imag_RDN, h_BDN) -> tuple[torch.Tensor, torch.Tensor]:
    """(y_BRD, new h), h and the factor complex, by plain autograd."""
    h = factor_DN * h_BDN + x_BD.unsqueeze(-1)
    y = torch.einsum("bdn,rdn->brd", h.real, real_RDN) - torch.einsum("bdn,rdn->brd", h.imag, imag_RDN)
    return y, h


def diagonal_step(
    x_BD: torch.Tensor, log_decay_DN: torch.Tensor, angle_DN: torch.Tensor, real_RDN: torch.Tensor, imag_RDN: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y (B, R, D) in x's dtype, state): the state turns and fades, takes x in, and is read.

    `state` is h (B, D, N, 2) in float32, or float64 for float64 inputs; it is overwritten when gradients are off.
    LayoutError: a token or state that does not fit.
    """
    (B, D), (R, _, N) = sizes("x_BD", x_BD, "BD"), sizes("real_RDN", real_RDN, "RDN")
    dtype = accumulator_dtype(x_BD.dtype)
    check_step("diagonal_step", (
        ("log_decay_DN", log_decay_DN, (D, N)), ("angle_DN", angle_DN, (D, N)), ("real_RDN", real_RDN, (R, D, N)),
        ("imag_RDN", imag_RDN, (R, D, N))), (("state", state, (B, D, N, 2)),), dtype)
    with without_autocast(x_BD.device):
        factor = turned(log_decay_DN, angle_DN).to(dtype.to_complex())
        y, h = advance(x_BD.to(dtype), factor, real_RDN.to(dtype), imag_RDN.to(dtype), torch.view_as_complex(state.contiguous()))
        h = torch.view_as_real(h)
    if not torch.is_grad_enabled() and 0 not in state.stride():  # entries that share memory cannot be written
        h = state.copy_(h)
    return y.to(x_BD.dtype), h
