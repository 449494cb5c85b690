"""Greedy generation in batches whose make-up changes nothing in the text (contract 2 and 3).

Letters: B rows. Prompts of unequal length share a batch; each row carries its own count, and finished rows leave it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Literal

import torch

from kernels.errors import ConfigError, LayoutError, LengthError
from kernels.layout import Layout
from models.language_model import LanguageModel
from models.state import ModelState

Strategy = Literal["left_pad", "left_pad_released", "iterate"]
STRATEGIES: tuple[Strategy, ...] = ("left_pad", "left_pad_released", "iterate")
Stop = Callable[[int], bool] | frozenset[int] | set[int] | None


@torch.no_grad()
def greedy(model: LanguageModel, prompts: Sequence[Sequence[int]], *, prefix: int | Sequence[int | None] | None = None,
           maximum_new: int, stop: Stop = None, batch_rows: int = 32, strategy: Strategy = "left_pad",
           keep_out: int | Sequence[int] = 0, pad: int = 220, dtype: torch.dtype | None = None) -> list[list[int]]:
    """The likeliest token again and again, for each prompt; the stopping token is not returned.

    prefix: M of prefix models, one number or one per prompt; None = the config's prefix_tokens (whole prompt if None).
    keep_out: last prompt tokens that are read as suffix, one number or one per prompt.
    dtype: run in a copy of the model of that dtype.
    strategy: `left_pad` sets the prefix to the bare prompt, m = min(M, n); `iterate` encodes everything afresh before
    each token while n < M; `left_pad_released` puts real tokens `pad` (220, a space in GPT-2) before short prompts
    and mutes them in the prefix layers only, as the released JRT code does. A model that reads no prefix answers the
    bare prompt under every strategy.
    Raises ConfigError, LayoutError (an empty prompt), LengthError (more than the model can place).
    """
    if strategy not in STRATEGIES:
        raise ConfigError(f"strategy: got {strategy!r}, expected one of {', '.join(STRATEGIES)}")
    if batch_rows < 1 or maximum_new < 0:
        raise ConfigError(f"got batch_rows {batch_rows} and maximum_new {maximum_new}, expected at least 1 and 0")
    if dtype is not None and dtype != next(model.parameters()).dtype:
        model = copy.deepcopy(model).to(dtype)
    limits = _per_prompt("prefix", model.config.prefix_tokens if prefix is None else prefix, prompts)
    kept_out = _per_prompt("keep_out", keep_out, prompts)
    if strategy == "left_pad_released" and model.able.prefix:
        prompts, limits, muted = _pad_released(prompts, limits, pad)
    else:
        muted = [0] * len(prompts)
    _check(model, prompts, maximum_new)
    training = model.training
    model.eval()
    try:
        out: list[list[int]] = [[] for _ in prompts]
        for rows in _batches(prompts, muted, batch_rows):
            batch = _Batch(model, [list(prompts[r]) for r in rows], [limits[r] for r in rows],
                           [muted[r] for r in rows], [kept_out[r] for r in rows], strategy == "iterate")
            for row, text in zip(rows, batch.run(maximum_new, _stopper(stop))):
                out[row] = text
        return out
    finally:
        model.train(training)


class _Batch:
    """Prompts that run together. Row numbers are positions in `tokens`; `stepping` lists who holds a state row."""

    def __init__(self, model: LanguageModel, tokens: list[list[int]], limits: list[int | None], muted: list[int],
                 keep_out: list[int], iterate: bool):
        self.model, self.tokens, self.limits, self.muted = model, tokens, limits, muted
        self.keep_out, self.device = keep_out, model.embedding.weight.device
        self.stepping: list[int] = []
        self.state: ModelState | None = None
        self.iterate = iterate and model.able.prefix

    def run(self, maximum_new: int, stops: Callable[[int], bool]) -> list[list[int]]:
        """New tokens of each row."""
        new: list[list[int]] = [[] for _ in self.tokens]
        waiting = list(range(len(self.tokens))) if maximum_new else []     # rows to encode afresh
        last: dict[int, int] = {}
        while waiting or self.stepping:
            chosen = self._step(last) if self.stepping else {}
            if waiting:
                chosen |= self._encode(waiting)
            last, finished = {}, set()
            for row, token in chosen.items():
                if stops(token):
                    finished.add(row)
                    continue
                new[row].append(token)
                self.tokens[row].append(token)
                last[row] = token
                if len(new[row]) == maximum_new:
                    finished.add(row)
            waiting = [row for row in chosen if row not in self.stepping and row not in finished]
            self._drop(finished)
        return new

    def _step(self, last: dict[int, int]) -> dict[int, int]:
        ids_B = torch.tensor([last[row] for row in self.stepping], device=self.device)
        logits_BE, self.state = self.model.step(ids_B, self.state)
        return dict(zip(self.stepping, self._best(logits_BE)))

    def _encode(self, rows: list[int]) -> dict[int, int]:
        """Prefill rows; keep the states of those that can step from here on."""
        lengths = [len(self.tokens[row]) for row in rows]
        L = max(lengths)
        ids_BL = torch.tensor([self.tokens[row] + [0] * (L - n) for row, n in zip(rows, lengths)], device=self.device)
        layout = Layout.right_padded(lengths, L).with_prefix([self._prefix(row) for row in rows])
        if self.muted[rows[0]]:
            layout = layout.with_muted(torch.arange(L)[None] < torch.tensor([self.muted[r] for r in rows])[:, None])
        logits_BE, state = self.model.prefill(ids_BL, layout.to(self.device))
        keep = [i for i, row in enumerate(rows) if not self.iterate or self._closed(row)]
        if keep:
            state = state if len(keep) == len(rows) else state.select(keep)
            self.state = state if self.state is None else ModelState.cat([self.state, state])
            self.stepping += [rows[i] for i in keep]
        return dict(zip(rows, self._best(logits_BE)))

    def _prefix(self, row: int) -> int:
        """m of the row's tokens so far: all but keep_out of them, at most M."""
        free, limit = max(0, len(self.tokens[row]) - self.keep_out[row]), self.limits[row]
        return free if limit is None else min(limit, free)

    def _closed(self, row: int) -> bool:
        """Whether more tokens would no longer change the row's prefix, so that stepping equals encoding afresh."""
        return self._prefix(row) == self.limits[row]

    def _best(self, logits_BE: torch.Tensor) -> list[int]:
        return logits_BE[:, :self.model.config.vocabulary].argmax(-1).tolist()

    def _drop(self, finished: set[int]) -> None:
        keep = [i for i, row in enumerate(self.stepping) if row not in finished]
        if len(keep) < len(self.stepping):
            self.stepping = [self.stepping[i] for i in keep]
            self.state = self.state.select(keep) if keep else None


