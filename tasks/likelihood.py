"""The log-likelihood of an answer after its prompt, by one forward pass and no generation.

The text scored is prompt + " " + answer, the answer being the item's first; its tokens must begin with the prompt's own.
The prefix is set by the prompt alone (contract 3): were it set by prompt and answer, the answer would lie inside the part
that is read both ways. Of each answer's tokens the log-probability is taken over all rows of the model's head and summed
in float64 [nats]; pads of a batch are masked exactly, so neighbours change nothing.

Under strategy `iterate` a token's prefix grows with those before it: as long as it does, every token is a pass of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tasks.predictions import Kept, Prompt, as_read, check_room, pad_of, prefix_limit, prefix_of
from tasks.specs import EvaluateSpec

FOLDER = ".likelihoods"
CELLS = 1 << 26         # logits of a batch [numbers], where a model gives them at every slot
SLACK, SPARE = 16, 4    # rows of a batch differ in length by at most so many tokens, or a quarter
GROUP = 8               # batches between two writes


@dataclass(frozen=True)
class Pair:
    """A prompt and the ids of an answer behind it."""

    key: str
    prompt: Prompt
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Likelihood:
    """nats: the sum of the log-probabilities of the answer's tokens."""

    nats: float
    tokens: int


@dataclass(frozen=True)
class Piece:
    """One row of a pass: what is read, m, how many first ids are muted, and the last ids, which are predicted."""

    pair: int
    ids: tuple[int, ...]
    prefix: int
    muted: int
    targets: int

    @property
    def read(self) -> int:
        """Tokens that go into the model: all but the last target."""
        return len(self.ids) - 1


def pairs(prompts: dict[str, Prompt], keyed: Sequence[tuple[str, str, Sequence[str]]],
          tokenizer) -> tuple[list[Pair], list[str | None], dict[str, int]]:
    """(distinct pairs, the key of each item's pair, why others have none).

    keyed: (prompt key, prompt text, answers) of each item. Reasons: no_answer, tokens_change_at_answer.
    """
    texts = {pair_key(key, answers[0]): (key, f"{text} {answers[0]}") for key, text, answers in keyed
             if len(answers) and answers[0].strip()}
    found, missing = {}, {"no_answer": 0, "tokens_change_at_answer": 0}
    for name, ids in zip(texts, tokenizer.encode_batch([text for _, text in texts.values()])):
        prompt = prompts[texts[name][0]]
        own = prompt.ids[prompt.lead:]
        if tuple(ids[:len(own)]) == own and len(ids) > len(own):
            found[name] = Pair(name, prompt, tuple(ids[len(own):]))
    names: list[str | None] = []
    for key, _, answers in keyed:
        name = pair_key(key, answers[0]) if len(answers) and answers[0].strip() else None
        names.append(name if name in found else None)
        if names[-1] is None:
            missing["no_answer" if name is None else "tokens_change_at_answer"] += 1
    return list(found.values()), names, {reason: count for reason, count in missing.items() if count}


def pair_key(prompt: str, answer: str) -> str:
    """Name of an answer to a prompt of this key."""
    return hashlib.sha256(f"{prompt}\0{answer}".encode()).hexdigest()[:16]


def score(asked: Sequence[Pair], model, tokenizer, spec: EvaluateSpec, folder: Path) -> dict[str, Likelihood]:
    """Likelihoods by key. `folder` keeps those that are there for the next attempt."""
    check_room([read_length(pair, spec) for pair in asked], model, spec, 1)
    with Kept(folder / FOLDER, Likelihood, len(asked), "answers") as kept:
        likelihoods([pair for pair in asked if pair.key not in kept.done], model, tokenizer, spec, kept.add)
    return kept.done


def read_length(pair: Pair, spec: EvaluateSpec) -> int:
    """Tokens that the model reads to score a pair."""
    return len(as_read(pair.prompt, spec).ids) + len(pair.answer) - 1


