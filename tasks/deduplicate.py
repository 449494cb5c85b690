"""Exact and near-duplicate removal, deterministic, in one pass over the documents.

Documents are compared as sequences of words in lower case with every digit read as 0. Two are exact duplicates when
those sequences are equal, and near-duplicates when the Jaccard similarity of their sets of 5-word shingles reaches a
threshold. A document goes if an earlier one that stays is its duplicate: the first always stays.

Candidates are found by MinHash signatures cut into bands (Broder 1997; the number of rows a band is chosen so that a
pair right at the threshold is missed less than once in a thousand), then compared by their true Jaccard similarity.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.parallel import parallel_map

SHINGLE_WORDS = 5
PERMUTATIONS = 120
CHUNK = 512                                # documents a piece of parallel work
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_ROLL = np.uint64(0x9E3779B97F4A7C15)      # odd, so that every word of a shingle counts in its place
_ROLLS = np.array([pow(int(_ROLL), k, 1 << 64) for k in range(SHINGLE_WORDS)], dtype=np.uint64)


@dataclass(frozen=True)
class Unique:
    """Which documents stay (ascending indices), and how many went for which reason."""

    kept: list[int]
    exact: int
    near: int


def deduplicate(texts: Sequence[str], threshold: float = 0.8) -> Unique:
    """Keep the first of all duplicates. `threshold` is the Jaccard similarity from which two are near-duplicates."""
    chunks = [texts[k : k + CHUNK] for k in range(0, len(texts), CHUNK)]
    sketches = list(parallel_map(_sketch, chunks, describe="sketch documents"))
    first, candidates = {}, []
    for index, digest in enumerate(digest for digests, _ in sketches for digest in digests):
        if first.setdefault(digest, index) == index:
            candidates.append(index)
    signatures = np.concatenate([found for _, found in sketches]) if sketches else np.zeros((0, PERMUTATIONS), dtype=np.uint32)
    kept = _keep_dissimilar(texts, candidates, signatures, threshold)
    return Unique(kept, exact=len(texts) - len(candidates), near=len(candidates) - len(kept))


def words(text: str) -> list[bytes]:
    """The folded words of a text."""
    return text.lower().encode("utf-8", "surrogatepass").translate(_DIGITS).split()


def shingles(text: str) -> np.ndarray:
    """The sorted distinct 64-bit hashes of all runs of 5 folded words; a shorter text is one shingle."""
    return np.unique(_shingles(words(text)))


def jaccard(one_S: np.ndarray, other_S: np.ndarray) -> float:
    """Similarity of two sorted sets of hashes."""
    common = len(np.intersect1d(one_S, other_S, assume_unique=True))
    return common / (len(one_S) + len(other_S) - common)


def bands_for(threshold: float) -> tuple[int, int]:
    """(bands, rows a band): the most rows with which a pair at the threshold is still found 999 times in 1000."""
    for rows in range(12, 1, -1):
        bands = PERMUTATIONS // rows
        if (1 - threshold**rows) ** bands < 1e-3:
            return bands, rows
    return PERMUTATIONS, 1


def _keep_dissimilar(texts: Sequence[str], candidates: list[int], signatures: np.ndarray, threshold: float) -> list[int]:
    """Greedy pass: buckets hold only documents that stay, so families of near-duplicates never grow a bucket."""
    bands, rows = bands_for(threshold)
    keys = _band_keys(signatures, bands, rows)
    buckets: list[dict[int, list[int]]] = [{} for _ in range(bands)]
    set_of = functools.lru_cache(maxsize=4096)(lambda index: shingles(texts[index]))
    slack = 5 * np.sqrt(threshold * (1 - threshold) / PERMUTATIONS)    # five standard errors of the estimate
    kept = []
    for index in candidates:
        row = keys[index].tolist()
        near = sorted({other for bucket, key in zip(buckets, row) for other in bucket.get(key, ())})
        if near:
            alike = (signatures[near] == signatures[index]).mean(axis=1)
            near = [other for other, share in zip(near, alike) if share >= threshold - slack]
        if any(jaccard(set_of(other), set_of(index)) >= threshold for other in near):
            continue
        kept.append(index)
        for bucket, key in zip(buckets, row):
            bucket.setdefault(key, []).append(index)
    return kept


def _sketch(texts: Sequence[str]) -> tuple[list[bytes], np.ndarray]:
    """Digest of the folded words and MinHash signature, uint32 [documents, PERMUTATIONS], of each text."""
    folded = [words(text) for text in texts]
    digests = [hashlib.blake2b(b" ".join(found), digest_size=16).digest() for found in folded]
    hashes = [_shingles(found) for found in folded]
    x_S = np.concatenate(hashes)
    starts = np.cumsum([0, *(len(found) for found in hashes[:-1])])
    signatures = np.empty((len(texts), PERMUTATIONS), dtype=np.uint32)
    product = np.empty_like(x_S)
    for k, (factor, offset) in enumerate(_permutations()):
        np.multiply(x_S, factor, out=product)
        np.add(product, offset, out=product)
        signatures[:, k] = np.minimum.reduceat(product, starts) >> np.uint64(32)
    return digests, signatures


def _shingles(found: list[bytes]) -> np.ndarray:
    """64-bit hashes of all runs of 5 words, in order, repeats included."""
    x_W = np.fromiter(map(_word_hash, found), dtype=np.uint64, count=len(found))
    if len(x_W) < SHINGLE_WORDS:
        x_W = np.concatenate([x_W, np.zeros(SHINGLE_WORDS - len(x_W), dtype=np.uint64)])
    count = len(x_W) - SHINGLE_WORDS + 1
    x_S = sum(x_W[k : k + count] * _ROLLS[k] for k in range(SHINGLE_WORDS))
    return _mix(x_S)


@functools.lru_cache(maxsize=1 << 20)
def _word_hash(word: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(word, digest_size=8).digest(), "little")


def _mix(x: np.ndarray) -> np.ndarray:
    """Spread every bit over all bits (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@functools.cache
def _permutations() -> list[tuple[np.uint64, np.uint64]]:
    draws = np.random.Generator(np.random.Philox(key=0)).integers(0, 1 << 64, (PERMUTATIONS, 2), dtype=np.uint64)
    return [(factor | np.uint64(1), offset) for factor, offset in draws]


def _band_keys(signatures: np.ndarray, bands: int, rows: int) -> np.ndarray:
    """uint64 [documents, bands]: equal where two documents agree in all rows of a band."""
    parts = signatures[:, : bands * rows].reshape(len(signatures), bands, rows)
    keys = np.zeros(parts.shape[:2], dtype=np.uint64)
    for k in range(rows):
        keys = _mix(keys * _ROLL + parts[:, :, k])
    return keys
