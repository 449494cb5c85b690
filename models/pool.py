"""Rows that generate together: as one ends, the next prompt takes its place, so that the batch stays full.

Prompts wait in one queue, longest first. Whenever one place in eight is free the next prompts are read into them,
those of similar length in one call, and then step with the rest; a prompt that must be read afresh before each token
(strategy `iterate`) keeps its place the same way. No row's text depends on who else is in the pool: every row carries
its own count, pads are exact, and nothing is shared (contract 2). Letters: B rows, L slots, E vocabulary rows.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kernels.layout import Layout
from models.state import ModelState

FOREIGN = "models.adapters.hf_level"    # how other states are joined; by name, so that our models do not depend on it
FREE_SHARE = 8       # new prompts are read when one place in this many is free
SPARE = 4            # a call's shortest row is at most a quarter shorter than its longest,
SLACK = 16           # or by this many tokens


@dataclass
class Row:
    """A prompt and what came of it. `muted`: its first tokens that prefix layers do not read; limit: M, None = all."""

    number: int
    tokens: list[int]
    limit: int | None
    keep_out: int
    muted: int = 0
    new: list[int] = field(default_factory=list)
    ended: bool = False
    idle: int = 0        # steps since it ended

    @property
    def prefix(self) -> int:
        """m of the tokens so far: all but keep_out of them, at most M."""
        free = max(0, len(self.tokens) - self.keep_out)
        return free if self.limit is None else min(self.limit, free)


class Pool:
    """At most `places` rows at a time; `run` gives each row as it ends.

    A row that has ended keeps stepping, unread, until another is written into its place or a few can go at once: what
    a state holds is moved as seldom as possible.
    """

    def __init__(self, model: Any, rows: Sequence[Row], places: int, maximum_new: int, stops: Callable[[int], bool],
                 iterate: bool):
        self.model, self.places, self.maximum_new, self.stops = model, places, maximum_new, stops
        self.iterate, self.device = iterate and model.able.prefix, model.embedding.weight.device
        self.queue = deque(sorted(rows, key=lambda row: (row.muted > 0, -len(row.tokens), row.number)))
        self.waiting: list[Row] = []           # to be read, afresh or for the first time
        self.stepping: list[Row] = []          # in the order of the rows of `state` and of `last_B`, ended ones among them
        self.state: Any = None
        self.last_B: torch.Tensor | None = None

    def run(self) -> Iterator[Row]:
        """Every row, as it ends."""
        while self.queue or self.waiting or self.stepping:
            self._admit()
            read = [self._read(rows) for rows in calls(self.waiting)]
            self.waiting = []
            if self.stepping:
                yield from self._step()
            for rows, logits_BE, state in read:
                yield from self._begin(rows, logits_BE, state)
            self._thin()

    # ---------------------------------------------------------------------------------------------------------- in
    def _admit(self) -> None:
        """Take prompts from the queue when enough places are free."""
        free = self.places - sum(not row.ended for row in self.stepping) - len(self.waiting)
        if free >= min(max(1, self.places // FREE_SHARE), len(self.queue)):
            self.waiting += [self.queue.popleft() for _ in range(min(free, len(self.queue)))]

    def _read(self, rows: list[Row]) -> tuple[list[Row], torch.Tensor, Any]:
        """(rows, logits_BE, state) of a prefill."""
        lengths = [len(row.tokens) for row in rows]
        L = max(lengths)
        ids_BL = torch.tensor([row.tokens + [0] * (L - n) for row, n in zip(rows, lengths)], device=self.device)
        layout = Layout.right_padded(lengths, L).with_prefix([row.prefix for row in rows])
        if rows[0].muted:
            layout = layout.with_muted(torch.arange(L)[None] < torch.tensor([row.muted for row in rows])[:, None])
        return rows, *self.model.prefill(ids_BL, layout.to(self.device))

    def _begin(self, rows: list[Row], logits_BE: torch.Tensor, state: Any) -> Iterator[Row]:
        """First tokens of rows that were read; those that can step from here on get a place."""
        # a prefix that is closed stays as it is, so that stepping equals reading afresh
        closed = [not self.iterate or row.prefix == row.limit for row in rows]
        best_B = self._best(logits_BE)
        yield from self._take(rows, best_B.tolist())
        keep = [k for k, row in enumerate(rows) if closed[k] and not row.ended]
        self.waiting += [row for k, row in enumerate(rows) if not closed[k] and not row.ended]
        if keep:
            whole = len(keep) == len(rows)
            self._place([rows[k] for k in keep], best_B if whole else best_B[keep], state if whole else state.select(keep))

    def _place(self, rows: list[Row], last_B: torch.Tensor, state: Any) -> None:
        """Give rows the places of ended ones, or append them."""
        if self.stepping:
            free = [k for k, row in enumerate(self.stepping) if row.ended][:len(rows)]
            changed = self._replaced(free, state) if len(free) == len(rows) else None
            if changed is not None:
                self.state = changed
                for k, row in zip(free, rows):
                    self.stepping[k] = row
                self.last_B[free] = last_B
                return
            self._drop()
        if not self.stepping:
            self.stepping, self.last_B, self.state = rows, last_B, state
            return
        self.stepping = self.stepping + rows
        self.last_B = torch.cat([self.last_B, last_B])
        both = [self.state, state]
        self.state = ModelState.cat(both) if isinstance(state, ModelState) else _foreign().joined(self.model, both)

    def _replaced(self, places: Sequence[int], state: Any) -> Any:
        """The pool's state with these rows written over, or None where that cannot be."""
        if isinstance(state, ModelState):
            return replaced(self.state, places, state)
        return _foreign().replaced(self.model, self.state, places, state)

    # ---------------------------------------------------------------------------------------------------------- on
    def _step(self) -> Iterator[Row]:
        logits_BE, self.state = self.model.step(self.last_B, self.state)
        self.last_B = self._best(logits_BE)
        yield from self._take(self.stepping, self.last_B.tolist())

    def _take(self, rows: Sequence[Row], tokens: Sequence[int]) -> Iterator[Row]:
        """Give each row its next token; the rows that end with it."""
        for row, token in zip(rows, tokens):
            if row.ended:
                row.idle += 1
                continue
            stopped = self.stops(token)
            if not stopped:
                row.new.append(token)
                row.tokens.append(token)
            if stopped or len(row.new) == self.maximum_new:
                row.ended = True
                yield row

    def _best(self, logits_BE: torch.Tensor) -> torch.Tensor:
        return logits_BE[:, :self.model.config.vocabulary].argmax(-1)

    # --------------------------------------------------------------------------------------------------------- out
    def _thin(self) -> None:
        """Let ended rows go: when nobody waits for their places and they are many, or before one leaves the model's
        last position."""
        ended = [row for row in self.stepping if row.ended]
        limit = self.model.able.max_length
        many = not self.queue and len(ended) * FREE_SHARE >= len(self.stepping)
        if ended and (many or limit is not None and max(row.idle + len(row.tokens) for row in ended) >= limit):
            self._drop()

    def _drop(self) -> None:
        keep = [k for k, row in enumerate(self.stepping) if not row.ended]
        if len(keep) < len(self.stepping):
            self.stepping = [self.stepping[k] for k in keep]
            self.last_B = self.last_B[keep] if keep else None
            self.state = self.state.select(keep) if keep else None


