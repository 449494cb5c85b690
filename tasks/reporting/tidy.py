"""The numbers of a study as tidy tables: one fact a row, one name a column, intervals as `low` and `high`, nothing rounded.

Beside the report's tables, which are for reading, these are for computing with. Tables whose rows are about one checkpoint
have `seed` and `artifact`, those over several seeds `seeds`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tasks.reporting.gather import Measured
from tasks.reporting.render import Report
from tasks.statistics import Interval

Rows = list[dict[str, Any]]
ABOUT = {
    "recall": "share of right answers by architecture and order, over all seeds, with both controls",
    "scores": "the same of each checkpoint alone, the controls' own rows too",
    "metrics": "every metric of the same answers, by checkpoint",
    "errors": "share of all answers in each class of errors, by checkpoint",
    "differences": "paired differences, first minus second; holds: still after Holm's correction over all of them",
    "averages": "averages over columns and over data sets",
    "training": "each checkpoint: size, budget, speed, loss",
    "curves": "training curves, by step and by tokens",
    "sweeps": "every trial of a sweep, and which was chosen",
    "perplexity": "loss of reading by slice of tokens", "extrapolation": "loss of reading by length",
    "deploy": "time and state of serving by input length", "timings": "times of operations on this machine",
    "rejected": "records that could not be used, by reason", "data": "counts of corpora and training rows",
}
MEASURED = {"perplexity": "perplexities", "extrapolation": "extrapolations", "deploy": "deploys"}


def tidy(report: Report, results: dict[str, Any]) -> dict[str, Rows]:
    """Name -> rows, of `ABOUT`'s names those that have any. results: the artifacts, as `tasks.report.run` takes them."""
    workloads = results["workloads"]
    found = {"recall": list(_recall(report)), "scores": [], "metrics": [], "errors": [], "differences": list(_differences(report)),
             "averages": list(_averages(report)), "training": list(_training(report)), "curves": [], "sweeps": list(_sweeps(report)),
             "timings": [_plain(row) for row in report.found.timings],
             "rejected": [vars(one) for one in report.found.rejected],
             "data": [{"workload": workload, "role": role, "artifact": workloads[workload].get(role), "count": name, "value": value}
                      for workload, parts in report.found.data.items() for role, counts in parts.items()
                      for name, value in _plain(counts).items()]}
    for row in report.found.scores:
        key = {"workload": row["workload"], "label": row["label"], "architecture": row["architecture"], "seed": row["seed"],
               **{name: row.get(name) for name in ("task", "column", "order", "control", "strategy")}}
        end = {"artifact": workloads[row["workload"]]["scores"].get(f"{row['architecture']}/{row['seed']}/{row['label']}")}
        n = {"n": row.get("n"), "documents": row.get("documents")}
        found["scores"].append({**key, "metric": row.get("metric"), **{name: row.get(name) for name in ("value", "low", "high")},
                                **n, "method": row.get("method", "bootstrap"), **end})
        found["metrics"] += [{**key, "metric": name, **each, **n, **end} for name, each in row.get("also", {}).items()]
        found["errors"] += [{**key, "class": name, "share": share, **n, **end} for name, share in row.get("errors", {}).items()]
    for one in report.found.trained:
        found["curves"] += [{"workload": one.workload, "architecture": one.architecture, "seed": one.seed, **_plain(row),
                             "artifact": one.artifact} for row in one.curve]
    for name, role in MEASURED.items():
        found[name] = [row for one in getattr(report.found, role) for row in _measured(one, workloads[one.workload].get(role, {}))]
    return {name: found[name] for name in ABOUT if found.get(name)}


def _interval(found: Interval) -> dict[str, Any]:
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n, "documents": found.documents,
            "seeds": found.seeds, "method": found.method}


def _recall(report: Report) -> Iterator[dict[str, Any]]:
    for one in report.recalls:
        panel = one.panel
        above = {f"above_{name}{end}": value for name, gap in one.above.items()
                 for end, value in (("", gap.value), ("_low", gap.low), ("_high", gap.high))}
        claims = report.published.of(panel.workload, one.architecture, panel.task, panel.column, one.order)
        yield {"workload": panel.workload, "label": panel.task, "column": panel.column, "architecture": one.architecture,
               "order": one.order, "asked": report.asked(panel), **_interval(one.score),
               **{f"control_{name}": value for name, value in one.controls.items()}, **above, "recall": one.is_recall,
               "claims": " ".join(claim.claim_id for claim in claims)}


def _differences(report: Report) -> Iterator[dict[str, Any]]:
    for one in report.differences:
        yield {"about": one.about, "workload": one.panel.workload, "label": one.panel.task, "column": one.panel.column,
               "held_fixed": one.where, "first": one.first, "second": one.second, **_interval(one.gap),
               "excludes_zero": one.significant, "holds": one.holds}


def _averages(report: Report) -> Iterator[dict[str, Any]]:
    for one in report.averages:
        for over, found in (("columns", one.columns), ("data sets", one.sets)):
            yield {"workload": one.workload, "architecture": one.architecture, "order": one.order, "asked": one.asked.short,
                   "over": over, **_interval(found), "labels": " ".join(one.labels), "tasks": " ".join(one.tasks)}


def _training(report: Report) -> Iterator[dict[str, Any]]:
    for one in report.found.trained:
        taken = report.footprints[f"{one.workload}/{one.architecture}"]
        summary = {name: value for name, value in one.summary.items() if isinstance(value, str | int | float)}
        yield {"workload": one.workload, "architecture": one.architecture, "seed": one.seed, **summary,
               "parameters": taken.parameters, "state_bytes": taken.state_bytes, "state_bytes_long": taken.state_bytes_long,
               "artifact": one.artifact}


def _sweeps(report: Report) -> Iterator[dict[str, Any]]:
    seen = set()
    for one in report.found.trained:
        sweep, key = one.summary.get("sweep"), (one.workload, one.architecture)
        if sweep and key not in seen:
            seen.add(key)
            for trial in sweep["trials"]:
                yield {"workload": one.workload, "architecture": one.architecture, "field": sweep["field"], **_plain(trial),
                       "chosen": trial["value"] == sweep["chosen"]}


def _measured(one: Measured, artifacts: dict[str, str]) -> Iterator[dict[str, Any]]:
    for row in one.rows:
        yield {"workload": one.workload, "label": one.label, "architecture": one.architecture, "seed": one.seed,
               **_plain(row), "artifact": artifacts.get(f"{one.architecture}/{one.seed}/{one.label}")}


def _plain(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields by dotted name."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        found |= _plain(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found
