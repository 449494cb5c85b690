"""States of a transformers model joined although their caches hold unequal numbers of columns.

Rows that were begun at different times hold keys and values of different length, and a batch of them would fall into
groups that run one after the other. Here the shorter caches get masked columns before their first token, which is what
a left-padded prefill gives too; so it is done only where `hf_check` measured left-padded prefills on these very weights
(`ways.left`), and only for layers that are plain keys and values by column. Other layers must agree as they are. What
cannot be joined stays apart, as `HFState.cat` leaves it. Columns that no row needs any more are cut off meanwhile.

Letters: R rows, H heads, L columns, K width of a head.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from models.adapters import hf_cache
from models.adapters.hf_state import Group, HFState

SLACK, SPARE = 32, 8      # columns that no row needs: as many are carried along, or this part of all


def joined(model: Any, states: Sequence[HFState]) -> HFState:
    """Rows of several states of `model`, in order, in as few groups as can be. The states must not be used again."""
    if not model.ways.left:
        return HFState.cat(states)
    groups, start = [], 0
    for state in states:
        state.check_fresh()
        groups += [replace(group, rows=tuple(start + row for row in group.rows)) for group in state.groups]
        start += state.rows
    if len(groups) > 1 and _level_kind(groups) is not None:
        groups = [_levelled(groups)]
    elif len(groups) > 1:
        return HFState.cat(states)
    for state in states:
        state.spend()
    return HFState(groups, states[0].device, states[0].dtype, states[0].apart)


def replaced(model: Any, state: HFState, places: Sequence[int], other: HFState) -> HFState | None:
    """`state`, the rows of `other` written over its rows `places`, in its own memory; None, and nothing done, where they
    cannot be, or where so many columns are of no row any more that joining anew, which cuts them off, is better.

    Neither state must be used again.
    """
    from transformers.cache_utils import DynamicLayer

    if not model.ways.left or len(state.groups) != 1 or len(other.groups) != 1:
        return None
    (mine,), (new,) = state.groups, other.groups
    if _level_kind([mine, new]) is None or list(mine.rows) != sorted(mine.rows) or list(new.rows) != sorted(new.rows):
        return None
    L, width = hf_cache.columns(mine.cache), hf_cache.columns(new.cache)
    index_R = torch.tensor(places, device=state.device)
    count_B = mine.count_B.index_copy(0, index_R, new.count_B)
    needed = int(count_B.max())
    if width > L or needed > L or L - needed > max(SLACK, L // SPARE):
        return None
    for layer, others in zip(mine.cache.layers, new.cache.layers):
        if type(layer) is DynamicLayer:
            layer.keys[index_R, :, L - width:] = others.keys
            layer.values[index_R, :, L - width:] = others.values
        else:
            for tensor, given in zip(hf_cache.tensors(layer), hf_cache.tensors(others)):
                if tensor.ndim:
                    tensor[index_R] = given
    real_BL = torch.arange(L, device=state.device) >= L - count_B[:, None]
    for each in (state, other):
        each.spend()
    return HFState([replace(mine, count_B=count_B, mask_BL=real_BL)], state.device, state.dtype, state.apart)


def _level_kind(groups: Sequence[Group]) -> Any:
    """What all groups share if they can be joined, else None."""
    from transformers.cache_utils import DynamicLayer

    kinds = set()
    for group in groups:
        layers = getattr(group.cache, "layers", None)
        if not isinstance(layers, list) or not hf_cache.columns(group.cache):
            return None
        rest = {name: value for name, value in vars(group.cache).items() if name != "layers"}
        shape = tuple((DynamicLayer, layer.keys.shape[1], layer.keys.shape[3]) if type(layer) is DynamicLayer
                      else hf_cache.skeleton(layer) for layer in layers)
        kinds.add((type(group.cache), hf_cache.skeleton(rest), shape))
    return kinds.pop() if len(kinds) == 1 else None


def _levelled(groups: Sequence[Group]) -> Group:
    """One group of all rows; as many columns as its longest row has tokens, each row's own at the end."""
    from transformers.cache_utils import DynamicLayer

    count_B = torch.cat([group.count_B for group in groups])
    counts = count_B.tolist()
    L = max(counts)
    cache = copy.copy(groups[0].cache)
    cache.layers = []
    for layers in zip(*(group.cache.layers for group in groups)):
        if type(layers[0]) is DynamicLayer:
            layer = copy.copy(layers[0])
            layer.keys = _columns([each.keys for each in layers], L)
            layer.values = _columns([each.values for each in layers], L)
        else:
            layer = hf_cache.joined(layers)
        cache.layers.append(layer)
    real_BL = torch.arange(L, device=count_B.device) >= L - count_B[:, None]
    return Group(tuple(row for group in groups for row in group.rows), count_B, cache,
                 None if min(counts) == L else real_BL)


def _columns(parts: Sequence[torch.Tensor], L: int) -> torch.Tensor:
    """(R, H, L, K): the last L columns of each part, zeros before a part that has fewer."""
    rows = sum(part.shape[0] for part in parts)
    whole = parts[0].new_zeros(rows, parts[0].shape[1], L, parts[0].shape[3])
    start = 0
    for part in parts:
        kept = min(L, part.shape[2])
        whole[start:start + part.shape[0], :, L - kept:] = part[:, :, part.shape[2] - kept:]
        start += part.shape[0]
    return whole
