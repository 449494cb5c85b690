"""Rotary position encoding, half-split: channel i turns with channel i + R/2 by the angle position * base^(-2i/R)."""

from __future__ import annotations

import torch

from kernels.gradients import once_differentiable


class _Rotate(torch.autograd.Function):
    """A rotation; its gradient is the rotation back."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        return _rotated(g, cos, -sin), None, None


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = cos.shape[-1]
    first, second = x[..., :half], x[..., half : 2 * half]
    out = torch.empty_like(x)
    torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out[..., half : 2 * half]).addcmul_(first, sin)
    out[..., 2 * half :] = x[..., 2 * half :]
    return out


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x (..., K) with its first 2·R/2 channels turned; cos and sin (..., R/2) broadcast over the leading axes."""
    return x if cos.shape[-1] == 0 else _Rotate.apply(x, cos, sin)
