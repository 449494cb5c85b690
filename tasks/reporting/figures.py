"""Which figures a report has, and the points of each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.reporting import error_plot, plots, recall_tables, scatter
from tasks.reporting.compare import orders_of
from tasks.reporting.gather import Panel

if TYPE_CHECKING:
    from tasks.reporting.render import Report


def draw(report: Report, folder: Path) -> list[str]:
    """Writes the plots; returns their names."""
    bars = [{"panel": r.panel.title, "architecture": r.architecture, "order": r.order, "value": r.score.value,
             "low": r.score.value if r.score.low is None else r.score.low,
             "high": r.score.value if r.score.high is None else r.score.high,
             "control": max(r.controls.values(), default=None)} for r in report.recalls]
    if bars:
        plots.recall_by_order(bars, report.architectures, folder / "recall.png")
    points = [{"panel": bar["panel"], "architecture": r.architecture, "value": bar["value"], "low": bar["low"],
               "high": bar["high"], "state_bytes": taken.state_bytes, "grows": taken.grows}
              for r, bar in zip(report.recalls, bars)
              if r.order == orders_of(report.found, r.panel)[0] and _against_state(report, r.panel)
              and (taken := report.footprints.get(f"{r.panel.workload}/{r.architecture}"))]
    if points:
        scatter.recall_against_state(points, report.architectures, folder / "recall-against-state.png")
    _errors(report, folder / "errors.png")
    _language(report, folder)
    curves = [_curve(one) for one in report.found.trained if one.curve]
    if curves:
        plots.loss_curves(curves, report.architectures, folder / "loss.png")
    if any(row.get("ms") is not None for row in report.found.timings):
        plots.latency(report.found.timings, folder / "latency.png")
    return sorted(path.name for path in folder.glob("*.png"))


def _language(report: Report, folder: Path) -> None:
    """Of every reading: perplexity by training frequency, by distance, and by length."""
    from tasks import perplexity_plots

    for kind, of in (("perplexities", report.found.perplexities), ("extrapolations", report.found.extrapolations)):
        for workload, label in dict.fromkeys((one.workload, one.label) for one in of):
            own = [one for one in of if (one.workload, one.label) == (workload, label)]
            rows = [{"model": one.name(own), **row} for one in own for row in one.rows]
            models, name = list(dict.fromkeys(row["model"] for row in rows)), f"{workload}-{label}"
            if kind == "extrapolations":
                trained = report.study.workloads[workload].tokenise.row_tokens
                perplexity_plots.by_length(rows, models, folder / f"perplexity-by-length-{name}.png", trained)
                continue
            perplexity_plots.by_distance(rows, models, folder / f"perplexity-by-distance-{name}.png")
            if any(row["slice"] == "frequency" for row in rows):
                perplexity_plots.by_frequency(rows, models, folder / f"perplexity-by-frequency-{name}.png")


def _errors(report: Report, path: Path) -> None:
    """Of the panels that most readers want: each evaluation's first column."""
    first: dict[tuple[str, str], Panel] = {}
    for panel in report.panels:
        first.setdefault((panel.workload, panel.task), panel)
    rows = [{"panel": row["panel"].title, "name": f"{row['architecture']}, {row['order']}", "shares": row["shares"]}
            for workload in report.study.workloads for row in recall_tables.error_shares(report, workload)
            if row["panel"] in first.values()]
    if rows:
        error_plot.stacked(rows, [recall_tables.RIGHT, *recall_tables.classes(report)], path)


def _against_state(report: Report, panel: Panel) -> bool:
    """Whether recall against state is drawn: of a few architectures all share an axis, which each evaluation's first column
    and `swap` fill; documents as long as the state is counted for, so of several lengths the longest."""
    found = report.settings.get((panel.workload, panel.task))
    if found is not None and found.document_tokens < max(
            other.document_tokens for (workload, _), other in report.settings.items()
            if (workload, other.task) == (panel.workload, found.task)):
        return False
    first = next(other for other in report.panels_of(panel.workload) if other.task == panel.task)
    return panel.column == "swap" or panel == first or (
        len(report.architectures) > plots.MANY and panel.column not in ("uncommon", "held_out"))


def _curve(one: Any) -> dict[str, Any]:
    points = [p for p in one.curve if p.get("loss/answer", p.get("loss")) is not None]
    checks = [p for p in one.curve if p.get("validation/bits_per_byte") is not None]
    return {"workload": one.workload, "architecture": one.architecture, "seed": one.seed,
            "answers": any("loss/answer" in p for p in points), "tokens": [p["tokens"] for p in points], "loss": [p.get("loss/answer", p.get("loss")) for p in points],
            "validation_tokens": [p["tokens"] for p in checks],
            "validation": [p["validation/bits_per_byte"] for p in checks]}
