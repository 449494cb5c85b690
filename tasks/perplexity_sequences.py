"""The sequences a perplexity is measured on: rows of shards, or documents of a corpus, in groups of one length.

Letters: B sequences, N targets of each (a sequence holds N+1 tokens).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from storage.errors import CorpusError
from storage.shards import RowTable, TokenShards
from tasks.perplexity_models import read_with
from tasks.specs import PerplexitySpec
from tasks.tokenizers import Tokenizer, load_tokenizer

ENCODED = 256       # documents tokenised at once


@dataclass(frozen=True)
class Group:
    """Sequences of one length that are read together."""

    numbers_B: np.ndarray                       # which they are
    ids_BN: np.ndarray                          # int64 [B, N+1]
    starts: list[np.ndarray] | None             # where documents begin in each, None: each is one text


@dataclass
class Sequences:
    """Sequences in their order. `left_out`: {reason: n} of what could not be used."""

    rows: Sequence[np.ndarray]
    starts: Sequence[np.ndarray] | None
    left_out: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def groups(self, batch_rows: int) -> Iterator[Group]:
        """Shortest first, at most `batch_rows` of one length together; the same groups every time."""
        lengths = np.array([len(row) for row in self.rows])
        order = np.argsort(lengths, kind="stable")
        first = 0
        while first < len(order):
            alike = order[first:first + batch_rows]
            alike = alike[lengths[alike] == lengths[alike[0]]]
            yield Group(alike, np.stack([self.rows[i] for i in alike]).astype(np.int64),
                        None if self.starts is None else [np.asarray(self.starts[i]) for i in alike])
            first += len(alike)


def from_shards(folder: Path, spec: PerplexitySpec, tokenizer: Tokenizer) -> Sequences:
    """The first rows of a split. Raises ShardError (no such split), ArtifactError (another tokenizer)."""
    written = load_tokenizer(folder / "tokenizer")
    end = read_with(tokenizer, written, f"shards {folder.name}")
    shards = TokenShards(folder / spec.split)
    count = len(shards) if spec.sequences is None else min(spec.sequences, len(shards))
    rows = [shards.row(i) for i in range(count)]
    if end != written.end_of_text:
        rows = [np.where(row == written.end_of_text, end, row.astype(np.int64)) for row in rows]
    return Sequences(rows, [shards.starts(i) for i in range(count)] if spec.documents_apart else None)


def from_corpus(folder: Path, spec: PerplexitySpec, tokenizer: Tokenizer) -> Sequences:
    """The first documents of a split, each after an end of text and cut at `sequence_tokens`; shorter than
    `minimum_tokens`: left out and counted. Raises CorpusError where none is left."""
    table = RowTable(folder / "documents.arrow")
    texts = [text for text, split in zip(table.column("text"), table.column("split")) if split == spec.split]
    rows, short = [], 0
    for first in range(0, len(texts), ENCODED):
        for ids in tokenizer.encode_arrays(texts[first:first + ENCODED]):
            if len(ids) < spec.minimum_tokens:
                short += 1
            elif spec.sequences is None or len(rows) < spec.sequences:
                rows.append(np.concatenate([[tokenizer.end_of_text], ids[:spec.sequence_tokens]]).astype(np.int64))
        if spec.sequences is not None and len(rows) >= spec.sequences:
            break
    if not rows:
        raise CorpusError(f"{folder.name}, split {spec.split!r}: none of {len(texts)} documents has {spec.minimum_tokens} "
                          "tokens; lower minimum_tokens or choose another split")
    return Sequences(rows, None, {"too_short": short} if short else {})


def opened(spec: PerplexitySpec, shards: Path | None, corpus: Path | None, tokenizer: Tokenizer) -> Sequences:
    """Of whichever is given."""
    return from_corpus(corpus, spec, tokenizer) if shards is None else from_shards(shards, spec, tokenizer)
