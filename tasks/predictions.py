"""A checkpoint answers prompts: batched greedy decoding that can be killed and goes on where it was.

Prompts that read the same are answered once. They run longest first, in groups of a few batches; each group's answers
are one small file in the folder `.answers`, written whole or not at all, and an attempt begins with what is there.
Batches change nothing in an answer (in float32 up to ties of the two best logits), so a resumed run may batch the rest
differently.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from storage.errors import ArtifactError, SpecError
from storage.progress import progress
from tasks.specs import EvaluateSpec

GROUP = 8            # batches between two writes
FOLDER = ".answers"  # the leading dot keeps it out of the artifact


@dataclass(frozen=True)
class Prompt:
    """One distinct prompt: its ids, and how many of the last ones stay out of a prefix."""

    key: str
    ids: tuple[int, ...]
    keep_out: int


@dataclass(frozen=True)
class Answer:
    """What the model went on with: token ids without the stopping one, their text up to the first line feed, and the
    prompt's share of the time its batches took [seconds]."""

    ids: tuple[int, ...]
    text: str
    seconds: float


def key_of(prompt: str) -> str:
    """Name of a prompt text."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


def distinct(texts: Sequence[str], tokens: Sequence[int], tail_tokens: Sequence[int], tokenizer,
             end_of_text_first: bool, keep_out: str) -> list[Prompt]:
    """The different prompts among `texts`, as a model reads them.

    keep_out  question: the tail; one: the last token; none: nothing
    Raises ArtifactError when the tokenizer does not give the recorded token counts: it is another one.
    """
    first = [tokenizer.end_of_text] if end_of_text_first else []
    tails = dict(zip(texts, tail_tokens))
    counts = dict(zip(texts, tokens))
    found = []
    for text, ids in zip(tails, tokenizer.encode_batch(list(tails))):
        if len(ids) != counts[text]:
            raise ArtifactError(f"the checkpoint's tokenizer {tokenizer.name} makes {len(ids)} tokens of a prompt that "
                                f"was written with {counts[text]}; write the prompts with the same shards artifact")
        kept = {"question": tails[text], "one": 1, "none": 0}[keep_out]
        found.append(Prompt(key_of(text), (*first, *ids), kept))
    return found


def answer(prompts: Sequence[Prompt], model, tokenizer, spec: EvaluateSpec, maximum_new: int,
           folder: Path) -> dict[str, Answer]:
    """Answers by prompt key. `folder` keeps those of finished groups for the next attempt."""
    folder = folder / FOLDER
    done = _read(folder)
    waiting = [prompt for prompt in prompts if prompt.key not in done]
    stop = frozenset({*tokenizer.newline_ids, tokenizer.end_of_text})
    limit, pad = _prefix_limit(spec, model), _pad(spec, model, tokenizer)
    with progress(len(prompts), "evaluate", "prompts") as shown:
        shown.advance(len(prompts) - len(waiting))
        for group in _groups(waiting, spec):
            began = time.perf_counter()
            new = _greedy(group, model, spec, limit, maximum_new, stop, pad)
            seconds = (time.perf_counter() - began) / len(group)
            answers = {prompt.key: Answer(tuple(ids), tokenizer.decode(ids).split("\n")[0], seconds)
                       for prompt, ids in zip(group, new)}
            _write(folder, answers)
            done |= answers
            shown.advance(len(group))
    return {prompt.key: done[prompt.key] for prompt in prompts}


def generate(prompt: Prompt, model, tokenizer, spec: EvaluateSpec, maximum_new: int,
             stop: Callable[[int], bool]) -> list[int]:
    """What the model goes on with after one prompt, as in an evaluation; `stop` sees every token as it is chosen."""
    limit, pad = _prefix_limit(spec, model), _pad(spec, model, tokenizer)
    return _greedy([prompt], model, spec, limit, maximum_new, stop, pad)[0]


def _greedy(group: Sequence[Prompt], model, spec: EvaluateSpec, limit: int | None, maximum_new: int,
            stop: frozenset[int] | Callable[[int], bool], pad: int) -> list[list[int]]:
    """One call of greedy. The prefix of `left_pad` is set by the prompt alone, for each prompt apart."""
    from models import greedy

    ids = [list(prompt.ids) for prompt in group]
    settings: dict[str, Any] = {"maximum_new": maximum_new, "stop": stop, "batch_rows": spec.batch_rows,
                                "strategy": spec.strategy, "pad": pad}
    if spec.strategy == "left_pad":
        rooms = [max(0, len(prompt.ids) - prompt.keep_out) for prompt in group]
        return greedy(model, ids, prefix=[room if limit is None else min(limit, room) for room in rooms], **settings)
    return greedy(model, ids, prefix=[limit] * len(ids), keep_out=group[0].keep_out, **settings)


def _prefix_limit(spec: EvaluateSpec, model) -> int | None:
    """M: the evaluation's, else the model's, else None (the whole prompt)."""
    limit = model.config.prefix_tokens if spec.prefix_tokens is None else spec.prefix_tokens
    if limit is None and spec.strategy == "left_pad_released" and model.able.prefix:
        raise SpecError("strategy 'left_pad_released' fills prompts up to M, and neither the evaluation nor the model "
                        "says what M is; set prefix_tokens (1024 in JRT)")
    return limit


def _pad(spec: EvaluateSpec, model, tokenizer) -> int:
    """What `left_pad_released` fills short prompts with: the tokenizer's own space (220 in GPT-2, as in JRT)."""
    if spec.strategy != "left_pad_released" or not model.able.prefix:
        return 0
    [found] = tokenizer.encode_batch([" "])
    if len(found) != 1:
        raise SpecError(f"strategy 'left_pad_released' fills prompts with spaces, and the tokenizer {tokenizer.name} has "
                        "no such token; use left_pad or iterate")
    return found[0]


def _groups(prompts: Sequence[Prompt], spec: EvaluateSpec) -> Iterator[list[Prompt]]:
    """Longest first; where the strategy needs one `keep_out` per call, only prompts that share it together."""
    apart = spec.strategy != "left_pad"
    ordered = sorted(prompts, key=lambda prompt: (prompt.keep_out if apart else 0, -len(prompt.ids), prompt.key))
    size = GROUP * spec.batch_rows
    for _, alike in groupby(ordered, key=lambda prompt: prompt.keep_out if apart else 0):
        alike = list(alike)
        for start in range(0, len(alike), size):
            yield alike[start:start + size]


def _read(folder: Path) -> dict[str, Answer]:
    found = {}
    for path in sorted(folder.glob("*.json")):
        found |= {key: Answer(tuple(each["ids"]), each["text"], each["seconds"])
                  for key, each in json.loads(path.read_text(encoding="utf-8")).items()}
    return found


def _write(folder: Path, answers: dict[str, Answer]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{next(iter(answers))}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({key: vars(each) for key, each in answers.items()}), encoding="utf-8")
    os.replace(partial, path)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run torch on this many CPU threads meanwhile."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
