"""Drawing parameters: from a given generator alone, the same numbers on every device and in every dtype."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

DRAWN = {"dtype": torch.float32, "device": "cpu"}  # of what is drawn, whatever torch's defaults are


def draw_normal(tensor: torch.Tensor, std: float, generator: torch.Generator) -> None:
    """Fill with N(0, std^2). On the meta device nothing is drawn."""
    _fill(tensor, lambda shape: torch.randn(shape, generator=generator, **DRAWN) * std)


def draw_uniform(tensor: torch.Tensor, bound: float, generator: torch.Generator) -> None:
    """Fill with U(-bound, bound). On the meta device nothing is drawn."""
    _fill(tensor, lambda shape: (torch.rand(shape, generator=generator, **DRAWN) * 2 - 1) * bound)


def _fill(tensor: torch.Tensor, draw) -> None:
    if tensor.device.type != "meta":
        with torch.no_grad():
            tensor.copy_(draw(tensor.shape))


def seeded(*parts: int | str) -> torch.Generator:
    """A CPU generator whose seed is a hash of `parts`, such as (model seed, layer)."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


class Linear(nn.Linear):
    """nn.Linear that does not draw when built (its owner does), so that building touches no global generator."""

    def reset_parameters(self) -> None:
        """Left to the owner's reset_parameters(generator)."""
