"""One number for a suite of evaluations, and its paired difference between two models.

The number is the mean over all columns of all evaluations in one order of each, every column counting the same,
whatever its number of items. `uncommon` is no column of its own: it repeats items of `natural`. Documents are resampled
within their task, as many as it has; one that two evaluations of a task ask about is one document. In a resample a column
is divided by the items that it has there, and keeps its own mean where none of its documents was drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.errors import SpecError
from storage.shards import RowTable
from tasks.statistics import Interval, bootstrap

CONTROLS = ("empty", "other")
RESAMPLES, LEVEL = 2000, 0.95


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
    return _interval(items, [item.value for item in items.values()], share=True)


def difference(a: Parts, b: Parts) -> Interval:
    """a − b over the same prompts.

    :raises SpecError: they were not asked the same
    """
    first, second = _items(a), _items(b)
    if set(first) != set(second) or any(second[key].prompt != item.prompt for key, item in first.items()):
        raise SpecError("the two were not asked the same prompts")
    return _interval(first, [item.value - second[key].value for key, item in first.items()])


def above_controls(parts: Parts) -> Interval | None:
    """What is left of the suite's number above its controls: the difference to the control that leaves less (the lower
    `low`), on the items that have it. None where no evaluation has controls."""
    items, found = _items(parts), []
    for control in CONTROLS:
        other = _items(parts, control)
        both = {key: item for key, item in items.items() if key in other}
        if both:
            found.append(_interval(both, [item.value - other[key].value for key, item in both.items()]))
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


def _interval(items: Items, values: Sequence[float], share: bool = False) -> Interval:
    """Mean over columns of their means. share: of values from 0 to 1, so that all 0 or all 1 has Wilson's interval."""
    values_N = np.asarray(values, np.float64)
    if not items or share and (values_N == values_N[0]).all():
        return bootstrap(values_N, ["/".join(item.document) for item in items.values()])
    columns, column_N = _numbered([key[:2] for key in items])
    documents, document_N = _numbered([item.document for item in items.values()])
    sum_DC, count_DC = np.zeros((2, len(documents), len(columns)))
    np.add.at(sum_DC, (document_N, column_N), values_N)
    np.add.at(count_DC, (document_N, column_N), 1.0)
    point_C = sum_DC.sum(0) / count_DC.sum(0)
    if len(documents) == 1:
        return Interval(float(point_C.mean()), None, None, len(items), 1, reason="one document: nothing to resample")
    drawn_RD = _drawn_RD([task for task, _ in documents])
    items_RC = drawn_RD @ count_DC
    mean_RC = np.where(items_RC > 0, drawn_RD @ sum_DC / np.maximum(items_RC, 1.0), point_C)
    low, high = np.quantile(mean_RC.mean(1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(point_C.mean()), float(low), float(high), len(items), len(documents))


def _drawn_RD(tasks: Sequence[str]) -> np.ndarray:
    """How often each document is in each resample: as many of every task as it has documents, with replacement."""
    generator, drawn_RD = np.random.default_rng(0), np.empty((RESAMPLES, len(tasks)))
    for task in dict.fromkeys(tasks):
        own = [number for number, name in enumerate(tasks) if name == task]
        drawn_RD[:, own] = generator.multinomial(len(own), np.full(len(own), 1 / len(own)), RESAMPLES)
    return drawn_RD


def _numbered(names: Sequence[tuple[str, str]]) -> tuple[list[tuple[str, str]], list[int]]:
    """The different ones, sorted, and which of them each is."""
    different = sorted(set(names))
    place = {name: number for number, name in enumerate(different)}
    return different, [place[name] for name in names]
