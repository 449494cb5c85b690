"""The tables about answers: recall in every order, the averages, the other metrics, what went wrong, what was left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tasks.answer_errors import CLASSES
from tasks.reporting.compare import NONE, by_seed, orders_of, stack
from tasks.reporting.gather import METRICS, Panel
from tasks.reporting.tables import Table, count, interval, share
from tasks.statistics import hierarchical

if TYPE_CHECKING:
    from tasks.reporting.averages import Average
    from tasks.reporting.render import Report

RIGHT = "right"
RESAMPLES = 1000


def recall(report: Report, workload: str) -> Table:
    """One line a panel and architecture, a column an order."""
    panels = report.panels_of(workload)
    orders = list(dict.fromkeys(order for panel in panels for order in orders_of(report.found, panel)))
    table = Table(f"recall-{workload}", f"Recall: {workload}",
                  ["task / column", "architecture", *orders, "empty", "other", "above controls", "n", "asked", "published"],
                  note="Share of right answers with a 95 % bootstrap interval over documents. empty, other: the controls, no "
                       "document and another document. Only what lies above both is recall. asked: strategy, template, "
                       "worked examples, metric.")
    for panel in panels:
        for name in report.study.workloads[workload].architectures:
            own = {row.order: row for row in report.recalls if row.panel == panel and row.architecture == name}
            if own:
                first = own[orders_of(report.found, panel)[0]]
                table.rows.append([
                    panel.title, name,
                    *(interval(own[o].score.value, own[o].score.low, own[o].score.high) if o in own else "" for o in orders),
                    share(first.controls.get("empty")), share(first.controls.get("other")),
                    "yes" if first.is_recall else "no", count(first.score.n), report.asked(panel),
                    report.published.cells_of(orders, workload, name, panel.task, panel.column)])
    return table


def averages(report: Report, found: list[Average]) -> Table:
    """Means over columns and over data sets, side by side."""
    table = Table("averages", "Averages over columns and over data sets",
                  ["workload", "architecture", "order", "over columns", "published", "over data sets", "published ",
                   "columns", "data sets", "asked"],
                  note="over columns: every evaluation once, so a data set at two lengths counts double, as in JRT's Table 2. "
                       "over data sets: each one's columns are averaged first. Intervals: 95 %, documents resampled once for "
                       "all columns of a data set.")
    for one in found:
        cell = (one.workload, one.architecture, "average")
        table.rows.append([one.workload, one.architecture, one.order,
                           interval(one.columns.value, one.columns.low, one.columns.high),
                           report.published.cell(*cell, "columns", one.order),
                           interval(one.sets.value, one.sets.low, one.sets.high),
                           report.published.cell(*cell, "data sets", one.order),
                           f"{len(one.labels)}: {', '.join(one.labels)}", f"{len(one.tasks)}: {', '.join(one.tasks)}",
                           one.asked.short])
    return table


def metrics(report: Report, workload: str) -> Table:
    """All metrics of the same answers."""
    table = Table(f"metrics-{workload}", f"Other metrics: {workload}",
                  ["task / column", "architecture", "order", *METRICS, "n", "asked", "published"],
                  note="The same answers under every metric, 95 % intervals over documents. contains: an answer occurs in what "
                       "is said; exact, squad_exact, f1: SQuAD's; rouge_l: longest common subsequence. The published figures "
                       "are of the metric under `asked`.")
    for panel, name, order in _asked(report, workload):
        answers = by_seed(report.found, panel, name, order, NONE)
        if not all(one.also for one in answers.values()):
            continue
        first = next(iter(answers.values()))
        cells = [_metric(answers, metric) if metric in first.also else "" for metric in METRICS]
        table.rows.append([panel.title, name, order, *cells, count(first.items_N.size), report.asked(panel),
                           report.published.cell(workload, name, panel.task, panel.column, order)])
    return table


def _metric(answers: dict, metric: str) -> str:
    values, documents = stack(answers, of=metric)
    found = hierarchical(values, documents, resamples=RESAMPLES)
    return interval(found.value, found.low, found.high)


# ---------------------------------------------------------------------------------------------------------------- errors
def classes(report: Report) -> list[str]:
    """The classes of errors that occur anywhere in the study, in the order in which they are drawn."""
    seen = {name for answers in report.found.answers.values() for one in answers.values() if one.errors_N is not None
            for name in np.unique(one.errors_N)} - {""}
    return [*(name for name in CLASSES if name in seen), *sorted(seen - set(CLASSES))]


def error_shares(report: Report, workload: str) -> list[dict]:
    """{panel, architecture, order, n, shares: {class: share of all answers}, cell}, seeds averaged."""
    found = []
    for panel, name, order in _asked(report, workload):
        answers = [one for one in by_seed(report.found, panel, name, order, NONE).values() if one.errors_N is not None]
        if answers:
            shares = {kind: float(np.mean([(one.errors_N == kind).mean() for one in answers])) for kind in classes(report)}
            right = float(np.mean([(one.errors_N == "").mean() for one in answers]))
            found.append({"panel": panel, "architecture": name, "order": order, "n": int(answers[0].items_N.size),
                          "shares": {RIGHT: right, **shares}})
    return found


def errors(report: Report, workload: str) -> Table:
    """What the answers that are not right are."""
    kinds = classes(report)
    table = Table(f"errors-{workload}", f"What went wrong: {workload}",
                  ["task / column", "architecture", "order", RIGHT, *kinds, "n", "asked", "published"],
                  note="Shares of all answers; each wrong one is in one class. The classes follow JRT's Table 13, whose rules are not "
                       "published; these are this project's own (docs/evaluation.md).")
    for row in error_shares(report, workload):
        panel = row["panel"]
        cells = {kind: report.published.of(workload, row["architecture"], panel.task, kind, row["order"]) for kind in kinds}
        beside = "; ".join(f"{kind}: {report.published.cell(workload, row['architecture'], panel.task, kind, row['order'])}"
                           for kind in kinds if cells[kind])
        table.rows.append([panel.title, row["architecture"], row["order"], *(share(row["shares"][kind]) for kind in (RIGHT, *kinds)),
                           count(row["n"]), report.asked(panel), beside or report.published.cell()])
    return table


# ------------------------------------------------------------------------------------------------------------ left out
def rejected(report: Report) -> Table:
    """Records and items that could not be used, by reason; those of an artifact once, with all evaluations that use it."""
    table = Table("rejected", "What could not be used", ["workload", "evaluation", "stage", "reason", "count"],
                  note="questions: records of the original files; prompts: documents or items that could not be asked. Each is "
                       "kept with its reason in the artifact of its stage.")
    labels: dict[tuple[str, str, str, str, int], list[str]] = {}
    for one in report.found.rejected:
        labels.setdefault((one.workload, one.stage, one.artifact, one.reason, one.count), []).append(one.label)
    for (workload, stage, _, reason, number), own in labels.items():
        table.rows.append([workload, ", ".join(own), stage, reason.replace("_", " "), count(number)])
    return table


def _asked(report: Report, workload: str) -> list[tuple[Panel, str, str]]:
    """Every panel, architecture and order that has answers."""
    return [(panel, name, order) for panel in report.panels_of(workload)
            for name in report.study.workloads[workload].architectures for order in orders_of(report.found, panel)
            if by_seed(report.found, panel, name, order, NONE)]
