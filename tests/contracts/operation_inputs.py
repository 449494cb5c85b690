"""Inputs of an operation's case: every tensor drawn from its name and shape letters, and rows taken out of a batch."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tests.contracts.operations import WINDOW, Case

B = 3
SIZES = {"B": B, "H": 2, "K": 3, "V": 5, "D": 6, "N": 4, "R": 3, "F": 6, "M": 4, "1": 1}
OTHER = 5  # of a letter that is not among them
STATE_TOKENS = (2 * WINDOW, WINDOW, 0)  # read before, row by row, by a state that is given
BOUNDED = ("log_decay", "decay", "beta", "delta", "A")  # values that a method keeps in a range
Tensors = dict[str, Any]


def size(case: Case, letter: str, L: int, sizes: dict[str, int]) -> int:
    if letter == "L" or (letter == "M" and case.tied):
        return L
    if letter == "T":
        return 2 * case["window"] - 1
    if letter == "P":
        return case["window"] + 1 if case["window"] else sizes["K"] - 1
    return sizes.get(letter, OTHER)


def values(case: Case, name: str, shape: list[int], generator: torch.Generator) -> torch.Tensor:
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    stem = name.rpartition("_")[0] or name
    if name.startswith("log_decay"):
        return -0.3 * torch.nn.functional.softplus(x)
    if stem == "decay":
        return 0.7 + 0.3 * x.sigmoid()
    if stem == "beta":
        return x.sigmoid()
    if stem == "delta":
        return torch.nn.functional.softplus(x)
    if stem == "A":
        return -x.exp()
    if stem == "k" and "beta_BLH" in case.parameters:
        return torch.nn.functional.normalize(x, dim=-1)
    if name.endswith("F") and case["floor"] is None:  # features of a map that is never negative
        return x.abs() + 0.05
    return x


def integers(case: Case, name: str, L: int, sizes: dict[str, int], lengths: tuple[int, ...]) -> torch.Tensor | None:
    """Counts of tokens and positions; None for what is drawn from real numbers."""
    rows, M = sizes["B"], size(case, "M", L, sizes)
    if name == "lengths_B":
        return torch.tensor(((M, max(M - 1, 0), 0) if case.counts["L"] is None else lengths)[:rows], dtype=torch.int64)
    if name == "context_B":
        return torch.tensor([M, max(M - 1, 0), 0][:rows], dtype=torch.int64)
    if name == "prefix_B":
        real = lengths if "lengths_B" in case.optional else (L,) * rows
        return torch.tensor([min(m, n, M) for m, n in zip((M, 1, 0)[:rows], real)], dtype=torch.int64)
    if name == "past_B":
        return torch.tensor([min(n, case["window"] + 1) for n in STATE_TOKENS][:rows], dtype=torch.int64)
    if name == "position_BL":
        return torch.arange(L) % torch.tensor([7, 2, L + 1])[:rows, None]
    return None


def draw(case: Case, L: int, dtype: torch.dtype = torch.float64, *, seed: int = 0, lengths: tuple[int, ...] | None = None,
         sizes: dict[str, int] | None = None) -> Tensors:
    """The tensors of a case by name. Rows of `lengths` real tokens where the case counts them."""
    sizes = {**SIZES, **(sizes or {})}
    lengths = (L, max(L - 3, 0), 0) if lengths is None else lengths
    found: Tensors = {}
    for index, name in enumerate(case.tensors):
        generator = torch.Generator().manual_seed(1000 * seed + 31 * index + L)
        if name == "state":
            found[name] = some_state(case, dtype, tuple(sorted(sizes.items())), seed)
            continue
        counted = integers(case, name, L, sizes, lengths)
        shape = [size(case, letter, L, sizes) for letter in case.letters(name)]
        found[name] = values(case, name, shape, generator).to(dtype) if counted is None else counted
    return found


def some_state(case: Case, dtype: torch.dtype, sizes: tuple[tuple[str, int], ...], seed: int) -> Any:
    """What naive leaves behind after rows of STATE_TOKENS tokens, in the type that belongs to inputs of `dtype`."""
    keep = torch.float64 if dtype == torch.float64 else torch.float32
    return tree_map(lambda x: x.to(keep, copy=True) if x.is_floating_point() else x.clone(), _state(case, sizes, seed))


@cache
def _state(case: Case, sizes: tuple[tuple[str, int], ...], seed: int) -> Any:
    reader = Case(case.operation, case.settings, ("lengths_B",) if "lengths_B" in case.parameters else (), case.shapes)
    tokens = draw(reader, max(STATE_TOKENS), seed=seed + 1, lengths=STATE_TOKENS, sizes=dict(sizes))
    with torch.no_grad():
        return case.function(**tokens, **dict(case.settings), backend="naive", return_state=True)[1]


def real(case: Case, tensors: Tensors, axis: str) -> torch.Tensor | None:
    """Real tokens of each row along L or M, None where the case does not count them."""
    return tensors.get(case.counts[axis] or "")


def along(letters: str) -> str | None:
    return next((axis for axis in "LM" if axis in letters), None)


def row(case: Case, tensors: Tensors, b: int) -> Tensors:
    """Row b by itself, without its pads and without counts."""
    found: Tensors = {}
    for name, x in tensors.items():
        letters = case.letters(name)
        if name in ("lengths_B", "context_B"):
            continue
        if name == "state":
            found[name] = tree_map(lambda part: part[b:b + 1], x)
            continue
        axis = along(letters)
        counted = real(case, tensors, axis) if axis else None
        x = x[b:b + 1] if letters.startswith("B") else x
        found[name] = x if counted is None or axis not in letters else x[:, :int(counted[b])]
    return found


def fill_pads(case: Case, tensors: Tensors, value: float) -> Tensors:
    """The same rows with `value` in every pad."""
    found = dict(tensors)
    for name, x in tensors.items():
        axis = along(case.letters(name)) if name != "state" else None
        counted = real(case, tensors, axis) if axis else None
        if counted is not None and x.is_floating_point():
            found[name] = torch.where(is_real(x, counted), x, value)
    return found


def is_real(x: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """Which tokens of a tensor (B, tokens, ...) are real, with trailing axes to broadcast over."""
    real_BL = torch.arange(x.shape[1]) < counted[:, None]
    return real_BL[(..., *[None] * (x.dim() - 2))]
