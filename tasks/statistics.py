"""Intervals for scores: percentile bootstraps over documents, paired over items, and over seeds and documents.

Items of one document are not independent, so documents are resampled, never items; a resample's score is the mean over
all its items, as the score itself is. Systems that answered the same prompts are compared by the paired form, which
draws the same documents for both. A statement about an architecture resamples seeds as well; seeds and documents are
crossed (every seed answers every document), so one draw of documents serves all drawn seeds.

The percentile interval of n equal values has no width, whatever n is. For a share of 0 or 1 (nothing right, everything
right) the Wilson score interval over the documents is given instead, with `method` "wilson": 0 of 20 documents is
[0, 0.161]. It stands for nothing else: a difference that is 0 on every item keeps [0, 0], so read n there.

`compare` is the paired form between any two runs over the same prompts, as their artifacts lie on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from storage.errors import SpecError
from storage.shards import RowTable
from tasks.scoring import metric as metric_of

CELLS = 4_000_000          # resampled documents held at once
SEEDS_FOR_A_CLAIM = 3      # below that a figure is about the checkpoints at hand
NAMED = 3                  # prompts named where two runs differ


@dataclass(frozen=True)
class Interval:
    """A mean or a difference of means with its interval. What cannot be computed is None, and `reason` says why.

    method: `bootstrap`, or `wilson` where every value is 0 or every value is 1.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    documents: int
    seeds: int = 1
    reason: str | None = None
    method: str = "bootstrap"

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `seeds`, `reason` and `method` only where they say something."""
        row = asdict(self)
        if self.seeds == 1:
            del row["seeds"]
        if self.reason is None:
            del row["reason"]
        if self.method == "bootstrap":
            del row["method"]
        return row


def bootstrap(values_N: Sequence[float], documents_N: Sequence[Any], *, resamples: int = 2000, seed: int = 0,
              level: float = 0.95) -> Interval:
    """Mean of `values_N` and its interval; `documents_N` names the document of each item.

    Args:
        resamples: draws of the documents, with replacement, as many as there are.
        level: share of the resampled means inside the interval.
    """
    return _interval([np.asarray(values_N, np.float64)[None]], documents_N, resamples, seed, level, share=True)


def paired(a_N: Sequence[float], b_N: Sequence[float], documents_N: Sequence[Any], *, resamples: int = 2000,
           seed: int = 0, level: float = 0.95) -> Interval:
    """Mean of a − b over the same items, in the same order in both, and its interval."""
    a_N, b_N = np.asarray(a_N, np.float64), np.asarray(b_N, np.float64)
    if a_N.shape != b_N.shape:
        raise SpecError(f"a paired comparison needs the same items: {a_N.size} against {b_N.size}; "
                        "keep the items that both systems answered, in one order")
    return _interval([(a_N - b_N)[None]], documents_N, resamples, seed, level, share=False)


def hierarchical(values_SN: Sequence[Sequence[float]], documents_N: Sequence[Any], *,
                 minus_SN: Sequence[Sequence[float]] | None = None, share: bool = False, resamples: int = 2000,
                 seed: int = 0, level: float = 0.95) -> Interval:
    """Mean over seeds (rows) and items (columns) with both resampled; with `minus_SN` the difference of two systems.

    `share` says that the values are scores, not differences taken before: only then can all 0 mean 0 of n.

    The two systems' seeds are drawn separately (a seed means nothing across architectures), their documents together.
    Fewer than three seeds give the figures and a `reason` that says what they are about.
    """
    groups = [np.atleast_2d(np.asarray(group, np.float64)) for group in (values_SN, minus_SN) if group is not None]
    return _interval(groups, documents_N, resamples, seed, level, share=share and minus_SN is None)


def _interval(groups: list[np.ndarray], documents_N: Sequence[Any], resamples: int, seed: int, level: float,
              share: bool) -> Interval:
    """The one computation behind all three: `groups` holds one array [seeds, items], or two to be subtracted.

    share: these are values from 0 to 1 and no differences, so that all 0 or all 1 calls for Wilson's interval.
    """
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
    if share and value in (0.0, 1.0) and ((groups[0] == value).all()):
        return Interval(value, *wilson(value, count_D.size, level), n, count_D.size, seeds, method="wilson")
    means = _resampled(sums, count_D, resamples, seed)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    many = any(group.shape[0] > 1 for group in groups)
    reason = f"{seeds} seeds: about these checkpoints, not an architecture" if many and seeds < SEEDS_FOR_A_CLAIM else None
    return Interval(value, float(low), float(high), n, count_D.size, seeds, reason)


def wilson(share: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Score interval of a share of n independent trials (Wilson 1927)."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)


def compare(a: str | Path, b: str | Path, metric: str = "contains", *, resamples: int = 2000, seed: int = 0,
            level: float = 0.95) -> list[dict[str, Any]]:
    """Paired differences a − b of two runs over the same prompts: one row per task, column, order and control.

    a, b    folders of `scores` artifacts; the metric is computed from their predictions
    A row holds {task, column, order, control, metric, a, b, difference, low, high, n, documents}. Raises SpecError where
    the runs were not asked the same, naming what only one of them has, or whose prompt reads differently.
    """
    score = metric_of(metric)
    first, second = (_asked(Path(folder)) for folder in (a, b))
    _check_same(first, second, Path(a), Path(b))
    cells: dict[tuple[str, ...], list[tuple[float, float, str]]] = {}
    for key, mine in first.items():
        values = (score(each["prediction"], each["answers"]) for each in (mine, second[key]))
        cells.setdefault(key[1:], []).append((*values, mine["document"]))
    rows = []
    for (task, column, order, control), items in cells.items():
        a_N, b_N, documents_N = zip(*items)
        gap = paired(a_N, b_N, documents_N, resamples=resamples, seed=seed, level=level).as_dict()
        rows.append({"task": task, "column": column, "order": order, "control": control, "metric": metric,
                     "a": float(np.mean(a_N)), "b": float(np.mean(b_N)), "difference": gap.pop("value"), **gap})
    return rows


def _asked(folder: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """(item, task, column, order, control) -> row of predictions.arrow. SpecError where one was asked twice."""
    asked: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in RowTable(folder / "predictions.arrow").table.to_pylist():
        key = tuple(row[name] for name in ("item", "task", "column", "order", "control"))
        if key in asked:
            raise SpecError(f"{folder.name} answers {', '.join(key)} (item, task, column, order, control) more than once, so "
                            "it cannot be paired; evaluate prompts whose items have names of their own")
        asked[key] = row
    return asked


def _check_same(first: dict[tuple[str, ...], dict[str, Any]], second: dict[tuple[str, ...], dict[str, Any]], a: Path,
                b: Path) -> None:
    for here, there, only, without in ((first, second, a, b), (second, first, b, a)):
        missing = [key for key in here if key not in there]
        if missing:
            named = "; ".join(", ".join(key) for key in missing[:NAMED])
            raise SpecError(f"the runs were not asked the same: {len(missing)} of {len(here)} prompts of {only.name} are not "
                            f"in {without.name} (item, task, column, order, control: {named}); compare scores of one "
                            "prompts artifact")
    for what in ("prompt", "answers"):
        other = [key for key, row in first.items() if row[what] != second[key][what]]
        if other:
            named = "; ".join(", ".join(key) for key in other[:NAMED])
            raise SpecError(f"the runs were not asked the same: {len(other)} of {len(first)} items of {a.name} and {b.name} "
                            f"have another {what} ({named}); compare scores of one prompts artifact")


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