def _foreign() -> Any:
    return importlib.import_module(FOREIGN)


def replaced(state: ModelState, places: Sequence[int], other: ModelState) -> ModelState | None:
    """`state`, the rows of `other` written over its rows `places`, in its own memory; None, and nothing done, where its
    tensors have no room for them. A shorter cache is filled up with zeros, as `State.cat` does."""
    own, new = state.tensors(), other.tensors()
    if own.keys() != new.keys():
        return None
    for name, tensor in new.items():
        mine = own[name]
        if mine.dtype != tensor.dtype or mine.ndim != tensor.ndim or not mine.is_contiguous():
            return None
        if any(have < want for have, want in zip(mine.shape[1:], tensor.shape[1:])):
            return None
    index = torch.tensor(places, device=state.device)
    for name, tensor in new.items():
        if own[name].shape[1:] != tensor.shape[1:]:
            own[name][index] = 0
        own[name][(index, *(slice(size) for size in tensor.shape[1:]))] = tensor
    return state


def calls(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Rows that are read together: of similar length, so that few slots are pads; muted rows only with rows of their
    own length (contract 1: the released mask knows no pads)."""
    group: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.muted > 0, -len(row.tokens))):
        if group and not _together(group[0], row):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _together(first: Row, row: Row) -> bool:
    longest, n = len(first.tokens), len(row.tokens)
    if first.muted or row.muted:
        return bool(first.muted and row.muted) and longest == n
    return longest - n <= max(SLACK, longest // SPARE)
