"""What the report says in words. They follow the numbers; none is typed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.reporting import language, overview, plots
from tasks.reporting.compare import Recall, claim_note, orders_of
from tasks.reporting.tables import interval, share

if TYPE_CHECKING:
    from tasks.reporting.render import Report

MANY = plots.MANY


def findings(report: Report) -> str:
    """The question, the answer in figures, what is significant and what is not."""
    study = report.study
    lines = [f"# Study `{study.name}`", "", study.about, ""]
    if study.question:
        lines += [f"**Question.** {study.question}", ""]
    lines += ["## What was measured", "", *measured(report), *language.lines(report), ""]
    lines += ["", *dict.fromkeys(claim_note(len(work.seeds)) for work in study.workloads.values()), ""]
    lines += beside(report)
    if report.panels:
        lines += overview.not_above_lines(report)
    lines += overview.edge_lines(report)
    if report.panels:
        lines += ["## Between architectures", ""] + _sentences(report, "architecture") + _untested(report)
        lines += ["", "## Between prompt orders", ""] + _sentences(report, "order") + _untrained_orders(report)
        if any(one.about == "setting" for one in report.differences):
            lines += ["", "## Between settings", ""] + _sentences(report, "setting")
        lines += ["", *multiple(report), ""]
    return "\n".join(lines)


def measured(report: Report) -> list[str]:
    """One line a panel, and one a group of averages."""
    lines = []
    for panel in report.panels:
        first = orders_of(report.found, panel)[0]
        own = [row for row in report.recalls if row.panel == panel and row.order == first]
        figures = ", ".join(f"{r.architecture} {interval(r.score.value, r.score.low, r.score.high)}" for r in _shown(own))
        worst = max((value for row in own for value in row.controls.values()), default=None)
        lines.append(f"* {panel.title}, {first}: {figures}; highest control {share(worst)}.")
    for one in report.averages:
        lines.append(f"* average of {one.architecture}, {one.order} ({one.asked.short}): "
                     f"{interval(one.columns.value, one.columns.low, one.columns.high)} over {len(one.labels)} columns, "
                     f"{interval(one.sets.value, one.sets.low, one.sets.high)} over {len(one.tasks)} data sets.")
    return lines


def beside(report: Report) -> list[str]:
    """How much of this has a published figure."""
    if not report.recalls:
        return []
    have = sum(bool(report.published.of(row.panel.workload, row.architecture, row.panel.task, row.panel.column, row.order))
               for row in report.recalls)
    if not have and not report.study.claims:
        return ["No published figure belongs to these scores.", ""]
    return [f"{have} of {len(report.recalls)} scores stand beside a published figure, with the conditions that differ (table "
            "`Published beside measured`); for the others none was published.", ""]


def multiple(report: Report) -> list[str]:
    """What testing many differences does to each of them."""
    tested = len(report.differences)
    alone, together = (sum(getattr(one, name) for one in report.differences) for name in ("significant", "holds"))
    return [f"{tested} differences were tested at 95 % without correction: about {tested * 0.05:.0f} of them would exclude zero "
            f"by chance alone. {alone} exclude zero; {together} of these hold after Holm's correction over all {tested}."]


def _sentences(report: Report, about: str) -> list[str]:
    own = [one for one in report.differences if one.about == about and one.gap.value is not None]
    yes, no = [one for one in own if one.significant], [one for one in own if not one.significant]
    lines = ["Significant (the 95 % interval excludes zero):", ""]
    lines += [f"* {one.sentence}" for one in yes] or ["* none"]
    lines += ["", "Not significant:", ""]
    lines += [f"* {one.sentence}" for one in no] or ["* none"]
    return lines


def _untested(report: Report) -> list[str]:
    """Workloads whose architectures are too many to compare all with all."""
    return ["", *(f"{name}: {len(work.architectures)} architectures and no `reference` in the study, so no pair was "
                  "tested; see the intervals in the tables." for name, work in report.study.workloads.items()
                  if len(work.architectures) > MANY and not report.pairs(list(work.architectures)))]


def _untrained_orders(report: Report) -> list[str]:
    """Orders that a workload's training rows never had."""
    lines = []
    for workload, parts in report.found.data.items():
        trained = parts.get("rows", {}).get("by_order", {})
        asked = {order for panel in report.panels_of(workload) for order in orders_of(report.found, panel)}
        missing = sorted(order for order in asked if trained and not trained.get(order))
        if missing:
            lines += ["", f"{workload}: trained on no row in the order {', '.join(missing)}; those columns are "
                          "out of distribution."]
    return lines


def _shown(rows: list[Recall]) -> list[Recall]:
    """All of a few; of many the best and the last three, best first (the table has the others)."""
    if len(rows) <= MANY:
        return rows
    ranked = sorted(rows, key=lambda row: -row.score.value)
    return ranked[:3] + ranked[-3:]
