"""Extrapolation stage: perplexity of whole books by length, far beyond what a model was trained at (LAVO Table 2, Figure 4).

extrapolation.json  one row per protocol, window and length: protocol, window (None: as trained), overridden, length,
                    from, to, n, sequences, loss, perplexity and bits per byte with 95 % intervals, state_bytes,
                    tokens_per_second, note (how it was read), and `cannot`: why a length was not read, else None
parts.arrow         what they are made of, one row per block or book and bucket: protocol, window (0: as trained), length,
                    part, unit, n, nll (sum) [nats], bytes

blocks     the books one after another, cut into blocks of each length, each read from nothing and all its targets
           scored, as fairseq does. All lengths cover the same targets, in stretches of the lengths' least common multiple,
           which are what intervals resample. Longer blocks have fewer cold tokens, so a model that only looks near
           improves a little with length.
positions  each book once from its start; the loss of the targets between one length and the next, over the books that
           reach it. Intervals resample books.

A model is read in pieces with its state, so that 131,072 tokens take the memory of 1,024 where the state is of constant
size. What a model cannot read is a row that says why. A killed attempt goes on after its last finished block or book.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage import logs
from storage.artifacts import Store, artifact_id
from storage.errors import SpecError, UnsupportedUse
from storage.progress import progress
from storage.shards import ShardWriter
from tasks.extrapolation_parts import Part, Parts
from tasks.extrapolation_stream import Reading
from tasks.extrapolation_texts import Book, books, files_of, stretches
from tasks.extrapolation_windows import with_window
from tasks.perplexity_models import Source, check_ids, threads
from tasks.perplexity_scores import figures
from tasks.specs import ExtrapolationSpec

KIND = "extrapolation"
SCORES, PARTS = "extrapolation.json", "parts.arrow"
SCHEMA = pa.schema([("protocol", pa.string()), ("window", pa.int32()), ("length", pa.int32()), ("part", pa.int32()),
                    ("unit", pa.string()), ("n", pa.int64()), ("nll", pa.float64()), ("bytes", pa.int64())])

log = logs.get("tasks.extrapolation")


def resolve(spec: ExtrapolationSpec, corpus: str | None) -> dict[str, Any]:
    """The spec with the checksums of its files in place of their names. This is what gets hashed.

    Raises SpecError unless text comes from one place, CorpusError where a glob matches nothing.
    """
    if bool(spec.paths) == bool(corpus):
        raise SpecError("extrapolation reads either `paths`, globs of text files, or a corpus; give one of them")
    fields = spec.model_dump(mode="json")
    del fields["paths"]
    return fields | (files_of(spec) if spec.paths else {})


def plan(spec: ExtrapolationSpec, store: Store | None, checkpoint: str, corpus: str | None = None,
         mixers: Iterable[str] | None = None) -> str:
    """The id that `run` would return; the files are hashed, nothing else is read."""
    source = Source(checkpoint)
    return artifact_id(KIND, resolve(spec, corpus), _inputs(source, corpus), source.code(__name__, mixers))


def run(spec: ExtrapolationSpec, store: Store, checkpoint: str, corpus: str | None = None, tracking: Any = None,
        run_id: str = "", mixers: Iterable[str] | None = None) -> str:
    """Read the books and return the id of the `extrapolation` artifact.

    checkpoint        an artifact, or a model of transformers as `hf:<folder or hub name>`
    corpus            whose documents of `split` are the books, unless the spec has `paths`
    tracking, run_id  where perplexity by length is logged, if anywhere: the length is the step
    mixers            kinds of mixer in the checkpoint, part of the identity; None = all there are
    """
    source = Source(checkpoint)

    def make(folder: Path) -> dict[str, Any]:
        model, tokenizer = source.load(store, spec.dtype)
        rows, counts = build(spec, model, tokenizer, store.path(corpus) if corpus else None, folder)
        if tracking is not None:
            for row in rows:
                if row["perplexity"] is not None and row["window"] is None:
                    tracking.metrics(run_id, {f"perplexity/{row['protocol']}": row["perplexity"]}, step=row["length"])
        return counts | ({"source": checkpoint} if source.outside else {})

    return store.produce(KIND, resolve(spec, corpus), _inputs(source, corpus), source.code(__name__, mixers), make)


def _inputs(source: Source, corpus: str | None) -> dict[str, str]:
    return {"checkpoint": source.identity} | ({"corpus": corpus} if corpus else {})


def build(spec: ExtrapolationSpec, model: Any, tokenizer: Any, corpus: Path | None, folder: Path,
          ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Write parts.arrow and extrapolation.json; return its rows, and counts of what was read."""
    texts = books(spec, tokenizer, corpus)
    for book in texts:
        check_ids(model, book.ids, book.name)
    task = _Task(spec, texts, *(stretches(texts, spec) if "blocks" in spec.protocols else (None, 0)),
                 tokenizer.byte_lengths, Parts(folder))
    rows: list[dict[str, Any]] = []
    with threads(spec.threads), ShardWriter(folder / PARTS, SCHEMA) as writer:
        for window in (None, *spec.windows):
            for row, parts in task.curves(model, window):
                rows.append(row)
                for part in parts:
                    writer.append({"protocol": row["protocol"], "window": window or 0, "length": row["length"], **vars(part)})
    (folder / SCORES).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return rows, {"books": len(texts), "tokens": sum(len(book.ids) - 1 for book in texts),
                  "block_tokens": 0 if task.stream is None else len(task.stream) - 1,
                  "cannot": sum(row["cannot"] is not None for row in rows)}


