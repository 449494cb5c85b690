"""Tokenise: a corpus to Arrow shards of fixed rows. Produces `<split>/00000.arrow …` and `tokenizer/`.

Each split is one stream of tokens, an end-of-text id before every document, in the order of the corpus. A row is a
window of N+1 tokens of that stream; neighbours share one token, so that every token but the first is a target exactly
once. The tokens after the last whole row of a split are dropped and counted.

Documents are tokenised in groups of fixed size, one task a group, and every finished group stays in the work folder:
a killed run goes on from there. Group size, workers and restarts do not change a byte of the result.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from storage import logs
from storage.artifacts import Store, artifact_id
from storage.errors import CorpusError
from storage.identity import code_hash
from storage.progress import progress
from storage.shards import RowTable, ShardWriter, token_schema
from tasks import corpus as corpora
from tasks.parallel import parallel_map
from tasks.specs import TokeniseSpec
from tasks.tokenizers import Tokenizer, check_name, load_tokenizer, read_hugging_face, train_bpe

KIND = "shards"
TOKENIZER = "tokenizer"
GROUP_CHARACTERS = 2_000_000
TRAINING_CHARACTERS = 4_000_000     # a trained vocabulary sees this much of the train split at most
GROUPS = ".groups"

log = logs.get("tasks.tokenise")


def resolve(spec: TokeniseSpec) -> dict:
    """The spec, and the checksum of a tokenizer that comes from elsewhere. This is what gets hashed.

    Raises TokenizerError for a name that is unknown or that nothing can be loaded from.
    """
    check_name(spec.tokenizer)
    kind, _, argument = spec.tokenizer.partition(":")
    outside = {"tokenizer_sha256": hashlib.sha256(read_hugging_face(argument).encode()).hexdigest()} if kind == "hf" else {}
    return spec.model_dump(mode="json") | outside


def plan(spec: TokeniseSpec, store: Store | None, corpus: str) -> str:
    """The id that `run` would return."""
    return artifact_id(KIND, resolve(spec), {"corpus": corpus}, code_hash([__name__]))


def run(spec: TokeniseSpec, store: Store, corpus: str) -> str:
    """Make the shards of a corpus artifact unless they are there, and return their id."""
    return store.produce(KIND, resolve(spec), {"corpus": corpus}, code_hash([__name__]),
                         lambda folder: build(spec, RowTable(store.path(corpus) / corpora.FILE), folder))


def build(spec: TokeniseSpec, documents: RowTable, folder: Path) -> dict:
    """Write tokenizer and shards; return token accounts of every split.

    Raises CorpusError when the train split does not fill one row.
    """
    texts, splits = documents.column("text"), documents.column("split")
    tokenizer = _tokenizer(spec, (text for text, split in zip(texts, splits) if split == "train"), folder)
    groups = _groups(texts, splits)
    work = partial(_tokenise_group, tokenizer=tokenizer, folder=folder / GROUPS)
    items = ((name, [texts[k] for k in members]) for _, name, members in groups)
    done: dict[str, list] = {split: [] for split in corpora.SPLITS}
    with progress(len(texts), "tokenise", "documents") as bar:
        for (split, _, members), paths in zip(groups, parallel_map(work, items, describe="tokenise")):
            done[split].append(paths)
            bar.advance(len(members))
    counts = {"tokenizer": {"name": tokenizer.name, "vocabulary": tokenizer.vocabulary_size}, "splits": {}}
    for split, files in done.items():
        if files:
            counts["splits"][split] = _cut(spec, tokenizer, files, folder / split)
    train = counts["splits"].get("train", {"rows": 0, "tokens": 0})
    if not train["rows"]:
        raise CorpusError(f"the train split holds {train['tokens']} tokens, less than one row of {spec.row_tokens} + 1; "
                          "use a smaller row_tokens or more text")
    log.info("tokenise: %d train tokens in %d rows", train["tokens"], train["rows"])
    return counts


def _tokenizer(spec: TokeniseSpec, train_texts: Iterator[str], folder: Path) -> Tokenizer:
    """The tokenizer by name, or trained on the train split alone (kept, so that a restart has the same one)."""
    kept = folder / TOKENIZER
    if not (kept / "reread.json").is_file():
        kind, _, size = spec.tokenizer.partition(":")
        tokenizer = train_bpe(_up_to(train_texts), int(size)) if kind == "bpe" else load_tokenizer(spec.tokenizer)
        tokenizer.save(kept)
    return load_tokenizer(kept)


def _up_to(texts: Iterator[str]) -> Iterator[str]:
    seen = 0
    for text in texts:
        yield text
        seen += len(text)
        if seen >= TRAINING_CHARACTERS:
            return


def _groups(texts: list[str], splits: list[str]) -> list[tuple[str, str, list[int]]]:
    """(split, name, documents) of groups about GROUP_CHARACTERS long; split by split, in the order of the corpus."""
    groups = []
    for split in corpora.SPLITS:
        members, characters = [], 0
        for k in (k for k, other in enumerate(splits) if other == split):
            members.append(k)
            characters += len(texts[k])
            if characters >= GROUP_CHARACTERS:
                groups.append((split, f"{len(groups):06d}", members))
                members, characters = [], 0
        if members:
            groups.append((split, f"{len(groups):06d}", members))
    return groups


def _tokenise_group(group: tuple[str, list[str]], tokenizer: Tokenizer, folder: Path) -> tuple[Path, Path]:
    """Write the stream of a group and where its documents start; what is already there is from an earlier attempt."""
    name, texts = group
    tokens_path, starts_path = folder / f"{name}.tokens.npy", folder / f"{name}.starts.npy"
    if not tokens_path.is_file():
        kind = np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.uint32
        ids = tokenizer.encode_arrays(texts)
        starts = np.cumsum([0, *(len(found) + 1 for found in ids)])
        stream = np.empty(starts[-1], dtype=kind)
        for start, found in zip(starts, ids):
            stream[start] = tokenizer.end_of_text
            stream[start + 1 : start + 1 + len(found)] = found
        folder.mkdir(parents=True, exist_ok=True)
        _save(starts_path, starts[:-1].astype(np.int64))
        _save(tokens_path, stream)
    return tokens_path, starts_path


def _save(path: Path, array: np.ndarray) -> None:
    partial_path = path.with_name(f".{path.name}.{os.getpid()}")
    with open(partial_path, "wb") as file:
        np.save(file, array)
    os.replace(partial_path, path)


def _cut(spec: TokeniseSpec, tokenizer: Tokenizer, files: list[tuple[Path, Path]], folder: Path) -> dict:
    """Cut the stream of a split into shards; return {documents, tokens, rows, shards, dropped, bytes of text}."""
    width, step = spec.row_tokens + 1, spec.row_tokens
    schema = token_schema(width, tokenizer.vocabulary_size)
    lengths = tokenizer.byte_lengths.astype(np.int64)
    documents = tokens = rows = shards = text_bytes = 0
    writer = None
    held, held_starts = np.zeros(0, dtype=np.uint16), np.zeros(0, dtype=np.int64)
    for tokens_path, starts_path in files:
        stream, starts = np.load(tokens_path, mmap_mode="r"), np.load(starts_path)
        documents += len(starts)
        tokens += len(stream)
        text_bytes += int(lengths[stream].sum())
        held_starts = np.concatenate([held_starts, starts + len(held)])
        held = np.concatenate([held, stream]) if len(held) else np.asarray(stream)
        while len(held) >= width:
            if writer is None:
                writer = ShardWriter(folder / f"{shards:05d}.arrow", schema)
            count = min((len(held) - 1) // step, spec.shard_rows - writer.rows)
            writer.extend(_rows(held, held_starts, count, step))
            held, held_starts = held[count * step :], held_starts - count * step
            held_starts = held_starts[held_starts >= 0]
            rows += count
            if writer.rows == spec.shard_rows:
                writer.close()
                writer, shards = None, shards + 1
    if writer is not None:
        writer.close()
        shards += 1
    return {"documents": documents, "tokens": tokens, "rows": rows, "shards": shards, "text_bytes": text_bytes,
            "dropped": tokens - (rows * step + 1 if rows else 0)}


def _rows(stream: np.ndarray, starts: np.ndarray, count: int, step: int) -> dict:
    """`count` rows from the head of a stream, and the starts among the N+1 tokens of each."""
    tokens = np.lib.stride_tricks.sliding_window_view(stream, step + 1)[: count * step : step]
    begins = step * np.arange(count)
    first, last = np.searchsorted(starts, begins), np.searchsorted(starts, begins + step, side="right")
    return {"tokens": tokens, "starts": [(starts[a:b] - begin).astype(np.int32)
                                         for begin, a, b in zip(begins, first, last)]}
