"""Shared by the operations' tests: one measure of disagreement, and outputs with all gradients of a call."""

from collections.abc import Callable, Sequence

import torch

LENGTHS = (1, 63, 100, 257)
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 3e-2}


def error(got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """max|a - b| / max|b| over everything at once."""
    a, b = (torch.cat([t.detach().double().flatten() for t in tensors]) for tensors in (got, expected))
    assert a.shape == b.shape and not a.isnan().any()
    return float((a - b).abs().max() / b.abs().max())


def with_gradients(call: Callable[[], Sequence[torch.Tensor]], leaves: Sequence[torch.Tensor],
                   weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of `call` and the gradients of their weighted sum with respect to the leaves."""
    outputs = list(call())
    total = sum((output * weight).sum() for output, weight in zip(outputs, weights, strict=True))
    return outputs + list(torch.autograd.grad(total, list(leaves)))


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0, gradient: bool = True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 97 * len(shape) + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(gradient)