@dataclass
class _Task:
    """What all curves of one run share."""

    spec: ExtrapolationSpec
    texts: list[Book]
    stream: np.ndarray | None
    unit: int
    byte_lengths: np.ndarray
    kept: Parts

    def curves(self, model: Any, window: int | None) -> Iterator[tuple[dict[str, Any], list[Part]]]:
        """(row of extrapolation.json, its parts) of every protocol and length, at one window."""
        overridden, reading, refused = "", None, None
        try:
            if window is not None:
                model, overridden = with_window(model, window)
            reading = Reading.of(model, self.spec)
        except UnsupportedUse as error:
            refused = str(error)
        for protocol in self.spec.protocols:
            read = self._blocks if protocol == "blocks" else self._positions
            for low, length in zip((0, *self.spec.lengths), self.spec.lengths):
                where = {"protocol": protocol, "window": window, "overridden": overridden, "length": length,
                         "from": low if protocol == "positions" else 0, "to": length}
                cannot = refused or reading.cannot(length)
                found = ([], None) if cannot else read(reading, window, length)
                yield where | self._figures(*found, cannot) | {"note": reading.note if reading else ""}, found[0]

    def _figures(self, parts: list[Part], facts: dict[str, Any] | None, cannot: str | None) -> dict[str, Any]:
        """The numbers of a row. Every part of one row has as many targets, so the mean of means is the mean."""
        if not cannot and not parts:
            cannot = "no book is that long"
        if not cannot and not all(np.isfinite(part.nll) for part in parts):
            parts, cannot = [], "its loss is not finite"
        found = figures(np.array([part.nll / part.n for part in parts]), np.array([part.bytes / part.n for part in parts]),
                        np.array([part.unit for part in parts]), resamples=self.spec.bootstrap, seed=self.spec.seed)
        return found | {"n": sum(part.n for part in parts), "cannot": cannot, **(facts or dict.fromkeys(
            ("state_bytes", "tokens_per_second")))}

    def _part(self, number: int, unit: str, ids: np.ndarray, nll: float) -> Part:
        """Of these targets. Ids that the tokenizer does not know have no bytes."""
        known = ids[ids < len(self.byte_lengths)]
        return Part(number, unit, len(ids), nll, int(self.byte_lengths[known].sum()))

    # ------------------------------------------------------------------------------------------------------ the two ways
    def _blocks(self, reading: Reading, window: int | None, length: int) -> tuple[list[Part], dict[str, Any]]:
        blocks = (len(self.stream) - 1) // length
        parts, spent = [], []
        with progress(blocks, f"extrapolation {length}", "blocks") as bar:
            for first in range(0, blocks, self.spec.batch_rows):
                rows = range(first, min(first + self.spec.batch_rows, blocks))
                ids_BN = np.stack([self.stream[row * length:(row + 1) * length + 1] for row in rows])
                kept = self.kept.get(f"blocks-{window or 0}-{length}-{first}",
                                     lambda ids_BN=ids_BN: _sums(reading, ids_BN, (length,)))
                parts += [self._part(row, f"stretch {row * length // self.unit}", ids[1:], sums[0])
                          for row, ids, sums in zip(rows, ids_BN, kept["sums"])]
                spent.append(kept)
                bar.advance(len(rows))
        return parts, _facts(spent, blocks * length)

    def _positions(self, reading: Reading, window: int | None, length: int) -> tuple[list[Part], dict[str, Any]]:
        """The books are read once, for all lengths, when the first one is asked for."""
        lengths = [each for each in self.spec.lengths if not reading.cannot(each)]
        at, parts, spent, read = lengths.index(length), [], [], 0
        low = 0 if at == 0 else lengths[at - 1]
        with progress(len(self.texts), "extrapolation", "books") as bar:
            for number, book in enumerate(self.texts):
                reached = [each for each in lengths if each < len(book.ids)]
                if reached:
                    ids_BN = book.ids[None, :reached[-1] + 1]
                    kept = self.kept.get(f"positions-{window or 0}-{number}",
                                         lambda ids_BN=ids_BN, reached=reached: _sums(reading, ids_BN, reached))
                    spent.append(kept)
                    read += reached[-1]
                if length in reached:
                    parts.append(self._part(number, book.name, book.ids[low + 1:length + 1], kept["sums"][0][at]))
                bar.advance()
        return parts, _facts(spent, read)


def _sums(reading: Reading, ids_BN: np.ndarray, ends: Iterable[int]) -> dict[str, Any]:
    """{sums: loss [nats] of each row between one end and the next, seconds, state_bytes}."""
    began, ends = time.perf_counter(), list(ends)
    sums_BK, at = np.zeros((len(ids_BN), len(ends))), 0
    for nll_BP in reading.losses(ids_BN):
        bucket_P = np.searchsorted(ends, np.arange(at, at + nll_BP.shape[1]), side="right")
        for k in np.unique(bucket_P):
            sums_BK[:, k] += nll_BP[:, bucket_P == k].sum(1)
        at += nll_BP.shape[1]
    return {"sums": sums_BK.tolist(), "seconds": time.perf_counter() - began, "state_bytes": reading.state_bytes}


def _facts(spent: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    seconds = sum(each["seconds"] for each in spent)
    state = [each["state_bytes"] for each in spent if each["state_bytes"] is not None]
    return {"state_bytes": max(state, default=None),
            "tokens_per_second": round(tokens / seconds, 1) if seconds else None}
