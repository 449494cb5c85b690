"""Whole books as token streams: text files, or the documents of a corpus, each after an end of text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.errors import CorpusError
from storage.shards import RowTable
from tasks.sources import text_files
from tasks.specs import CorpusSpec, ExtrapolationSpec
from tasks.tokenizers import Tokenizer


@dataclass(frozen=True)
class Book:
    """One text: its name, and its ids after an end of text."""

    name: str
    ids: np.ndarray


def files_of(spec: ExtrapolationSpec) -> dict:
    """{files: {name: sha256}} of `paths`: what the text is, wherever it lies. Raises CorpusError for no match."""
    return text_files.resolve(_as_corpus(spec))


def books(spec: ExtrapolationSpec, tokenizer: Tokenizer, corpus: Path | None) -> list[Book]:
    """The first `books` of them. Raises CorpusError where there is none, or for a file that cannot be read."""
    if corpus is None:
        named = list(text_files.read(_as_corpus(spec), Counter()))
        where = ", ".join(spec.paths)
    else:
        table = RowTable(corpus / "documents.arrow")
        named = [(name, text) for name, split, text in zip(*(table.column(each) for each in ("id", "split", "text")))
                 if split == spec.split]
        where = f"{corpus.name}, split {spec.split!r}"
    named = [(name, text) for name, text in named if text][:spec.books]
    if not named:
        raise CorpusError(f"{where}: no text; give other paths or another split")
    return [Book(name, np.concatenate([[tokenizer.end_of_text], tokenizer.encode_arrays([text])[0]]).astype(np.int64))
            for name, text in named]


def _as_corpus(spec: ExtrapolationSpec) -> CorpusSpec:
    return CorpusSpec(source="files", paths=spec.paths)


def stretches(texts: Sequence[Book], spec: ExtrapolationSpec) -> tuple[np.ndarray, int]:
    """(ids [S·U + 1] of the books one after another, U): S whole stretches, each a multiple of every length.

    Blocks of every length then cover the same targets. Raises CorpusError where the text is shorter than one stretch.
    """
    stream = np.concatenate([book.ids for book in texts])
    unit = math.lcm(*spec.lengths)
    targets = len(stream) - 1 if spec.tokens is None else min(len(stream) - 1, spec.tokens)
    if targets < unit:
        raise CorpusError(f"blocks of lengths {', '.join(map(str, spec.lengths))} need {unit} tokens, their least common "
                          f"multiple; there are {targets}; leave out lengths, or give more text"
                          + (" or more `tokens`" if spec.tokens is not None else ""))
    return stream[:targets // unit * unit + 1], unit
