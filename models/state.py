"""State: what a mixer, or a whole model, remembers of each row between calls (contract 2).

Letters: B rows. Everything that differs by row is a tensor with the row first; nothing else is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from kernels.errors import StateError


def distinct_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the distinct storages behind `tensors`: a view keeps its whole storage alive and is counted so."""
    found = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        found[storage.data_ptr() if tensor.device.type != "meta" else id(storage)] = storage.nbytes()
    return sum(found.values())


class State:
    """Named tensors of one mixer, row first, and `count_B` (int64): the row's real tokens so far.

    `dtype` is that of the x it was made for, whatever its tensors hold. A call of `extend` or `step` uses the state
    up: clone() before branching, or StateError says so.
    """

    def __init__(self, kind: str, named: dict[str, torch.Tensor], count_B: torch.Tensor, dtype: torch.dtype):
        self.kind, self.dtype, self.count_B, self.spent = kind, dtype, count_B, False
        self._named = dict(named)
        for name, tensor in self._named.items():
            if tensor.shape[:1] != count_B.shape:
                raise StateError(f"{kind}: state tensor {name!r} has {tuple(tensor.shape)}, "
                                 f"expected {count_B.shape[0]} rows first")

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._named[name]

    def __contains__(self, name: str) -> bool:
        return name in self._named

    def __repr__(self) -> str:
        shapes = {name: tuple(tensor.shape) for name, tensor in self._named.items()}
        return f"State({self.kind}, {shapes}{', spent' if self.spent else ''})"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors, the count left out."""
        return tuple(self._named)

    @property
    def rows(self) -> int:
        """B."""
        return self.count_B.shape[0]

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.count_B.device

    @property
    def nbytes(self) -> int:
        """Bytes of the distinct storages held, the count included."""
        return distinct_bytes([*self._named.values(), self.count_B])

    def live_bytes(self, cost: Callable[[int], Any]) -> int:
        """Sum over rows of cost(count).state_bytes: what the rows need, whatever is allocated."""
        return sum(cost(count).state_bytes for count in self.count_B.tolist())

    def advanced(self, lengths_B: torch.Tensor, **named: torch.Tensor) -> State:
        """The state after lengths_B more tokens, with these tensors replaced. What `mix` returns."""
        unknown = named.keys() - self._named.keys()
        if unknown:
            raise StateError(f"{self.kind}: {sorted(unknown)} are not in init_state, which names {list(self._named)}")
        # under autocast a projection gives bfloat16: a tensor keeps the dtype that init_state gave it
        named = {name: tensor.to(self._named[name].dtype) for name, tensor in named.items()}
        return State(self.kind, self._named | named, self.count_B + lengths_B, self.dtype)

    def spend(self) -> State:
        """Mark as used up by a call; StateError the second time. The caller may still read the tensors."""
        self.check_fresh()
        self.spent = True
        return self

    def check_fresh(self) -> None:
        """StateError if a call has used this state up."""
        if self.spent:
            raise StateError(f"{self.kind}: state already advanced; clone() before branching")

    def _map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> State:
        self.check_fresh()
        return State(self.kind, {name: change(tensor) for name, tensor in self._named.items()},
                     change(self.count_B), self.dtype)

    def select(self, rows: Any) -> State:
        """Rows by any int64 index, repeats and drops allowed; the result owns its memory."""
        rows = row_index(rows, self.rows, self.device)
        return self._map(lambda tensor: tensor.index_select(0, rows))

    def clone(self) -> State:
        """A copy that lives on its own."""
        return self._map(torch.clone)

    def detach(self) -> State:
        """A copy without gradient history; steps of either leave the other alone."""
        return self._map(lambda tensor: tensor.detach().clone())

    def to(self, device: Any) -> State:
        """A copy on `device`."""
        return self._map(lambda tensor: tensor.to(device, copy=True))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor by name, `count_B` included, as safetensors takes them."""
        self.check_fresh()
        return {**self._named, "count_B": self.count_B}

    def with_tensors(self, tensors: dict[str, torch.Tensor]) -> State:
        """The state that `tensors()` of one of this kind described. Raises StateError for other names."""
        if tensors.keys() != {*self._named, "count_B"}:
            raise StateError(f"{self.kind}: got tensors {sorted(tensors)}, "
                             f"expected {sorted([*self._named, 'count_B'])}")
        return State(self.kind, {name: tensors[name] for name in self._named}, tensors["count_B"], self.dtype)

    @staticmethod
    def cat(states: Sequence[State]) -> State:
        """Rows of several states of one kind, in order. Caches of unequal capacity are filled up with zeros."""
        if not states:
            raise StateError("cat of no states: give at least one")
        first = states[0]
        for state in states:
            state.check_fresh()
            if (state.kind, state.names, state.dtype) != (first.kind, first.names, first.dtype):
                raise StateError(f"cat of {first!r} and {state!r}: kind, tensors and dtype must agree")
        named = {name: _cat([state[name] for state in states]) for name in first.names}
        return State(first.kind, named, torch.cat([state.count_B for state in states]), first.dtype)


