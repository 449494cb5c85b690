"""Shared by the attention kernels' tests: outputs, states and gradients of a form, the disagreement of each."""

from collections.abc import Callable, Sequence
from contextlib import contextmanager

import pytest
import torch

from kernels.taylor import TaylorState, taylor

TOLERANCE = 2e-6


def errors(got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> list[float]:
    """max|a - b| / max|b| of each tensor (at least 0.1: some gradients are zero), NaN counting as infinite."""
    found = []
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape
        difference = (a.detach().double() - b.detach().double()).abs().nan_to_num(torch.inf)
        found.append(float(difference.max() / b.detach().double().abs().max().clamp(min=0.1)) if a.numel() else 0.0)
    return found


@contextmanager
def poisoned():
    """New memory is filled with NaN, so that what a kernel forgets to write is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def draw(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 97 * len(shape) + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def some_state(B: int, H: int, K: int, V: int, dtype: torch.dtype) -> TaylorState:
    """Sums over five tokens: arbitrary numbers would not keep the normaliser positive."""
    rows = [draw(B, 5, H, width, seed=40 + index, dtype=torch.float64) for index, width in enumerate((K, K, V))]
    _, state = taylor(*rows, backend="naive", return_state=True)
    return TaylorState(*(tensor.detach().to(dtype).requires_grad_() for tensor in state))


def results(call: Callable[[], tuple[torch.Tensor, TaylorState]], leaves: Sequence[torch.Tensor],
            real_BL: torch.Tensor, read_output: bool = True) -> list[torch.Tensor]:
    """[y at real tokens, last kv, last z, gradients of a weighted sum of them with respect to the leaves]."""
    y, state = call()
    outputs = [torch.where(real_BL[..., None, None], y, 0.0), *state]
    weighted = [(x * draw(*x.shape, seed=70, dtype=x.dtype).detach()).sum() for x in outputs[0 if read_output else 1:]]
    return outputs + list(torch.autograd.grad(sum(weighted), leaves, materialize_grads=True))


@pytest.fixture(params=[0, 1000], ids=["whole", "split"])
def cut(request, monkeypatch):
    """Both ways to sum a row: by one program a feature group, and by one a segment."""
    from kernels.taylor import triton_launch

    monkeypatch.setattr(triton_launch, "processors", lambda device: request.param)
    return request.param
