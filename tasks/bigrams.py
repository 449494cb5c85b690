"""Bigrams: how often each pair of neighbouring tokens occurs in training text. Produces `keys.npy`, `counts.npy` and
`tokenizer/`.

A pair (a, b) has the key a · 2^32 + b; keys are sorted, and both arrays are read mapped (`Bigrams`). The rows of a
split are counted in spans of fixed size, one task a span; each leaves a sorted run in the work folder, where a killed
attempt finds it again, and the runs are merged block by block, so that memory depends on neither the text nor the number
of different pairs. Where documents begin is known, so no pair joins two of them unless asked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from storage import logs
from storage.artifacts import Store, artifact_id
from storage.errors import ArtifactError
from storage.identity import code_hash
from storage.progress import progress
from storage.shards import TokenShards
from tasks.parallel import parallel_map
from tasks.specs import BigramsSpec

KIND = "bigrams"
KEYS, COUNTS, TOKENIZER = "keys.npy", "counts.npy", "tokenizer"
RUNS = ".runs"
SPAN_TOKENS = 8_000_000     # of one task: about 200 MB while it sorts
MERGE_PAIRS = 4_000_000     # held at once by a merge
FAN_IN = 128                # runs merged at once: each keeps two files open

log = logs.get("tasks.bigrams")


def plan(spec: BigramsSpec, store: Store | None, shards: str) -> str:
    """The id that `run` would return."""
    return artifact_id(KIND, spec.model_dump(mode="json"), {"shards": shards}, code_hash([__name__]))


def run(spec: BigramsSpec, store: Store, shards: str) -> str:
    """Count the pairs of a shards artifact unless that is done, and return the id of the counts."""
    def make(folder: Path) -> dict:
        source = store.path(shards)
        shutil.copytree(source / TOKENIZER, folder / TOKENIZER, dirs_exist_ok=True)
        return build(spec, source / spec.split, folder)

    return store.produce(KIND, spec.model_dump(mode="json"), {"shards": shards}, code_hash([__name__]), make)


def build(spec: BigramsSpec, split: Path, folder: Path) -> dict:
    """Count the pairs of one split's rows into `folder`; return {pairs, distinct, documents, rows}.

    Raises ShardError where the split has no shards.
    """
    shards = TokenShards(split)
    ends, documents = row_ends(shards, spec.documents)
    step = max(1, SPAN_TOKENS // shards.row_tokens)
    spans = [(first, ends[first:first + step]) for first in range(0, len(ends), step)]
    work = partial(_count_span, split=split, folder=folder / RUNS, across=spec.cross_documents)
    with progress(len(spans), "bigrams", "spans") as bar:
        runs = []
        for run_folder in parallel_map(work, spans, describe="bigrams"):
            runs.append(run_folder)
            bar.advance()
    pairs, distinct = _publish(_merged(runs, folder / RUNS), folder)
    log.info("bigrams: %d pairs, %d different, in %d documents", pairs, distinct, documents)
    return {"pairs": pairs, "distinct": distinct, "documents": documents, "rows": len(ends)}


class Bigrams:
    """The counts of an artifact, mapped."""

    def __init__(self, folder: str | os.PathLike) -> None:
        try:
            self.keys, self.counts = (np.load(Path(folder) / name, mmap_mode="r") for name in (KEYS, COUNTS))
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{folder} holds no bigram counts ({error}); run the bigrams stage again") from error

    def count(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """int64: how often each pair was seen, 0 for one never seen. Two arrays of one shape."""
        wanted = pair_keys(first, second)
        if not len(self.keys):
            return np.zeros(wanted.shape, np.int64)
        place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where(self.keys[place] == wanted, self.counts[place], 0).astype(np.int64)


def pair_keys(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """uint64 keys of pairs of ids below 2^32."""
    return (np.asarray(first, np.uint64) << np.uint64(32)) | np.asarray(second, np.uint64)


# ---------------------------------------------------------------------------------------------------------- counting
def row_ends(shards: TokenShards, documents: int | None) -> tuple[list[int], int]:
    """(last counted place of each row, documents seen): all rows whole, or up to the end of the n-th document.

    Place j of a row, 1 to N, is the pair of its tokens j - 1 and j; the row's last place is the next row's place 0.
    """
    last = shards.row_tokens - 1
    seen, ends = 0, []
    for i in range(len(shards)):
        begins = shards.starts(i)
        begins = begins[(begins > 0) | (i == 0)]
        if documents is not None and seen + len(begins) > documents:
            ends.append(int(begins[documents - seen]) - 1)
            return [end for end in ends if end > 0], documents
        seen += len(begins)
        ends.append(last)
    return ends, seen


def _count_span(span: tuple[int, list[int]], split: Path, folder: Path, across: bool) -> Path:
    """Sorted keys and counts of the rows `first, first + 1, ...`, in a folder of their own that is complete if there."""
    first, ends = span
    done = folder / f"{first:010d}"
    if done.is_dir():
        return done
    shards = _opened(split)
    found = []
    for i, end in enumerate(ends, start=first):
        row = shards.row(i)[:end + 1]
        wanted = np.ones(end, bool)
        if not across:
            begins = shards.starts(i)
            wanted[begins[(begins > 0) & (begins <= end)] - 1] = False
        found.append(pair_keys(row[:-1][wanted], row[1:][wanted]))
    keys, counts = np.unique(np.concatenate(found), return_counts=True)
    return _write_run(done, iter([(keys, counts.astype(np.uint64))]))


@lru_cache(maxsize=1)
def _opened(split: Path) -> TokenShards:
    """Opened once a process; the caller has verified it."""
    return TokenShards(split, verify=False)


# ----------------------------------------------------------------------------------------------------------- merging
Blocks = Iterator[tuple[np.ndarray, np.ndarray]]


def _write_run(done: Path, blocks: Blocks) -> Path:
    """Append blocks of (keys, counts) to two raw files; the folder gets its name when both are complete."""
    partial_folder = done.with_name(f".{done.name}.{os.getpid()}")
    shutil.rmtree(partial_folder, ignore_errors=True)
    partial_folder.mkdir(parents=True)
    with open(partial_folder / "keys", "wb") as keys_file, open(partial_folder / "counts", "wb") as counts_file:
        for keys, counts in blocks:
            keys.tofile(keys_file)
            counts.tofile(counts_file)
    os.replace(partial_folder, done)
    return done


def _read_run(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    if not (folder / "keys").stat().st_size:                 # nothing to map
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    return tuple(np.memmap(folder / name, np.uint64, "r") for name in ("keys", "counts"))


def _merged(runs: Sequence[Path], folder: Path) -> Path:
    """One run of all; FAN_IN at a time, again and again."""
    level = 0
    while len(runs) > 1:
        level += 1
        groups = [runs[k:k + FAN_IN] for k in range(0, len(runs), FAN_IN)]
        merged = []
        for number, group in enumerate(groups):
            done = folder / f"merged-{level}-{number:06d}"
            merged.append(done if done.is_dir() else _write_run(done, merge([_read_run(run) for run in group])))
        runs = merged
    return runs[0] if runs else _write_run(folder / "nothing", iter(()))


def merge(runs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Blocks:
    """Blocks of sorted different keys with summed counts, from runs of sorted different keys.

    Each round takes from every run what is not above the smallest of the runs' next block ends, so that a key never
    falls into two rounds and one round holds MERGE_PAIRS at most.
    """
    block = max(1, MERGE_PAIRS // max(1, len(runs)))
    cursors = [0] * len(runs)
    while True:
        open_runs = [k for k, (keys, _) in enumerate(runs) if cursors[k] < len(keys)]
        if not open_runs:
            return
        pivot = min(runs[k][0][min(cursors[k] + block, len(runs[k][0])) - 1] for k in open_runs)
        keys, counts = [], []
        for k in open_runs:
            ahead = runs[k][0][cursors[k]:cursors[k] + block]
            taken = int(np.searchsorted(ahead, pivot, side="right"))
            keys.append(ahead[:taken])
            counts.append(runs[k][1][cursors[k]:cursors[k] + taken])
            cursors[k] += taken
        every = np.concatenate(keys)
        order = np.argsort(every, kind="stable")
        every = every[order]
        begins = np.flatnonzero(np.concatenate([[True], every[1:] != every[:-1]]))
        yield every[begins], np.add.reduceat(np.concatenate(counts)[order], begins)


def _publish(run_folder: Path, folder: Path) -> tuple[int, int]:
    """Write the two arrays of the artifact, counts in 32 bits where they fit; return (pairs, different pairs)."""
    keys, counts = _read_run(run_folder)
    kind = np.uint32 if not len(counts) or int(counts.max()) < 1 << 32 else np.uint64
    for name, array, dtype in ((KEYS, keys, np.dtype(np.uint64)), (COUNTS, counts, np.dtype(kind))):
        with open(folder / f"{name}.partial", "wb") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": dtype.str, "fortran_order": False, "shape": (len(array),)})
            for first in range(0, len(array), MERGE_PAIRS):
                array[first:first + MERGE_PAIRS].astype(dtype).tofile(file)
        os.replace(folder / f"{name}.partial", folder / name)
    return int(counts.sum(dtype=np.uint64)), len(keys)
