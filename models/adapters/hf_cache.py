"""A transformers cache as a tree of tensors: copied, cut to rows, joined and weighed without knowing its class.

transformers keeps what a model remembers in objects of many classes (layers of keys and values, windows, convolution
inputs, recurrent states, plain lists). They agree on one thing: every tensor with an axis has the batch row first. That
is all that is used here, and a cache of which it is not true is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernels.errors import StateError

Change = Callable[[torch.Tensor], torch.Tensor]


def changed(cache: Any, change: Change) -> Any:
    """A copy of the cache with every tensor replaced; a tensor that occurs twice is replaced once."""
    return _changed(cache, change, {})


def tensors(cache: Any) -> list[torch.Tensor]:
    """Every distinct tensor in the cache, always in the same order."""
    found: list[torch.Tensor] = []

    def take(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    changed(cache, take)
    return found


def clone(cache: Any) -> Any:
    """A copy that shares no memory."""
    return changed(cache, lambda tensor: tensor.detach().clone())


def compact(cache: Any) -> Any:
    """The same cache, every tensor in memory of its own size: a window cut from a long prompt keeps the prompt alive."""
    if all(_is_compact(tensor) for tensor in tensors(cache)):
        return cache
    return changed(cache, lambda tensor: tensor if _is_compact(tensor) else tensor.clone())


def select(cache: Any, index_R: torch.Tensor, rows: int) -> Any:
    """The rows index_R (int64) of a cache of `rows` rows, in memory of their own.

    Raises StateError for a tensor whose first axis is not the row.
    """
    for tensor in tensors(cache):
        if tensor.ndim and tensor.shape[0] != rows:
            raise StateError(f"{type(cache).__name__} holds a tensor of shape {tuple(tensor.shape)} where {rows} rows "
                             "were expected first; its rows cannot be told apart")
    return changed(cache, lambda tensor: tensor.index_select(0, index_R) if tensor.ndim else tensor.clone())


def joined(caches: Sequence[Any]) -> Any:
    """The rows of several caches of one skeleton in one."""
    parts = zip(*(tensors(cache) for cache in caches))

    def join(first: torch.Tensor) -> torch.Tensor:
        found = next(parts)
        return torch.cat(found) if first.ndim else first.clone()

    return changed(caches[0], join)


def columns(cache: Any) -> int:
    """Tokens that the cache holds side by side, pads included; 0 for a memory without a length axis."""
    length = getattr(cache, "get_seq_length", None)
    if length is None:
        return 0
    try:
        return int(length())
    except (ValueError, NotImplementedError):     # transformers' answer where no layer keeps keys and values
        return 0


def skeleton(value: Any) -> Any:
    """What two caches must share to be joined: classes, names, numbers, and shapes without the row."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape[1:])) if value.ndim else (value.dtype, value.item())
    if isinstance(value, dict):
        return tuple((key, skeleton(each)) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return (len(value), *map(skeleton, value))
    if _is_holder(value):
        return (type(value), skeleton(vars(value)))
    return value if isinstance(value, (int, float, str, bool, type(None), torch.dtype)) else type(value)


def _is_compact(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() <= tensor.numel() * tensor.element_size()


def _changed(value: Any, change: Change, seen: dict[int, Any]) -> Any:
    if id(value) in seen:
        return seen[id(value)]
    if isinstance(value, torch.Tensor):
        result = change(value)
    elif isinstance(value, dict):
        result = copy.copy(value)
        for key, each in value.items():
            result[key] = _changed(each, change, seen)
    elif isinstance(value, (list, tuple)):
        parts = [_changed(each, change, seen) for each in value]
        result = type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    elif _is_holder(value):
        result = copy.copy(value)
        for name, each in vars(value).items():
            vars(result)[name] = _changed(each, change, seen)
    else:
        return value
    seen[id(value)] = result
    return result


def _is_holder(value: Any) -> bool:
    """An object that may hold tensors: not a class, function, module or configuration."""
    return (hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)) and not callable(value)
            and not hasattr(value, "model_type"))
