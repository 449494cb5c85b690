"""One token of the selective scan."""

from __future__ import annotations

import torch

from kernels.checks import check_step, sizes
from kernels.taylor.features import without_autocast


def advance(x_BD, delta_BD, A_DN, input_BN, output_BN, skip_D, h_BDN) -> tuple[torch.Tensor, torch.Tensor]:
    """(y_BD, new h), both in h's dtype and by plain autograd."""
    x, delta, A, entering, leaving = (t.to(h_BDN.dtype) for t in (x_BD, delta_BD, A_DN, input_BN, output_BN))
    h = (delta[:, :, None] * A).exp() * h_BDN + (delta * x)[:, :, None] * entering[:, None, :]
    y = (h * leaving[:, None, :]).sum(-1)
    return (y if skip_D is None else y + skip_D.to(y.dtype) * x), h


def selective_step(
    x_BD: torch.Tensor, delta_BD: torch.Tensor, A_DN: torch.Tensor, input_BN: torch.Tensor, output_BN: torch.Tensor,
    state: torch.Tensor, *, skip_D: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y_BD in x's dtype, state): the state fades by exp(delta A), takes delta x B in, and is read by C.

    `state` is h (B, D, N) in float32, or float64 for float64 inputs; it is overwritten when gradients are off.
    LayoutError: a token or state that does not fit.
    """
    (B, D), N = sizes("x_BD", x_BD, "BD"), sizes("A_DN", A_DN, "DN")[1]
    wide = any(x.dtype == torch.float64 for x in (x_BD, delta_BD, A_DN, input_BN, output_BN))
    check_step("selective_step", (
        ("delta_BD", delta_BD, (B, D)), ("A_DN", A_DN, (D, N)), ("input_BN", input_BN, (B, N)),
        ("output_BN", output_BN, (B, N)), ("skip_D", skip_D, (D,))), (("state", state, (B, D, N)),),
        torch.float64 if wide else torch.float32)
    with without_autocast(x_BD.device):
        y, h = advance(x_BD, delta_BD, A_DN, input_BN, output_BN, skip_D, state)
    if not torch.is_grad_enabled() and 0 not in state.stride():  # entries that share memory cannot be written
        h = state.copy_(h)
    return y.to(x_BD.dtype), h
