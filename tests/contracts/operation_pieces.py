"""A batch of rows run in pieces, each row cut where it likes, by whatever an operation carries from piece to piece."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from tests.contracts.operation_inputs import SIZES, draw, size
from tests.contracts.operation_runs import Results, call, gradients, leaf, named
from tests.contracts.operations import Case


def carries(case: Case) -> list[str]:
    return [name for name in case.parameters if name == "state" or name.startswith("past_")]


def begins(case: Case) -> bool:
    """Whether a case can be cut: causal, and begun by nothing but a state (a past is this file's to keep)."""
    past = any(name.startswith("past_") for name in carries(case))
    given = {name for name in case.optional if name.startswith(("past_", "position"))}
    return case.causal and bool(carries(case)) and not given and not (past and "state" in case.optional)


def stripped(case: Case) -> Case:
    """Without tensors that a cut row cannot have from its start."""
    past = any(name.startswith("past_") for name in carries(case))
    out = [name for name in case.optional if name.startswith(("past_", "position")) or (past and name == "state")]
    return Case(case.operation, case.settings, tuple(n for n in case.optional if n not in out), case.shapes)


def in_pieces(case: Case, tensors: dict[str, Any], lengths: tuple[int, ...], cuts: list[tuple[int, ...]], backend: str,
              ) -> tuple[list[list[torch.Tensor]], Any]:
    """Outputs of each row, piece by piece, and the last state."""
    B = len(lengths)
    borders = [(0,) * B, *cuts, lengths]
    own = [n for n in tensors if n not in ("state", "lengths_B") and ("L" in case.letters(n) or ("M" in case.letters(n) and case.tied))]
    outputs, state = [[] for _ in range(B)], tensors.get("state")
    for index, (low, high) in enumerate(zip(borders, borders[1:])):
        counts = [b - a for a, b in zip(low, high)]
        piece = dict(tensors)
        for name in own:
            piece[name] = stack([tensors[name][b, low[b]:high[b]] for b in range(B)], max(counts))
        if "lengths_B" in case.parameters:
            piece["lengths_B"] = torch.tensor(counts)
        if "state" in case.parameters:
            piece["state"] = state
        if "prefix_B" in tensors and index:
            piece["prefix_B"] = torch.zeros_like(tensors["prefix_B"])
        piece |= pasts(case, tensors, low)
        y, state = call(case, piece, backend=backend)
        for b in range(B):
            outputs[b].append(y[b, :counts[b]])
    return outputs, state


def stack(rows: list[torch.Tensor], length: int) -> torch.Tensor:
    """Rows of unlike length; pads hold something."""
    return torch.stack([torch.cat((x, x.new_full((length - len(x), *x.shape[1:]), -0.5))) for x in rows])


def pasts(case: Case, tensors: dict[str, Any], done: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """The last tokens before each row's next one, newest last; zeros before its first."""
    found, P = {}, size(case, "P", 0, SIZES)
    for name in carries(case):
        if name == "past_B":
            found[name] = torch.tensor([min(n, P) for n in done])
        elif name.startswith("past_"):
            source = tensors[name.replace("past_BPD", "x_BLD")] if name == "past_BPD" else next(
                x for n, x in tensors.items() if n.startswith(name.removeprefix("past_") + "_"))
            found[name] = torch.stack([torch.cat((x.new_zeros(P, *x.shape[1:]), x[:n]))[n:] for x, n in zip(source, done)])
    return found


def pieces(case: Case, L: int, lengths: tuple[int, ...], cuts: list[tuple[int, ...]], backend: str,
           dtype: torch.dtype = torch.float64, sizes: dict[str, int] | None = None) -> Results:
    tensors = {n: tree_map(leaf, x) for n, x in draw(case, L, dtype, lengths=lengths, sizes=sizes).items()}
    outputs, state = in_pieces(case, tensors, lengths, cuts, backend)
    y = stack([torch.cat(row) for row in outputs], L)
    real = (torch.arange(L) < torch.tensor(lengths)[:, None]).view(len(lengths), L, *[1] * (y.dim() - 2))
    results = named(torch.where(real, y, 0), state if "state" in case.parameters else None)
    return {n: x.detach() for n, x in results.items()} | gradients(results, tensors)