def _cat(tensors: list[torch.Tensor]) -> torch.Tensor:
    shapes = [tensor.shape[1:] for tensor in tensors]
    if len(set(shapes)) > 1:
        if len({len(shape) for shape in shapes}) > 1:
            raise StateError(f"cat of tensors of shapes {[tuple(tensor.shape) for tensor in tensors]}")
        target = [max(sizes) for sizes in zip(*shapes)]
        padded = []
        for tensor in tensors:
            whole = tensor.new_zeros(tensor.shape[0], *target)
            whole[tuple(slice(size) for size in tensor.shape)] = tensor
            padded.append(whole)
        tensors = padded
    return torch.cat(tensors)


def row_index(rows: Any, B: int, device: torch.device) -> torch.Tensor:
    """int64 index of rows on `device`. Raises StateError for another kind or a row that does not exist."""
    index = torch.as_tensor(rows, device=device)
    if index.numel() == 0:
        index = index.to(torch.int64)
    if index.ndim != 1 or index.dtype not in (torch.int64, torch.int32):
        raise StateError(f"select: got {index.dtype} of shape {tuple(index.shape)}, expected a list of row numbers")
    if index.device.type == "cpu" and index.numel() and not 0 <= int(index.min()) <= int(index.max()) < B:
        raise StateError(f"select: got rows {index.tolist()}, expected numbers in 0..{B - 1}")
    return index.to(torch.int64)


class ModelState:
    """One State per layer, all at the same count; the same interface as State, with names like `3.kv`."""

    def __init__(self, layers: Sequence[State]):
        self.layers = tuple(layers)
        if not self.layers:
            raise StateError("a model state needs at least one layer")
        first = self.layers[0]
        for number, state in enumerate(self.layers):
            if state.rows != first.rows:
                raise StateError(f"layer {number} has {state.rows} rows, layer 0 has {first.rows}")
            if state.device.type != "meta" and not torch.equal(state.count_B, first.count_B):
                raise StateError(f"layer {number} has seen {state.count_B.tolist()} tokens, layer 0 "
                                 f"{first.count_B.tolist()}: layer states of different moments")

    @classmethod
    def _trusted(cls, layers: Sequence[State]) -> ModelState:
        """Without reading the counts back: for layers that one call of the model advanced together."""
        state = cls.__new__(cls)
        state.layers = tuple(layers)
        return state

    def __repr__(self) -> str:
        return f"ModelState({len(self.layers)} layers, {self.rows} rows{', spent' if self.spent else ''})"

    @property
    def count_B(self) -> torch.Tensor:
        """int64 (B,): real tokens of each row so far."""
        return self.layers[0].count_B

    @property
    def rows(self) -> int:
        """B."""
        return self.layers[0].rows

    @property
    def dtype(self) -> torch.dtype:
        """Of the x that the layers saw."""
        return self.layers[0].dtype

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.layers[0].device

    @property
    def spent(self) -> bool:
        """Whether a call has used this state up."""
        return any(state.spent for state in self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes of the distinct storages held by all layers."""
        return distinct_bytes(t for state in self.layers for t in (*state._named.values(), state.count_B))

    def live_bytes(self, cost: Callable[[int], Any]) -> int:
        """Sum over rows of cost(count).state_bytes, `cost` being the model's."""
        return sum(cost(count).state_bytes for count in self.count_B.tolist())

    def spend(self) -> ModelState:
        """Mark every layer as used up; StateError if one already is."""
        self.check_fresh()
        for state in self.layers:
            state.spend()
        return self

    def check_fresh(self) -> None:
        """StateError if a call has used this state up."""
        for state in self.layers:
            state.check_fresh()

    def select(self, rows: Any) -> ModelState:
        """Rows by any int64 index, repeats and drops allowed."""
        rows = row_index(rows, self.rows, self.device)
        return self._trusted([state.select(rows) for state in self.layers])

    def clone(self) -> ModelState:
        """A copy that lives on its own."""
        return self._trusted([state.clone() for state in self.layers])

    def detach(self) -> ModelState:
        """A copy without gradient history."""
        return self._trusted([state.detach() for state in self.layers])

    def to(self, device: Any) -> ModelState:
        """A copy on `device`."""
        return self._trusted([state.to(device) for state in self.layers])

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor by `<layer>.<name>`."""
        return {f"{number}.{name}": tensor for number, state in enumerate(self.layers)
                for name, tensor in state.tensors().items()}

    def with_tensors(self, tensors: dict[str, torch.Tensor]) -> ModelState:
        """The state that `tensors()` of this model described. Raises StateError for other names."""
        split: list[dict[str, torch.Tensor]] = [{} for _ in self.layers]
        for name, tensor in tensors.items():
            layer, _, inner = name.partition(".")
            if not layer.isdigit() or int(layer) >= len(split):
                raise StateError(f"got tensor {name!r}, expected <layer>.<name> with layer below {len(split)}")
            split[int(layer)][inner] = tensor
        return ModelState([state.with_tensors(found) for state, found in zip(self.layers, split)])

    @staticmethod
    def cat(states: Sequence[ModelState]) -> ModelState:
        """Rows of several states of one model, in order."""
        if len({len(state.layers) for state in states}) != 1:
            raise StateError(f"cat of states of {[len(state.layers) for state in states]} layers: one model's only")
        return ModelState._trusted([State.cat(layers) for layers in zip(*(state.layers for state in states))])
