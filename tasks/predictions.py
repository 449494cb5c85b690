"""A checkpoint answers prompts: batched greedy decoding that can be killed and goes on where it was.

Prompts that read the same are answered once. They run longest first through one pool (models/pool.py); as soon as a batch
of answers is there it becomes one small file in the folder `.answers`, written whole or not at all, and an attempt begins
with what is there. Batches change nothing in an answer (in float32 up to ties of the two best logits), so a resumed run
may batch the rest differently.

Strategy `reread` is a rule about token ids, not about text: the tokens before the prompt's tail, without the leading
end-of-text token, are repeated one for one, and nothing is put between the copies (the head of a prompt ends in its own
separator). With E the leading token, H the head and T the tail a model reads E H H T; a prompt without a head is read once.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from storage.errors import ArtifactError, SpecError
from storage.progress import progress
from tasks.specs import EvaluateSpec

GROUP = 1            # batches of answers between two writes
FOLDER = ".answers"  # the leading dot keeps it out of the artifact


@dataclass(frozen=True)
class Prompt:
    """One distinct prompt: its ids, and how many of the last ones stay out of a prefix.

    lead, tail  ids before and behind its head, which `reread` repeats; tail None = keep_out
    """

    key: str
    ids: tuple[int, ...]
    keep_out: int
    lead: int = 0
    tail: int | None = None

    def twice(self) -> Prompt:
        """The head read twice."""
        end = len(self.ids) - (self.keep_out if self.tail is None else self.tail)
        return replace(self, ids=self.ids[:end] + self.ids[self.lead:end] + self.ids[end:])


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
        found.append(Prompt(key_of(text), (*first, *ids), kept, len(first), tails[text]))
    return found


def answer(prompts: Sequence[Prompt], model, tokenizer, spec: EvaluateSpec, maximum_new: int,
           folder: Path) -> dict[str, Answer]:
    """Answers by prompt key. `folder` keeps those that are there for the next attempt."""
    check_room([len(as_read(prompt, spec).ids) for prompt in prompts], model, spec, maximum_new)
    with Kept(folder / FOLDER, Answer, len(prompts), "prompts") as kept:
        waiting = [prompt for prompt in prompts if prompt.key not in kept.done]
        answers(waiting, model, tokenizer, spec, maximum_new, kept.add)
    return {prompt.key: kept.done[prompt.key] for prompt in prompts}


def answers(prompts: Sequence[Prompt], model, tokenizer, spec: EvaluateSpec, maximum_new: int,
            emit: Callable[[dict[str, Answer]], None]) -> None:
    """Answer all of them; `emit` gets them a batch at a time, as they end."""
    ready: dict[str, list[int]] = {}
    began = time.perf_counter()

    def hand_over() -> None:
        nonlocal began
        seconds = (time.perf_counter() - began) / len(ready)
        emit({key: Answer(tuple(ids), tokenizer.decode(ids).split("\n")[0], seconds) for key, ids in ready.items()})
        ready.clear()
        began = time.perf_counter()

    def done(number: int, ids: list[int]) -> None:
        ready[prompts[number].key] = ids
        if len(ready) == GROUP * spec.batch_rows:
            hand_over()

    stop = frozenset({*tokenizer.newline_ids, tokenizer.end_of_text})
    _greedy(prompts, model, spec, maximum_new, stop, pad_of(spec, model, tokenizer), done)
    if ready:
        hand_over()


def generate(prompt: Prompt, model, tokenizer, spec: EvaluateSpec, maximum_new: int,
             stop: Callable[[int], bool]) -> list[int]:
    """What the model goes on with after one prompt, as in an evaluation; `stop` sees every token as it is chosen."""
    check_room([len(as_read(prompt, spec).ids)], model, spec, maximum_new)
    return _greedy([prompt], model, spec, maximum_new, stop, pad_of(spec, model, tokenizer))[0]


def as_read(prompt: Prompt, spec: EvaluateSpec) -> Prompt:
    """The ids that the model reads under the strategy."""
    return prompt.twice() if spec.strategy == "reread" else prompt


def check_room(lengths: Sequence[int], model, spec: EvaluateSpec, maximum_new: int) -> None:
    """SpecError unless every prompt, as it is read, and its answer can be placed by the model.

    lengths: tokens of each prompt as it is read.
    """
    limit = model.able.max_length
    over = [n for n in lengths if limit is not None and n + maximum_new - 1 > limit]
    if over:
        why = " (strategy 'reread' reads the head of a prompt twice)" if spec.strategy == "reread" else ""
        raise SpecError(f"{len(over)} of {len(lengths)} prompts do not fit: the longest has {max(over)} tokens{why} and "
                        f"{maximum_new} more are generated, the model can place {limit}; write prompts with a smaller "
                        "document_tokens or total_tokens, or lower generation_tokens")


def _greedy(prompts: Sequence[Prompt], model, spec: EvaluateSpec, maximum_new: int,
            stop: frozenset[int] | Callable[[int], bool], pad: int,
            done: Callable[[int, list[int]], None] | None = None) -> list[list[int]]:
    """One call of greedy. The prefix of `left_pad` is set by the prompt alone, for each prompt apart."""
    from models import greedy

    limit, read = prefix_limit(spec, model), [as_read(prompt, spec) for prompt in prompts]
    settings: dict[str, Any] = {"maximum_new": maximum_new, "stop": stop, "batch_rows": spec.batch_rows, "pad": pad,
                                "done": done, "strategy": "left_pad" if spec.strategy == "reread" else spec.strategy}
    ids = [list(prompt.ids) for prompt in read]
    if settings["strategy"] == "left_pad":
        return greedy(model, ids, prefix=[prefix_of(prompt, limit) for prompt in read], **settings)
    return greedy(model, ids, prefix=[limit] * len(ids), keep_out=[prompt.keep_out for prompt in read], **settings)


def prefix_of(prompt: Prompt, limit: int | None) -> int:
    """m, set by the prompt as it is read: all but keep_out of its tokens, at most M."""
    room = max(0, len(prompt.ids) - prompt.keep_out)
    return room if limit is None else min(limit, room)


def prefix_limit(spec: EvaluateSpec, model) -> int | None:
    """M: the evaluation's, else the model's, else None (the whole prompt)."""
    limit = model.config.prefix_tokens if spec.prefix_tokens is None else spec.prefix_tokens
    if limit is None and spec.strategy == "left_pad_released" and model.able.prefix:
        raise SpecError("strategy 'left_pad_released' fills prompts up to M, and neither the evaluation nor the model "
                        "says what M is; set prefix_tokens (1024 in JRT)")
    return limit


def pad_of(spec: EvaluateSpec, model, tokenizer) -> int:
    """What `left_pad_released` fills short prompts with: the tokenizer's own space (220 in GPT-2, as in JRT)."""
    if spec.strategy != "left_pad_released" or not model.able.prefix:
        return 0
    [found] = tokenizer.encode_batch([" "])
    if len(found) != 1:
        raise SpecError(f"strategy 'left_pad_released' fills prompts with spaces, and the tokenizer {tokenizer.name} has "
                        "no such token; use left_pad or iterate")
    return found[0]


class Kept:
    """Results by key that outlive this process: one file per `add`, read again by the next attempt. Shows progress."""

    def __init__(self, folder: Path, kind: type, total: int, unit: str) -> None:
        self.folder, self.done = folder, {}
        for path in sorted(folder.glob("*.json")):
            self.done |= {key: kind(**{name: tuple(value) if isinstance(value, list) else value
                                       for name, value in each.items()})
                          for key, each in json.loads(path.read_text(encoding="utf-8")).items()}
        self._bar = progress(total, "evaluate", unit)

    def __enter__(self) -> Kept:
        self._shown = self._bar.__enter__()
        self._shown.advance(len(self.done))
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)

    def add(self, results: dict[str, Any]) -> None:
        """Keep what is ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{next(iter(results))}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({key: asdict(each) for key, each in results.items()}), encoding="utf-8")
        os.replace(partial, path)
        self.done |= results
        self._shown.advance(len(results))


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
