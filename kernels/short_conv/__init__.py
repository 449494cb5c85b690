"""Causal depthwise convolution over the last K tokens of a document: y_i = sum_o weight[:, K-1-o] x_(i-o)."""

from __future__ import annotations

import torch

from kernels.adapters import mamba
from kernels.backends import choose_backend
from kernels.checks import check_shape
from kernels.errors import LayoutError
from kernels.short_conv.chunked import short_conv_chunked
from kernels.short_conv.naive import short_conv_naive

__all__ = ["short_conv", "short_conv_step"]


def short_conv(
    x_BLD: torch.Tensor, weight_DK: torch.Tensor, *, bias_D: torch.Tensor | None = None,
    past_BPD: torch.Tensor | None = None, position_BL: torch.Tensor | None = None, backend: str = "auto",
) -> torch.Tensor:
    """y_BLD of rows whose real tokens come first.

    Args:
        weight_DK: the last column multiplies the current token (torch's Conv1d order).
        past_BPD: the last K-1 inputs of real tokens before slot 0, newest last, zeros before the document.
        position_BL: tokens of the same document before each slot; tap o counts iff position >= o. None: one
            document a row. Not together with `past_BPD`.
        backend: "auto" | "naive" | "chunked" | "causal_conv1d" (the package of that name, on a GPU).
    Raises:
        LayoutError: shapes that do not belong together. UnsupportedUse: a backend that cannot run.
    """
    if x_BLD.dim() != 3 or weight_DK.dim() != 2 or weight_DK.shape[0] != x_BLD.shape[-1]:
        raise LayoutError(
            f"expected x (B, L, D) and weight (D, K); got {tuple(x_BLD.shape)} and {tuple(weight_DK.shape)}")
    if past_BPD is not None and position_BL is not None:
        raise LayoutError("past_BPD and position_BL exclude each other: a streamed row holds one document")
    if past_BPD is not None and past_BPD.shape[1] != weight_DK.shape[1] - 1:
        raise LayoutError(f"past_BPD: got {past_BPD.shape[1]} tokens, expected K - 1 = {weight_DK.shape[1] - 1}")
    (B, L, D), K = x_BLD.shape, weight_DK.shape[1]
    check_shape("past_BPD", past_BPD, (B, K - 1, D))
    check_shape("bias_D", bias_D, (D,))
    check_shape("position_BL", position_BL, (B, L))
    backend = choose_backend(
        "short_conv", backend, x_BLD.device, fast={"causal_conv1d": mamba.conv_reason(x_BLD, weight_DK)})
    if x_BLD.numel() == 0:
        return torch.zeros_like(x_BLD)
    form = {"naive": short_conv_naive, "causal_conv1d": mamba.short_conv}.get(backend, short_conv_chunked)
    return form(x_BLD, weight_DK, bias_D=bias_D, past_BPD=past_BPD, position_BL=position_BL)


def short_conv_step(
    x_BD: torch.Tensor, weight_DK: torch.Tensor, past_BPD: torch.Tensor, *, bias_D: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token: (y_BD, the last K-1 inputs afterwards), in a tensor of its own."""
    inputs = torch.cat((past_BPD, x_BD[:, None]), 1)
    y = (inputs * weight_DK.T).sum(1)
    return (y if bias_D is None else y + bias_D), inputs[:, 1:].clone()
