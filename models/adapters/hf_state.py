"""What a transformers model remembers of each row between calls, with the manners of models.state.ModelState.

Rows live in groups; a group shares one transformers cache, and its rows were fed together. Rows that cannot share a
cache (other lengths where a model knows no pads, other numbers of further tokens) are different groups, so that
selecting, joining and branching are exact for every cache class. Letters: B rows, L columns of a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kernels.errors import StateError
from models.adapters import hf_cache
from models.state import distinct_bytes, row_index


@dataclass(frozen=True)
class Group:
    """Rows that share a cache. `rows` are their numbers in the state, in the order of the cache.

    cache    transformers' own object; None where the model is run afresh each time
    mask_BL  bool, which columns of the cache are real; None = all
    tokens   the text so far, kept only where the model is run afresh each time
    """

    rows: tuple[int, ...]
    count_B: torch.Tensor
    cache: Any = None
    mask_BL: torch.Tensor | None = None
    tokens: tuple[torch.Tensor, ...] | None = None

    def tensors(self) -> list[torch.Tensor]:
        """Everything held of the rows; single numbers in a cache are its class's settings."""
        masks = [] if self.mask_BL is None else [self.mask_BL]
        cached = [tensor for tensor in hf_cache.tensors(self.cache) if tensor.ndim]
        return [self.count_B, *masks, *cached, *(self.tokens or ())]

    def pick(self, places: Sequence[int], rows: Sequence[int]) -> Group:
        """The rows at these places of the group, under new numbers; memory of their own."""
        index = torch.as_tensor(places, device=self.count_B.device, dtype=torch.int64)
        return Group(tuple(rows), self.count_B[index],
                     None if self.cache is None else hf_cache.select(self.cache, index, len(self.rows)),
                     None if self.mask_BL is None else self.mask_BL[index],
                     None if self.tokens is None else tuple(self.tokens[place] for place in places))

    def clone(self) -> Group:
        """A copy that lives on its own."""
        return replace(self, count_B=self.count_B.clone(), cache=hf_cache.clone(self.cache),
                       mask_BL=None if self.mask_BL is None else self.mask_BL.clone())


class HFState:
    """The rows of a model in groups. A call uses the state up: clone() before branching.

    apart   never let rows share a cache
    """

    def __init__(self, groups: Sequence[Group], device: torch.device, dtype: torch.dtype, apart: bool = False):
        self.groups = tuple(groups) if apart else _merged(groups)
        self.device, self.dtype, self.apart, self.spent = device, dtype, apart, False

    def __repr__(self) -> str:
        return f"HFState({self.rows} rows in {len(self.groups)} groups{', spent' if self.spent else ''})"

    @property
    def rows(self) -> int:
        """B."""
        return sum(len(group.rows) for group in self.groups)

    @property
    def count_B(self) -> torch.Tensor:
        """int64 (B,): tokens of each row so far."""
        count_B = torch.zeros(self.rows, dtype=torch.int64, device=self.device)
        for group in self.groups:
            count_B[list(group.rows)] = group.count_B
        return count_B

    @property
    def nbytes(self) -> int:
        """Bytes of the distinct storages held: caches, masks of pads, counts."""
        return distinct_bytes(tensor for group in self.groups for tensor in group.tensors())

    def live_bytes(self, cost: Callable[[int], Any]) -> int:
        """Sum over rows of cost(count).state_bytes, `cost` being the model's."""
        return sum(cost(count).state_bytes for count in self.count_B.tolist())

    def spend(self) -> HFState:
        """Mark as used up by a call; StateError the second time."""
        self.check_fresh()
        self.spent = True
        return self

    def check_fresh(self) -> None:
        """StateError if a call has used this state up."""
        if self.spent:
            raise StateError("state already advanced; clone() before branching")

    def select(self, rows: Any) -> HFState:
        """Rows by any int64 index, repeats and drops allowed; the result owns its memory."""
        self.check_fresh()
        wanted = row_index(rows, self.rows, torch.device("cpu")).tolist()
        groups = []
        for group in self.groups:
            place = {row: k for k, row in enumerate(group.rows)}
            chosen = [(new, place[old]) for new, old in enumerate(wanted) if old in place]
            for part in ([pair] for pair in chosen) if self.apart else [chosen] if chosen else []:
                groups.append(group.pick([k for _, k in part], [new for new, _ in part]))
        return HFState(groups, self.device, self.dtype, self.apart)

    def clone(self) -> HFState:
        """A copy that lives on its own."""
        self.check_fresh()
        return HFState([group.clone() for group in self.groups], self.device, self.dtype, self.apart)

    def detach(self) -> HFState:
        """A copy without gradient history."""
        return self.clone()

    @staticmethod
    def cat(states: Sequence[HFState]) -> HFState:
        """Rows of several states of one model, in order."""
        if not states or len({(state.device, state.dtype) for state in states}) > 1:
            raise StateError(f"cat of {list(states)!r}: give at least one, all of one device and dtype")
        groups, start = [], 0
        for state in states:
            state.check_fresh()
            groups += [replace(group, rows=tuple(start + row for row in group.rows)) for group in state.clone().groups]
            start += state.rows
        return HFState(groups, states[0].device, states[0].dtype, states[0].apart)


def _merged(groups: Sequence[Group]) -> tuple[Group, ...]:
    """As few groups as the caches allow; what is remembered of a row stays the same."""
    if len(groups) < 2:
        return tuple(groups)
    alike: dict[Any, list[Group]] = {}
    for group in groups:
        alike.setdefault(None if group.cache is None else hf_cache.skeleton(group.cache), []).append(group)
    return tuple(_joined(each) if len(each) > 1 else each[0] for each in alike.values())


def _joined(groups: Sequence[Group]) -> Group:
    rows = tuple(row for group in groups for row in group.rows)
    count_B = torch.cat([group.count_B for group in groups])
    if groups[0].tokens is not None:
        return Group(rows, count_B, tokens=tuple(text for group in groups for text in group.tokens))
    cache = hf_cache.joined([group.cache for group in groups])
    L = next((group.mask_BL.shape[1] for group in groups if group.mask_BL is not None), None)
    if L is None:
        return Group(rows, count_B, cache)
    masks = [torch.ones(len(group.rows), L, dtype=torch.bool, device=count_B.device) if group.mask_BL is None
             else group.mask_BL for group in groups]
    return Group(rows, count_B, cache, torch.cat(masks))