def _per_prompt(name: str, value: int | None | Sequence[int | None], prompts: Sequence) -> list[int | None]:
    """One number for each prompt. Raises ConfigError for another count or a negative number."""
    numbers = [value] * len(prompts) if value is None or isinstance(value, int) else list(value)
    if len(numbers) != len(prompts):
        raise ConfigError(f"{name}: got {len(numbers)} numbers, expected one for each of {len(prompts)} prompts")
    for number in numbers:
        if number is not None and number < 0:
            raise ConfigError(f"{name}: got {number}, expected 0 or more")
    return numbers


def _pad_released(prompts: Sequence[Sequence[int]], limits: list[int | None], pad: int):
    """Prompts shorter than M filled up to M on the left; how many slots of each are such pads."""
    padded, muted = [], []
    for prompt, limit in zip(prompts, limits):
        missing = 0 if limit is None or not len(prompt) else max(0, limit - len(prompt))
        padded.append([pad] * missing + list(prompt))
        muted.append(missing)
    return padded, limits, muted


def _batches(prompts: Sequence[Sequence[int]], muted: list[int], batch_rows: int) -> list[list[int]]:
    """Rows of similar length together; muted rows only with rows of their own length (contract 1)."""
    order = sorted(range(len(prompts)), key=lambda row: (muted[row] > 0, len(prompts[row])))
    batches: list[list[int]] = []
    for row in order:
        first = batches[-1][0] if batches else None
        alike = first is not None and (muted[first] > 0) == (muted[row] > 0) and (
            not muted[row] or len(prompts[first]) == len(prompts[row]))
        if alike and len(batches[-1]) < batch_rows:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _check(model: LanguageModel, prompts: Sequence[Sequence[int]], maximum_new: int) -> None:
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            raise LayoutError(f"prompt {number}: got 0 tokens, expected at least 1; begin with the end-of-text id")
        # rows that pad for the released mask may hold ids above the vocabulary but inside the table
        if min(prompt) < 0 or max(prompt) >= model.config.table_rows:
            raise LayoutError(f"prompt {number}: got ids {min(prompt)} to {max(prompt)}, expected 0 to "
                              f"{model.config.table_rows - 1}; was it made with another tokenizer?")
        limit = model.able.max_length
        if limit is not None and len(prompt) + maximum_new - 1 > limit:
            raise LengthError(f"prompt {number}: {len(prompt)} tokens and {maximum_new} new ones, the model can place "
                              f"{limit}; shorten the prompt or ask for fewer")


def _stopper(stop: Stop) -> Callable[[int], bool]:
    if stop is None:
        return lambda token: False
    return stop if callable(stop) else set(stop).__contains__
