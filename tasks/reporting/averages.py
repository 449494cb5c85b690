"""Averages over several evaluations: over the columns of a table, and over data sets.

JRT's Table 2 averages nine columns in which FDA, SWDE and NQ stand twice, at two document lengths, and SQuAD, TriviaQA and
DROP once: so three data sets count double. The average over data sets first takes the mean of each one's columns. Both are
shown. What is averaged was asked in the same way: strategy, template, examples, metric.

In that table prefix models read the document twice at the shorter length and everything else is read once; this mixture is
shown as an order of its own where a study has what it needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.reporting.compare import NONE, by_seed, stack
from tasks.reporting.gather import Answers, Gathered, Panel
from tasks.reporting.settings import Setting
from tasks.statistics import Interval

MIXED = "as in JRT Table 2"      # default, but prefix models read twice at the shorter length of a data set
LEVEL = 0.95


@dataclass(frozen=True)
class Average:
    """Of one architecture, over the columns and over the data sets of a group of evaluations asked alike."""

    workload: str
    architecture: str
    asked: Setting                 # without task and length
    order: str
    columns: Interval
    sets: Interval
    labels: tuple[str, ...]
    tasks: tuple[str, ...]


def averages(found: Gathered, groups: dict[Setting, list[Panel]], settings: dict[tuple[str, str], Setting],
             architectures: list[str], prefix: set[str], resamples: int, seed: int) -> list[Average]:
    """One `Average` per group of two panels or more, architecture and order that all of them were asked in.

    groups   how it was asked, without task and length -> its panels
    prefix   architectures that read a prefix both ways
    """
    rows = []
    for asked, panels in groups.items():
        for architecture in architectures:
            for order in _orders(found, panels, architecture) if len(panels) > 1 else ():
                chosen = {panel: by_seed(found, panel, architecture, order, NONE) for panel in panels}
                rows.append(_average(asked, architecture, order, chosen, settings, resamples, seed))
            if mixed := _mixed(found, panels, settings, architecture, prefix):
                rows.append(_average(asked, architecture, MIXED, mixed, settings, resamples, seed))
    return rows


def _orders(found: Gathered, panels: list[Panel], architecture: str) -> list[str]:
    """Orders that every panel has, in the order of the first one's."""
    asked = [[o for (name, _, o, control) in found.answers[panel] if (name, control) == (architecture, NONE)]
             for panel in panels]
    return [order for order in dict.fromkeys(asked[0]) if all(order in other for other in asked)]


def _mixed(found: Gathered, panels: list[Panel], settings: dict[tuple[str, str], Setting], architecture: str,
           prefix: set[str]) -> dict[Panel, dict[int, Answers]] | None:
    """The mixture of Table 2; None without a data set at two lengths, a prefix model, or both orders."""
    lengths: dict[str, set[int]] = {}
    for panel in panels:
        one = settings[panel.workload, panel.task]
        lengths.setdefault(one.task, set()).add(one.document_tokens)
    if not prefix or all(len(each) < 2 for each in lengths.values()):
        return None
    chosen = {}
    for panel in panels:
        one = settings[panel.workload, panel.task]
        short = len(lengths[one.task]) > 1 and one.document_tokens == min(lengths[one.task])
        answers = by_seed(found, panel, architecture, "twice" if short and architecture in prefix else "default", NONE)
        if not answers:
            return None
        chosen[panel] = answers
    return chosen


def _average(asked: Setting, architecture: str, order: str, chosen: dict[Panel, dict[int, Answers]],
             settings: dict[tuple[str, str], Setting], resamples: int, seed: int) -> Average:
    tasks = [settings[panel.workload, panel.task].task for panel in chosen]
    per_column = np.array([1.0 / len(tasks)] * len(tasks))
    per_set = np.array([1.0 / (len(set(tasks)) * tasks.count(task)) for task in tasks])
    points, draws = _resampled(list(chosen.values()), tasks, resamples, seed)
    n = sum(next(iter(one.values())).items_N.size for one in chosen.values())
    seeds = min(len(one) for one in chosen.values())
    return Average(next(iter(chosen)).workload, architecture, asked, order,
                   _interval(points, draws, per_column, n, seeds), _interval(points, draws, per_set, n, seeds),
                   tuple(panel.task for panel in chosen), tuple(dict.fromkeys(tasks)))


def _interval(points_C: np.ndarray, draws_RC: np.ndarray, weights_C: np.ndarray, n: int, seeds: int) -> Interval:
    low, high = np.quantile(draws_RC @ weights_C, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(points_C @ weights_C), float(low), float(high), n, 0, seeds)


def _resampled(columns: list[dict[int, Answers]], tasks: list[str], resamples: int,
               seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Score of each column [C], and on every resample [R, C]. Columns of one data set share the drawn documents, since
    they ask about the same ones, and one that has none of them keeps its mean; all share the drawn training seeds."""
    generator = np.random.default_rng(seed)
    seeds = sorted(set.intersection(*(set(column) for column in columns)))
    drawn_RS = generator.integers(0, len(seeds), (resamples, len(seeds)))
    points, draws = np.empty(len(columns)), np.empty((resamples, len(columns)))
    stacked = [stack({one: column[one] for one in seeds}) for column in columns]
    for task in dict.fromkeys(tasks):
        own = [number for number, name in enumerate(tasks) if name == task]
        names = np.unique(np.concatenate([stacked[number][1] for number in own]))
        index_RD = generator.integers(0, names.size, (resamples, names.size))
        for number in own:
            values_SN, documents_N = stacked[number]
            place_N = np.searchsorted(names, documents_N)
            count_D = np.bincount(place_N, minlength=names.size)
            sum_SD = np.stack([np.bincount(place_N, weights=row, minlength=names.size) for row in values_SN])
            items_R1 = count_D[index_RD].sum(1)[:, None]
            sum_RS = np.stack([row[index_RD].sum(1) for row in sum_SD], 1)
            mean_RS = np.where(items_R1 > 0, sum_RS / np.maximum(items_R1, 1), values_SN.mean(1))
            points[number] = values_SN.mean()
            draws[:, number] = np.take_along_axis(mean_RS, drawn_RS, 1).mean(1)
    return points, draws
