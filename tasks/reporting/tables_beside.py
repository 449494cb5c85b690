"""The tables beside the answers: published figures, differences, training, data, timings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tasks.reporting import language, published
from tasks.reporting.tables import Table, count, interval, share, size

if TYPE_CHECKING:
    from tasks.reporting.gather import Measured
    from tasks.reporting.render import Report


def beside(report: Report) -> Table:
    """Every measured figure that has a published one, and in what the two differ."""
    table = Table("published", "Published beside measured", list(published.COLUMNS),
                  note="Published: as two study notes report the papers (`reread claims show ID`); shares as 0 to 1. Nothing here "
                       "repeats a published experiment unless `what differs` says so.")
    for row in report.recalls:
        panel = row.panel
        for claim in report.published.of(panel.workload, row.architecture, panel.task, panel.column, row.order):
            table.rows.append(published.row([panel.title, row.architecture, row.order],
                                            interval(row.score.value, row.score.low, row.score.high), claim,
                                            report.here(panel, row.architecture, row.order)))
    for one in report.averages:
        for name, found in (("columns", one.columns), ("data sets", one.sets)):
            for claim in report.published.of(one.workload, one.architecture, "average", name, one.order):
                panel = next(panel for panel in report.panels_of(one.workload) if panel.task == one.labels[0])
                table.rows.append(published.row([f"average over {name}", one.architecture, one.order],
                                                interval(found.value, found.low, found.high), claim,
                                                report.here(panel, one.architecture, one.order)))
    for one in report.found.extrapolations:
        table.rows += _lengths_beside(report, one)
    return table


def _lengths_beside(report: Report, one: Measured) -> list[list[str]]:
    """Perplexities at lengths that the papers print."""
    trained, rows = report.study.workloads[one.workload].tokenise.row_tokens, []
    for row in one.rows:
        place = language.times(row["length"], trained)
        for claim in report.published.of(one.workload, one.architecture, one.label, row["protocol"], place):
            if row["perplexity"] is not None and not row.get("overridden"):
                rows.append(published.row([f"{one.label}, {row['protocol']}, {place}", one.architecture, ""],
                                          f"{row['perplexity']:.2f}", claim, report.reading(one, row["length"])))
    return rows


def differences(report: Report) -> Table:
    """All differences that were tested, each alone and all together."""
    table = Table("differences", "Differences",
                  ["about", "workload", "task / column", "held fixed", "first", "second", "first − second", "excludes zero",
                   "holds after Holm"],
                  note="excludes zero: the 95 % interval alone. holds after Holm: still, when all "
                       f"{len(report.differences)} are judged together at 5 %. " + published.note("Of differences between systems here"))
    for one in report.differences:
        gap = one.gap
        table.rows.append([one.about, one.panel.workload, one.panel.title if one.about != "setting" else one.panel.column,
                           one.where, one.first, one.second, interval(gap.value, gap.low, gap.high, signed=True),
                           "yes" if one.significant else "no", "yes" if one.holds else "no"])
    return table


def training(report: Report) -> Table:
    """One line a checkpoint."""
    table = Table("training", "Training", ["workload", "architecture", "seed", "parameters", "state", "steps", "tokens",
                                           "supervised", "FLOPs", "seconds", "tokens/s", "bits/byte"],
                  note="state: bytes after a document of the evaluation's length, or a training row where nothing is asked ("
                       + ", ".join(f"{w}: {n} tokens" for w, n in report.state_length.items())
                       + "), float32; a Transformer's grows with the document. Equal tokens, not equal seconds, unless the "
                         "study says otherwise; supervised: positions with a loss; FLOPs: three times the forward over rows of that length, counted. "
                         "bits/byte: of validation rows, their answers where they have answers. " + published.note("Of these runs"))
    for one in report.found.trained:
        found, summary = report.footprints[f"{one.workload}/{one.architecture}"], one.summary
        tokens = summary.get("tokens")
        table.rows.append([one.workload, one.architecture, str(one.seed), count(found.parameters), size(found.state_bytes),
                           _known(summary.get("steps")), _known(tokens), _known(summary.get("supervised")),
                           f"{3 * found.flops * tokens:.2e}" if tokens and found.flops else "–",
                           _known(summary.get("seconds")), _known(summary.get("tokens_per_second")),
                           share(summary.get("validation_bits_per_byte"))])
    return table


def data(report: Report) -> Table:
    """Counts of what was read and written."""
    table = Table("data", "Data", ["workload", "artifact", "count", "value"])
    for workload, parts in report.found.data.items():
        for role, counts in parts.items():
            table.rows += [[workload, role, name, _value(value)] for name, value in counts.items()]
    return table


def bench(report: Report) -> Table:
    """Timings of the kernels."""
    timings = report.found.timings
    device = next((row["device"] for row in timings if row.get("device")), "this CPU")
    table = Table("bench", f"Operations on {device}",
                  ["operation", "backend", "measure", "length", "ms", "error", "times SDPA", "contended", "published"],
                  note="ms: best repetition. error: against float64 (the naive form, or a formula proven on it). times SDPA: "
                       "how many times faster than PyTorch's causal attention in the same run. A row whose check fails "
                       "has no time.")
    for row in timings:
        table.rows.append([row["op"], row["backend"], row.get("measure", "forward"), count(row["n"]),
                           "–" if row.get("ms") is None else f"{row['ms']:.2f}",
                           "–" if row.get("error") is None else f"{row['error']:.1e}",
                           "–" if row.get("ratio_to_sdpa") is None else f"{row['ratio_to_sdpa']:.2f}",
                           "yes" if row.get("contended") else "no", _claim(row.get("published"))])
    return table


def _claim(found: dict[str, Any] | None) -> str:
    return published.NONE if not found else f"{found['value']:g} {found['unit']} ({found['claim_id']})"


def _known(value: float | None) -> str:
    return "–" if value is None else count(value)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(part)}" for name, part in value.items()) or "none"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return count(value) if isinstance(value, int) else str(value)
