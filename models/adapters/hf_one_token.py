"""A memory of transformers' RWKV-4 for a step of one token, with the time axis that its layers forget.

Both of its layers mix an input (B, 1, D) with the one before it, which they take from the memory. For several tokens it
is put in its place; for one it is read as (B, D), which meets (B, 1, D) as (1, B, D): every row is mixed with every row,
and only a single row comes out right. Here the reading gets its axis. Nothing else of the family is touched, and whether
this is right of the release at hand is measured before it is used (models/adapters/hf_check.py).
Letters: B rows, D width, N layers.
"""

from __future__ import annotations

from typing import Any

import torch

FAMILIES = ("rwkv",)
INPUTS = 2          # the first entries of its memory: the last input of the channel mix, and of the time mix


class _WithAxis:
    """Tensor (B, D, N) that is read as (B, 1, D) of one layer, and written as (B, D)."""

    def __init__(self, held_BDN: torch.Tensor) -> None:
        self.held_BDN = held_BDN

    def __getitem__(self, place: Any) -> torch.Tensor:
        return self.held_BDN[place].unsqueeze(1)

    def __setitem__(self, place: Any, value: torch.Tensor) -> None:
        self.held_BDN[place] = value


def with_axis(memory: list[torch.Tensor]) -> list[Any]:
    """The memory as a step of one token is to be given it; it shares its tensors with `memory`."""
    return [_WithAxis(each) if number < INPUTS else each for number, each in enumerate(memory)]


def without_axis(memory: Any) -> Any:
    """What `with_axis` was made of; anything else as it is."""
    if not isinstance(memory, list):
        return memory
    return [each.held_BDN if isinstance(each, _WithAxis) else each for each in memory]
