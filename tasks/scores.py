"""scores.json from the rows of predictions.arrow: every column, order and control with its intervals.

scores.json  one row per column, order and control: metric, n, documents, value, low, high (95 %, bootstrap over documents;
             `method` wilson where all are wrong or all right), also (the same of every metric), errors (share of all items
             per class, see tasks/answer_errors.py), examples_per_second; with likelihoods asked, `likelihood`: the mean
             over the items that have one and its interval, n, and `per_token` [nats]. Rows of control `none` also hold
             `controls`, the two controls' scores, and `above_controls`, the paired difference on the same items: what is
             left above both is recall. Its difference and interval are those against the control that leaves less (the
             lower `low`).

The column `uncommon` repeats those items of `natural` whose value a guesser would not say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from storage.errors import ArtifactError
from storage.shards import RowTable
from tasks.answer_errors import CLASSES
from tasks.scoring import GRADED, METRICS
from tasks.scoring import metric as metric_of
from tasks.specs import EvaluateSpec
from tasks.statistics import bootstrap, paired


def score_rows(rows: Iterable[dict[str, Any]], spec: EvaluateSpec) -> list[dict[str, Any]]:
    """scores.json from the rows of predictions.arrow."""
    cells: dict[tuple[str, str, str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        columns = [row["column"]] + (["uncommon"] if row["column"] == "natural" and row["uncommon"] else [])
        for column in columns:
            cells.setdefault((row["task"], column, row["order"], row["control"]), {})[row["item"]] = row
    found = []
    for (task, column, order, control), items in cells.items():
        seconds = sum(row["seconds"] for row in items.values())
        score = {"task": task, "column": column, "order": order, "control": control, "strategy": spec.strategy,
                 "keep_out": spec.keep_out, **_interval(items, spec), **_beside(items, spec),
                 "examples_per_second": round(len(items) / seconds, 2) if seconds else None}
        if control == "none":
            beside = {name: cells[task, column, order, name] for name in ("empty", "other")
                      if (task, column, order, name) in cells}
            score["controls"] = {name: _interval(each, spec) for name, each in beside.items()}
            score["above_controls"] = _above(items, beside, spec)
        found.append(score)
    return found


def _interval(items: dict[str, dict[str, Any]], spec: EvaluateSpec, name: str = "correct") -> dict[str, Any]:
    return bootstrap([row[name] for row in items.values()], [row["document"] for row in items.values()],
                     resamples=spec.bootstrap, seed=spec.seed).as_dict()


def _beside(items: dict[str, dict[str, Any]], spec: EvaluateSpec) -> dict[str, Any]:
    """What stands beside the score: every metric, the classes of errors, the likelihood; each where the rows have it."""
    rows, found = list(items.values()), {}
    names = [name for name in METRICS if all(name in row for row in rows)]
    if names:
        found["also"] = {name: {key: value for key, value in _interval(items, spec, name).items()
                                if key in ("value", "low", "high")} for name in names}
    if all("error" in row for row in rows):
        found["errors"] = {each: sum(row["error"] == each for row in rows) / len(rows) for each in CLASSES}
    scored = {item: row for item, row in items.items() if math.isfinite(row.get("loglikelihood", math.nan))}
    if scored:
        interval = _interval(scored, spec, "loglikelihood")
        tokens = sum(row["answer_tokens"] for row in scored.values())
        found["likelihood"] = {**{key: interval[key] for key in ("value", "low", "high", "n")},
                               "per_token": sum(row["loglikelihood"] for row in scored.values()) / tokens}
    return found


def _above(items: dict[str, dict[str, Any]], beside: dict[str, dict[str, dict[str, Any]]],
           spec: EvaluateSpec) -> dict[str, Any] | None:
    """Paired differences against each control, and first of all the one that leaves less."""
    against = {}
    for name, control in beside.items():
        both = [item for item in items if item in control]
        against[name] = paired(
            [items[item]["correct"] for item in both], [control[item]["correct"] for item in both],
            [items[item]["document"] for item in both], resamples=spec.bootstrap, seed=spec.seed)
    if not against:
        return None
    name, least = min(against.items(), key=lambda pair: _order(pair[1]))
    return {"difference": least.value, "low": least.low, "high": least.high, "control": name,
            "against": {each: {"difference": found.value, "low": found.low, "high": found.high}
                        for each, found in against.items()}}


def _order(interval: Any) -> tuple[float, float]:
    return tuple(float("-inf") if x is None else x for x in (interval.low, interval.value))


def rescore(folder: str | Path, metric: str) -> list[dict[str, Any]]:
    """The rows of scores.json under this metric, from the predictions in the folder of a `scores` artifact: no model.

    A row's `metric` is the one asked for. `errors` are left out where the metric is not the one that told right from
    wrong when the predictions were made. Raises SpecError for an unknown metric, ArtifactError for a folder without scores.
    """
    folder, score = Path(folder), metric_of(metric)
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        before = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArtifactError(f"{folder} holds no {Path(error.filename).name}; give the folder of a scores artifact") from error
    rows = RowTable(folder / "predictions.arrow").table.to_pylist()
    for row in rows:
        row["correct"] = graded_or_not(metric, score(row["prediction"], row["answers"]))
    scores = score_rows(rows, EvaluateSpec(**manifest["spec"]))
    for row in scores:
        row["metric"] = metric
        if before and before[0]["metric"] != metric:
            row.pop("errors", None)
    return scores


def graded_or_not(metric: str, value: float) -> float | bool:
    """What stands in the column `correct`: a number for graded metrics, else true or false."""
    return value if metric in GRADED else value > 0
