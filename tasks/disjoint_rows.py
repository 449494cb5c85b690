"""Set intersection: two sets with exactly one element in common, which is the answer (JRT Algorithm 1).

    [1] A… [2] B… [3] answer        ids 0 to 3 are special, 4 to V-1 content

A is drawn from one half of the content and B from the other, then one element of A is written over a place in B. With
A the small set ("small_first") a reader can keep it and watch for it in B; with A the large one it has to keep much
more, unless it reads twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from storage.errors import SpecError
from tasks.draws import generator
from tasks.specs import DisjointRowsSpec

FIRST, SECOND, ANSWER, CONTENT = 1, 2, 3, 4


@dataclass(frozen=True)
class DisjointBatch:
    """Rows of one size pair and order: ids [rows, |A|+|B|+4]; the last id of a row is its answer."""

    ids_BN: np.ndarray
    order: str
    sizes: str

    @property
    def prefix(self) -> int:
        """Tokens before the answer; the slot that predicts it is the last of them."""
        return self.ids_BN.shape[1] - 1


def check(spec: DisjointRowsSpec) -> None:
    """Raise SpecError for sets that the two halves of the content cannot fill."""
    half = spec.vocabulary // 2
    room = min(half, spec.vocabulary - CONTENT - half)
    for small, large in spec.sizes:
        if not 1 <= small <= large:
            raise SpecError(f"sizes ({small}, {large}): give (small, large) with 1 <= small <= large")
        if large > room:
            raise SpecError(f"sizes ({small}, {large}): vocabulary {spec.vocabulary} leaves {room} ids for each set; "
                            f"use a vocabulary of at least {2 * (large + CONTENT)}")


def disjoint(draw: np.random.Generator, count: int, first: int, second: int, vocabulary: int) -> np.ndarray:
    """`count` sequences with |A| = first and |B| = second: ids [count, first + second + 4]."""
    half = vocabulary // 2
    ids_BE = CONTENT + np.argsort(draw.random((count, vocabulary - CONTENT)), axis=1)
    a_BN, b_BN = ids_BE[:, :first], ids_BE[:, half : half + second]
    rows = np.arange(count)
    answer_B = a_BN[rows, draw.integers(first, size=count)]
    b_BN = b_BN.copy()
    b_BN[rows, draw.integers(second, size=count)] = answer_B
    return _sequences(a_BN, b_BN, answer_B)


def disjoint_released(seed: int, count: int, first: int, second: int, vocabulary: int) -> np.ndarray:
    """The same from numpy's legacy generator in the order of draws of the released code, bit for bit."""
    draw = np.random.RandomState(seed)
    half = vocabulary // 2
    a_BN, b_BN = np.empty((count, first), dtype=np.int64), np.empty((count, second), dtype=np.int64)
    answer_B = np.empty(count, dtype=np.int64)
    for row in range(count):
        content = draw.permutation(np.arange(CONTENT, vocabulary))
        a_BN[row] = draw.choice(content[:half], first, replace=False)
        b_BN[row] = draw.choice(content[half:], second, replace=False)
        answer_B[row] = draw.choice(a_BN[row])
        b_BN[row, draw.randint(second)] = answer_B[row]
    return _sequences(a_BN, b_BN, answer_B)


def batches(spec: DisjointRowsSpec) -> Iterator[DisjointBatch]:
    """All training batches. Sizes come in one by one over the first `curriculum` of them, small pairs first."""
    check(spec)
    pairs = len(spec.sizes)
    for number in range(spec.batches):
        draw = generator(spec.seed, number, "row")
        progress = number / spec.batches
        open_pairs = pairs if progress >= spec.curriculum else 1 + int(progress / spec.curriculum * pairs)
        small, large = spec.sizes[int(draw.integers(open_pairs))]
        yield _batch(draw, small, large, bool(draw.integers(2)), spec)


def validation_batches(spec: DisjointRowsSpec) -> Iterator[DisjointBatch]:
    """One batch of each size pair in each order."""
    for number, (small, large) in enumerate(spec.sizes):
        for swap in (False, True):
            yield _batch(generator(spec.seed, 2 * number + swap, "validation batch"), small, large, swap, spec)


def _batch(draw: np.random.Generator, small: int, large: int, large_first: bool, spec: DisjointRowsSpec) -> DisjointBatch:
    first, second = (large, small) if large_first else (small, large)
    count = max(1, spec.batch_tokens // (first + second + 4))
    return DisjointBatch(disjoint(draw, count, first, second, spec.vocabulary),
                         "large_first" if large_first else "small_first", f"{first}|{second}")


def _sequences(a_BN: np.ndarray, b_BN: np.ndarray, answer_B: np.ndarray) -> np.ndarray:
    def column(value: int) -> np.ndarray:
        return np.full((len(answer_B), 1), value)

    return np.concatenate([column(FIRST), a_BN, column(SECOND), b_BN, column(ANSWER), answer_B[:, None]], axis=1)
