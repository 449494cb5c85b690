"""All architectures of a workload side by side, how their rates were chosen, and who does not recall at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.reporting.compare import Recall, orders_of
from tasks.reporting.footprint import LONG
from tasks.reporting.gather import Panel, Trained
from tasks.reporting.published import NONE as NOTHING
from tasks.reporting.tables import Table, count, interval, share, size

if TYPE_CHECKING:
    from tasks.reporting.render import Report

AGAIN = ("uncommon", "swap", "held_out")         # columns that ask about the same documents in another way


def tables(report: Report) -> list[Table]:
    """One table an architecture's line each, by ascending state, for every workload; the sweeps after them."""
    return [*(_workload(report, name) for name in report.study.workloads), sweeps(report)]


def _workload(report: Report, workload: str) -> Table:
    length = report.state_length[workload]
    panels = [panel for panel in report.panels if panel.workload == workload and panel.column not in AGAIN]
    swept = any("sweep" in one.summary for one in report.found.trained if one.workload == workload)
    table = Table(f"architectures-{workload}", f"Architectures: {workload}",
                  ["architecture", "parameters", f"state at {length:,}", f"state at {LONG:,}", "grows", "tokens/s",
                   *(["rate"] if swept else []), "bits/byte",
                   *(name for panel in panels for name in (panel.title, f"control of {panel.column}")), "published"],
                  note=f"By state after {LONG:,} tokens, in float32. tokens/s: training, one process. bits/byte: of "
                       "validation rows, their answers where they have answers. "
                       + ("Recall in the first order with a 95 % interval over documents, beside the higher of its two "
                          "controls. " if panels else "") + _asked(report, panels)
                       + (" rate: chosen by the sweep on validation rows; * at an end of what was tried." if swept else ""))
    names = [name for name in report.study.workloads[workload].architectures if f"{workload}/{name}" in report.footprints]
    for name in sorted(names, key=lambda name: (report.footprints[f"{workload}/{name}"].state_bytes_long, name)):
        found, trained = report.footprints[f"{workload}/{name}"], _trained(report, workload, name)
        table.rows.append([
            name, count(found.parameters), size(found.state_bytes), size(found.state_bytes_long),
            "yes" if found.grows else "no", _known(_mean(trained, "tokens_per_second")),
            *([_rate(trained[0].summary.get("sweep"))] if swept else []),
            share(_mean(trained, "validation_bits_per_byte")),
            *(cell for panel in panels for cell in _recall_cells(report, panel, name)), _published(report, panels, name)])
    return table


def _asked(report: Report, panels: list[Panel]) -> str:
    """How each column was asked, columns asked alike together."""
    groups: dict[str, list[str]] = {}
    for panel in panels:
        groups.setdefault(report.asked(panel), []).append(panel.title)
    if len(groups) == 1:
        return f"All asked with {next(iter(groups))}." if next(iter(groups)) else ""
    return " ".join(f"{', '.join(titles)}: {asked}." for asked, titles in groups.items() if asked)


def _published(report: Report, panels: list[Panel], name: str) -> str:
    """Claims of the row's figures."""
    found = {panel.title: report.published.cell(panel.workload, name, panel.task, panel.column, order)
             for panel in panels for order in orders_of(report.found, panel)[:1]
             if report.published.of(panel.workload, name, panel.task, panel.column, order)}
    return "; ".join(f"{title}: {cell}" for title, cell in found.items()) or NOTHING


def _trained(report: Report, workload: str, name: str) -> list[Trained]:
    return [one for one in report.found.trained if (one.workload, one.architecture) == (workload, name)]


def _known(value: float | None) -> str:
    return "–" if value is None else count(value)


def _mean(trained: list[Trained], name: str) -> float | None:
    values = [one.summary[name] for one in trained if one.summary.get(name) is not None]
    return float(np.mean(values)) if values else None


def _rate(found: dict[str, Any] | None) -> str:
    return "–" if found is None else f"{found['chosen']:g}" + (" *" if found["edge"] else "")


def _recall_cells(report: Report, panel: Panel, name: str) -> tuple[str, str]:
    row = first_order(report, panel).get(name)
    if row is None:
        return "", ""
    return (interval(row.score.value, row.score.low, row.score.high),
            share(max(row.controls.values(), default=None)))


def first_order(report: Report, panel: Panel) -> dict[str, Recall]:
    """Architecture -> its recall on a panel in the panel's first order."""
    first = orders_of(report.found, panel)[0]
    return {row.architecture: row for row in report.recalls if row.panel == panel and row.order == first}


# -------------------------------------------------------------------------------------------------------------- sweeps
def sweeps(report: Report) -> Table:
    """The loss of every trial, and what was chosen."""
    found = _sweeps(report)
    values = sorted({trial["value"] for facts in found.values() for trial in facts["trials"]})
    table = Table("sweeps", "Sweeps", ["workload", "architecture", "field", *(f"{value:g}" for value in values), "chosen",
                                       "at an end"],
                  note="Trials on validation rows, never on test rows: bits per byte of the answers, or nats per answer "
                       "where answers stand for no bytes. The lowest is chosen.")
    for (workload, name), facts in found.items():
        cells = {trial["value"]: "diverged" if trial["diverged"] else share(
            trial["validation_bits_per_byte"] if trial["validation_bits_per_byte"] is not None else trial["validation_loss"])
            for trial in facts["trials"]}
        table.rows.append([workload, name, facts["field"], *(cells.get(value, "") for value in values),
                           f"{facts['chosen']:g}", facts["edge"] or "no"])
    return table


def _sweeps(report: Report) -> dict[tuple[str, str], dict[str, Any]]:
    """Once an architecture, since all seeds share its trials."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for one in report.found.trained:
        if "sweep" in one.summary:
            found.setdefault((one.workload, one.architecture), one.summary["sweep"])
    return found


def edge_lines(report: Report) -> list[str]:
    """A paragraph that names the choices at an end of what was tried; nothing without a sweep."""
    found = _sweeps(report)
    if not found:
        return []
    lines = ["## Choices at an end of what was tried", "",
             "The best value may lie beyond it; these architectures may be better than shown.", ""]
    at: dict[tuple[str, str], list[str]] = {}                # workload and choice -> architectures
    for (workload, name), facts in found.items():
        if facts["edge"]:
            choice = f"took {facts['chosen']:g}, the {facts['edge']} value of {facts['field']}"
            at.setdefault((workload, choice), []).append(name)
    told = [f"* {workload}: {', '.join(names)} {choice}." for (workload, choice), names in at.items()]
    return [*lines, *(told or ["* none"]), ""]


# ------------------------------------------------------------------------------------------------------------ controls
def not_above_lines(report: Report) -> list[str]:
    """Architectures whose recall, in the first order, does not lie above both controls with its whole interval."""
    lines = ["## Not above its controls", "",
             "What is listed here cannot be told from guessing: no recall was shown.", ""]
    listed = []
    for panel in report.panels:
        rows = [row for row in first_order(report, panel).values() if row.above and not row.is_recall]
        if rows:
            listed.append(f"* {panel.workload}, {panel.title}: " + ", ".join(f"{row.architecture} ({_gap(row)})" for row in rows))
    return [*lines, *(listed or ["* none"]), ""]


def _gap(row: Recall) -> str:
    """The control that it beats least."""
    control, gap = min(row.above.items(), key=lambda item: (item[1].low is not None, item[1].low))
    return f"{interval(gap.value, gap.low, gap.high, signed=True)} against {control}"
