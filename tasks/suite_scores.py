"""One number for a suite of evaluations, and its paired difference between two models.

The number is the mean over all columns of all evaluations in one order of each, every column counting the same,
whatever its number of items. `uncommon` is no column of its own: it repeats items of `natural`. Documents are resampled,
those of one task together: a document that two evaluations of a task ask about is one document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from storage.errors import SpecError
from storage.shards import RowTable
from tasks.statistics import Interval, bootstrap, paired

CONTROLS = ("empty", "other")


@dataclass(frozen=True)
class Part:
    """The answers of one evaluation that count: the folder of its `scores` artifact, and the order."""

    folder: Path
    order: str


@dataclass(frozen=True)
class Item:
    """One answer."""

    value: float
    prompt: str             # hash of its text
    document: tuple[str, str]


Parts = Mapping[str, Part]                          # label of the evaluation -> its answers
Items = dict[tuple[str, str, str, int], Item]       # (label, column, item, which time it was asked)


def mean(parts: Parts) -> Interval:
    """The suite's number and its interval."""
    items = _items(parts)
    raw_N = np.array([item.value for item in items.values()])
    same = bool(len(raw_N)) and bool((raw_N == raw_N[0]).all())         # all right or all wrong: Wilson's interval
    values_N = raw_N if same else raw_N * _weights_N(list(items))
    return _within(bootstrap(values_N, _documents(items)), 0.0)


def difference(a: Parts, b: Parts) -> Interval:
    """a − b over the same prompts.

    :raises SpecError: they were not asked the same
    """
    first, second = _items(a), _items(b)
    if set(first) != set(second) or any(second[key].prompt != item.prompt for key, item in first.items()):
        raise SpecError("the two were not asked the same prompts")
    weights_N = _weights_N(list(first))
    return _within(paired(np.array([first[key].value for key in first]) * weights_N,
                          np.array([second[key].value for key in first]) * weights_N, _documents(first)), -1.0)


def above_controls(parts: Parts) -> Interval | None:
    """What is left of the suite's number above its controls: the difference to the control that leaves less (the lower
    `low`), on the items that have it. None where no evaluation has controls."""
    items, found = _items(parts), []
    for control in CONTROLS:
        other = _items(parts, control)
        both = {key: item for key, item in items.items() if key in other}
        if both:
            weights_N = _weights_N(list(both))
            found.append(paired(np.array([items[key].value for key in both]) * weights_N,
                                np.array([other[key].value for key in both]) * weights_N, _documents(both)))
    return min(found, key=lambda one: float("-inf") if one.low is None else one.low, default=None)


def _items(parts: Parts, control: str = "none") -> Items:
    found: Items = {}
    times: Counter = Counter()
    for label, part in parts.items():
        table = RowTable(part.folder / "predictions.arrow").table
        names = ("item", "document", "task", "column", "order", "control", "correct", "prompt")
        for row in table.select(names).to_pylist():
            if row["order"] == part.order and row["control"] == control:
                key = (label, row["column"], row["item"])
                found[*key, times[key]] = Item(
                    float(row["correct"]), row["prompt"], (row["task"], row["document"]))
                times[key] += 1
    return found


def _weights_N(keys: Sequence[tuple[str, str, str, int]]) -> np.ndarray:
    """So that the plain mean of weighted values is the mean over columns: N / (columns · items of the own column)."""
    sizes = Counter(key[:2] for key in keys)
    return np.array([len(keys) / (len(sizes) * sizes[key[:2]]) for key in keys])


def _within(gap: Interval, lowest: float) -> Interval:
    """Resampled documents have other shares of the columns than the weights are for, which can lead past what there is."""
    if gap.low is None or gap.high is None:
        return gap
    return replace(gap, low=max(lowest, gap.low), high=min(1.0, gap.high))


def _documents(items: Items) -> list[str]:
    return ["/".join(item.document) for item in items.values()]