def likelihoods(asked: Sequence[Pair], model, tokenizer, spec: EvaluateSpec,
                emit: Callable[[dict[str, Likelihood]], None]) -> None:
    """Score all of them; `emit` gets them a few batches at a time."""
    ordered = sorted(asked, key=lambda pair: (-read_length(pair, spec), pair.key))
    size = GROUP * spec.batch_rows
    for start in range(0, len(ordered), size):
        part = ordered[start:start + size]
        sums = sum_nats(part, model, tokenizer, spec)
        emit({pair.key: Likelihood(nats, len(pair.answer)) for pair, nats in zip(part, sums)})


def sum_nats(asked: Sequence[Pair], model, tokenizer, spec: EvaluateSpec) -> list[float]:
    """Sum of the log-probabilities of each answer's tokens [nats]."""
    import torch

    limit, pad = prefix_limit(spec, model), pad_of(spec, model, tokenizer)
    pieces = [piece for number, pair in enumerate(asked) for piece in _pieces(number, pair, model, spec, limit, pad)]
    sums = [0.0] * len(asked)
    model.eval()
    with torch.inference_mode():
        for rows in _batches(pieces, model, spec.batch_rows):
            for piece, nats in zip(rows, _pass(rows, model)):
                sums[piece.pair] += nats
    return sums


def _pieces(number: int, pair: Pair, model, spec: EvaluateSpec, limit: int | None, pad: int) -> Iterator[Piece]:
    """One piece, or under `iterate` one per token until the prefix is whole."""
    prompt = as_read(pair.prompt, spec)
    muted = 0
    if spec.strategy == "left_pad_released" and model.able.prefix:
        muted = max(0, limit - len(prompt.ids))
        prompt = replace(prompt, ids=(pad,) * muted + prompt.ids)
    ids, n, answer = prompt.ids + pair.answer, len(prompt.ids), len(pair.answer)
    first = 0
    while spec.strategy == "iterate" and model.able.prefix and first < answer:
        prefix = prefix_of(replace(prompt, ids=ids[:n + first]), limit)
        if prefix == limit:
            break
        yield Piece(number, ids[:n + first + 1], prefix, muted, 1)
        first += 1
    if first < answer:
        yield Piece(number, ids, prefix_of(replace(prompt, ids=ids[:n + first]), limit), muted, answer - first)


def _batches(pieces: Sequence[Piece], model, batch_rows: int) -> Iterator[list[Piece]]:
    """Pieces of similar length together, longest first; muted ones only with those of their own length."""
    from models import LanguageModel

    most = 1 << 60 if isinstance(model, LanguageModel) else max(1, CELLS // model.config.table_rows)   # slots
    batch: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: (piece.muted > 0, -piece.read)):
        if batch:
            first = batch[0]
            alike = first.read - piece.read <= max(SLACK, first.read // SPARE)
            if first.muted or piece.muted:
                alike = bool(first.muted and piece.muted) and first.read == piece.read
            if not alike or len(batch) == batch_rows or (len(batch) + 1) * first.read > most:
                yield batch
                batch = []
        batch.append(piece)
    if batch:
        yield batch


def _pass(rows: Sequence[Piece], model: Any) -> list[float]:
    """Nats of the targets of each row, by one forward pass."""
    import torch

    from models import Layout

    lengths = [piece.read for piece in rows]
    L, device = max(lengths), model.embedding.weight.device
    ids_BL = torch.tensor([[*piece.ids[:-1], *[0] * (L - n)] for piece, n in zip(rows, lengths)], device=device)
    layout = Layout.right_padded(lengths, L).with_prefix([piece.prefix for piece in rows])
    if rows[0].muted:
        layout = layout.with_muted(torch.arange(L)[None] < torch.tensor([piece.muted for piece in rows])[:, None])
    hidden = model.hidden(ids_BL, layout.to(device))
    row_S = torch.tensor([k for k, piece in enumerate(rows) for _ in range(piece.targets)], device=device)
    slot_S = torch.tensor([piece.read - piece.targets + k for piece in rows for k in range(piece.targets)], device=device)
    target_S = torch.tensor([token for piece in rows for token in piece.ids[-piece.targets:]], device=device)
    logits_SE = model.head(hidden[row_S, slot_S]).double()
    nats_S = logits_SE.gather(1, target_S[:, None])[:, 0] - logits_SE.logsumexp(1)
    return torch.zeros(len(rows), dtype=torch.float64, device=device).index_add(0, row_S, nats_S).tolist()
