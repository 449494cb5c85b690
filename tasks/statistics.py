"""Intervals for scores: percentile bootstraps over documents, paired over items, and over seeds and documents.

Items of one document are not independent, so documents are resampled, never items; a resample's score is the mean over
all its items, as the score itself is. Systems that answered the same prompts are compared by the paired form, which
draws the same documents for both. A statement about an architecture resamples seeds as well; seeds and documents are
crossed (every seed answers every document), so one draw of documents serves all drawn seeds.

The percentile interval of n equal values has no width, whatever n is: a score of 0 out of 20 shows [0, 0]. Read n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from storage.errors import SpecError

CELLS = 4_000_000          # resampled documents held at once
SEEDS_FOR_A_CLAIM = 3      # below that a figure is about the checkpoints at hand


@dataclass(frozen=True)
class Interval:
    """A mean or a difference of means with its interval. What cannot be computed is None, and `reason` says why."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    documents: int
    seeds: int = 1
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `seeds` and `reason` only where they say something."""
        row = asdict(self)
        if self.seeds == 1:
            del row["seeds"]
        if self.reason is None:
            del row["reason"]
        return row


def bootstrap(values_N: Sequence[float], documents_N: Sequence[Any], *, resamples: int = 2000, seed: int = 0,
              level: float = 0.95) -> Interval:
    """Mean of `values_N` and its interval; `documents_N` names the document of each item.

    Args:
        resamples: draws of the documents, with replacement, as many as there are.
        level: share of the resampled means inside the interval.
    """
    return _interval([np.asarray(values_N, np.float64)[None]], documents_N, resamples, seed, level)


def paired(a_N: Sequence[float], b_N: Sequence[float], documents_N: Sequence[Any], *, resamples: int = 2000,
           seed: int = 0, level: float = 0.95) -> Interval:
    """Mean of a − b over the same items, in the same order in both, and its interval."""
    a_N, b_N = np.asarray(a_N, np.float64), np.asarray(b_N, np.float64)
    if a_N.shape != b_N.shape:
        raise SpecError(f"a paired comparison needs the same items: {a_N.size} against {b_N.size}; "
                        "keep the items that both systems answered, in one order")
    return bootstrap(a_N - b_N, documents_N, resamples=resamples, seed=seed, level=level)


def hierarchical(values_SN: Sequence[Sequence[float]], documents_N: Sequence[Any], *,
                 minus_SN: Sequence[Sequence[float]] | None = None, resamples: int = 2000, seed: int = 0,
                 level: float = 0.95) -> Interval:
    """Mean over seeds (rows) and items (columns) with both resampled; with `minus_SN` the difference of two systems.

    The two systems' seeds are drawn separately (a seed means nothing across architectures), their documents together.
    Fewer than three seeds give the figures and a `reason` that says what they are about.
    """
    groups = [np.atleast_2d(np.asarray(group, np.float64)) for group in (values_SN, minus_SN) if group is not None]
    return _interval(groups, documents_N, resamples, seed, level)


def _interval(groups: list[np.ndarray], documents_N: Sequence[Any], resamples: int, seed: int,
              level: float) -> Interval:
    """The one computation behind all three: `groups` holds one array [seeds, items], or two to be subtracted."""
    names_N = np.asarray(list(documents_N))
    seeds = min(group.shape[0] for group in groups)
    n = names_N.size
    _check(groups, n, resamples, level)
    if n == 0 or seeds == 0:
        return Interval(None, None, None, 0, 0, seeds, "no items")
    _, index_N = np.unique(names_N, return_inverse=True)
    count_D = np.bincount(index_N).astype(np.float64)
    sums = [np.stack([np.bincount(index_N, weights=row) for row in group]) for group in groups]      # [S, D] each
    signs = (1.0, -1.0)
    value = float(sum(sign * total.sum() / (total.shape[0] * n) for sign, total in zip(signs, sums)))
    if count_D.size == 1 and seeds == 1:
        return Interval(value, None, None, n, 1, seeds, "one document: nothing to resample")
    means = _resampled(sums, count_D, resamples, seed)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    many = any(group.shape[0] > 1 for group in groups)
    reason = f"{seeds} seeds: about these checkpoints, not an architecture" if many and seeds < SEEDS_FOR_A_CLAIM else None
    return Interval(value, float(low), float(high), n, count_D.size, seeds, reason)


def _resampled(sums: list[np.ndarray], count_D: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """The statistic on every resample, in pieces of at most CELLS drawn documents."""
    generator = np.random.default_rng(seed)
    documents = count_D.size
    out = np.empty(resamples)
    piece = max(1, CELLS // documents)
    for start in range(0, resamples, piece):
        rows = min(piece, resamples - start)
        index_RD = generator.integers(0, documents, (rows, documents))
        items_R = count_D[index_RD].sum(1)
        total_R = np.zeros(rows)
        for sign, sum_SD in zip((1.0, -1.0), sums):
            mean_SR = np.stack([sum_D[index_RD].sum(1) for sum_D in sum_SD]) / items_R
            drawn_RS = generator.integers(0, len(sum_SD), (rows, len(sum_SD)))
            total_R += sign * np.take_along_axis(mean_SR.T, drawn_RS, 1).mean(1)
        out[start:start + rows] = total_R
    return out


def _check(groups: list[np.ndarray], n: int, resamples: int, level: float) -> None:
    for group in groups:
        if group.ndim != 2 or group.shape[1] != n:
            raise SpecError(f"values of shape {group.shape} for {n} document names: one name per item is needed")
        if not np.isfinite(group).all():
            raise SpecError("a score is NaN or infinite; a missing answer counts 0, it is not left out")
    if resamples < 1 or not 0 < level < 1:
        raise SpecError(f"resamples {resamples} must be at least 1 and level {level} lie between 0 and 1")
