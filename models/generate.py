"""Greedy generation in batches whose make-up changes nothing in the text (contract 2 and 3).

Prompts of unequal length share a batch; each row carries its own count, finished rows leave it and others take their
place (models/pool.py).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Literal

import torch

from kernels.errors import ConfigError, LayoutError, LengthError
from models.language_model import LanguageModel
from models.pool import Pool, Row

Strategy = Literal["left_pad", "left_pad_released", "iterate"]
STRATEGIES: tuple[Strategy, ...] = ("left_pad", "left_pad_released", "iterate")
Stop = Callable[[int], bool] | frozenset[int] | set[int] | None


@torch.no_grad()
def greedy(model: LanguageModel, prompts: Sequence[Sequence[int]], *, prefix: int | Sequence[int | None] | None = None,
           maximum_new: int, stop: Stop = None, batch_rows: int = 32, strategy: Strategy = "left_pad",
           keep_out: int | Sequence[int] = 0, pad: int = 220, dtype: torch.dtype | None = None,
           done: Callable[[int, list[int]], None] | None = None) -> list[list[int]]:
    """The likeliest token again and again, for each prompt; the stopping token is not returned.

    prefix: M of prefix models, one number or one per prompt; None = the config's prefix_tokens (whole prompt if None).
    keep_out: last prompt tokens that are read as suffix, one number or one per prompt.
    batch_rows: prompts that run at a time.
    dtype: run in a copy of the model of that dtype.
    done: called with a prompt's number and its new tokens as soon as they are all there.
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
        rows = [Row(k, list(prompt), *facts) for k, (prompt, *facts) in enumerate(zip(prompts, limits, kept_out, muted))]
        running = Pool(model, rows, batch_rows, maximum_new, _stopper(stop), strategy == "iterate").run()
        for row in running if maximum_new else rows:
            out[row.number] = row.new
            if done is not None:
                done(row.number, row.new)
        return out
    finally:
        model.train(training)


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
