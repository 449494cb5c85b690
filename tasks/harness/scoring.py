"""Log-likelihoods of continuations: one forward over context and continuation, the head only where it is asked.

Requests of similar length run together, and those that read the same tokens run once. For a model that reads a prefix,
the prefix is set by the context and never reaches the continuation (contract 3).
Letters: B rows, L slots, D width, E vocabulary rows, S scored tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

SLOTS = 16384       # of one forward where the number of rows is left open,
CELLS = 1 << 28     # and logits, where a model gives them at every slot (those of transformers do)


@dataclass(frozen=True)
class Pair:
    """Context and continuation in tokens, and how many of the context's first ones are read both ways."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]
    prefix: int = 0

    @property
    def read(self) -> tuple[int, ...]:
        """What the model is given: all but the last token."""
        return (self.context + self.continuation)[:-1]


def score(model: Any, pairs: Sequence[Pair], rows: int | None) -> list[tuple[float, bool]]:
    """(log-likelihood [nats], whether each token is the likeliest) of every continuation, in order.

    rows: of one forward; None = as many as fit SLOTS and CELLS. An empty continuation is certain: (0, True).
    """
    asked: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for number, pair in enumerate(pairs):
        if pair.continuation:
            asked.setdefault((pair.read, pair.prefix), []).append(number)
    found: list[tuple[float, bool]] = [(0.0, True)] * len(pairs)
    for batch in _batches(list(asked), rows, _slots(model)):
        members = [asked[key] for key in batch]
        for number, answer in _forward(model, batch, [[pairs[k] for k in row] for row in members], members):
            found[number] = answer
    return found


def _slots(model: Any) -> int:
    from models import LanguageModel

    return SLOTS if isinstance(model, LanguageModel) else min(SLOTS, CELLS // model.config.table_rows)


def _batches(keys: list[tuple[tuple[int, ...], int]], rows: int | None, slots: int) -> Iterator[list]:
    """Longest first."""
    keys.sort(key=lambda key: (-len(key[0]), key))
    start = 0
    while start < len(keys):
        size = rows or max(1, slots // max(1, len(keys[start][0])))
        yield keys[start:start + size]
        start += size


def _forward(model: Any, batch: list, pairs: list[list[Pair]], numbers: list[list[int]],
             ) -> Iterator[tuple[int, tuple[float, bool]]]:
    import torch

    from models import Layout

    device = model.embedding.weight.device
    lengths = [len(read) for read, _ in batch]
    L = max(lengths)
    ids_BL = torch.tensor([[*read, *[0] * (L - len(read))] for read, _ in batch], device=device)
    layout = Layout.right_padded(lengths, L, device=device)
    if model.able.prefix:
        layout = layout.with_prefix([prefix for _, prefix in batch])
    wanted = [(number, row * L + lengths[row] - len(pair.continuation), pair.continuation)
              for row, each in enumerate(pairs) for number, pair in zip(numbers[row], each)]
    index_S = torch.tensor([first + k for _, first, tokens in wanted for k in range(len(tokens))], device=device)
    target_S = torch.tensor([token for _, _, tokens in wanted for token in tokens], device=device)
    with torch.no_grad():
        logits_SE = model.head(model.hidden(ids_BL, layout).flatten(0, 1).index_select(0, index_S))
        if logits_SE.dtype in (torch.bfloat16, torch.float16):
            logits_SE = logits_SE.float()
        said_S = logits_SE.log_softmax(-1).gather(1, target_S[:, None])[:, 0]
        best_S = logits_SE.argmax(-1) == target_S
    counts = [len(tokens) for _, _, tokens in wanted]
    for (number, _, _), said, best in zip(wanted, said_S.split(counts), best_S.split(counts)):
        yield number, (float(said.sum()), bool(best.all()))
