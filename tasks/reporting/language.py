"""Tables about reading text: perplexity by slice, perplexity by length, and what a deployed model costs and recalls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tasks.reporting import published
from tasks.reporting.compare import NONE, orders_of
from tasks.reporting.gather import Measured
from tasks.reporting.tables import Table, count, interval, share, size

if TYPE_CHECKING:
    from tasks.reporting.render import Report


def slices(report: Report, workload: str) -> Table:
    """One line a slice, a column an architecture and training seed."""
    own = [one for one in report.found.perplexities if one.workload == workload]
    names = list(dict.fromkeys(one.name(own) for one in own))
    table = Table(f"slices-{workload}", f"Perplexity by slice: {workload}", ["reading", "slice", "share", "targets", *names, "published"],
                  note="Perplexity with a 95 % interval over sequences, and bits per byte behind the stroke. Recall tokens: their "
                       "pair occurred earlier in the sequence. The scored part is the causal suffix, the same for all.")
    for label in dict.fromkeys(one.label for one in own):
        found = {one.name(own): {slice_name(row): row for row in one.rows} for one in own if one.label == label}
        rows = next(iter(found.values()))
        for name, row in rows.items():
            if row["n"]:
                cells = [_perplexity(found[each].get(name)) if each in found else "" for each in names]
                claims = {one.name(own): report.published.cell(workload, one.architecture, label, name) for one in own
                          if report.published.of(workload, one.architecture, label, name)}
                table.rows.append([label, name, share(row["share"]), count(row["n"]), *cells,
                                   "; ".join(f"{each}: {cell}" for each, cell in claims.items()) or published.NONE])
    return table


def slice_name(row: dict[str, Any]) -> str:
    """`recall tokens, training count 10 to 99`."""
    kind = {"all": "all tokens", "ar": "recall tokens", "other": "other tokens"}[row["kind"]]
    what = {"frequency": "training count", "distance": "distance"}.get(row["slice"], "")
    if row["from"] is not None:
        last = None if row["to"] is None else row["to"] - 1
        upper = " or more" if last is None else "" if last == row["from"] else f" to {count(last)}"
        kind += f", {what} {count(row['from'])}{upper}"
    return f"{kind} ({row['condition']})" if row["condition"] else kind


def _perplexity(row: dict[str, Any] | None) -> str:
    if row is None or row["perplexity"] is None:
        return "–"
    ends = "" if row["low"] is None else f" [{row['low']:.2f}, {row['high']:.2f}]"
    bits = "" if row["bits_per_byte"] is None else f" / {row['bits_per_byte']:.3f}"
    return f"{row['perplexity']:.2f}{ends}{bits}"


# ------------------------------------------------------------------------------------------------------- extrapolation
def lengths(report: Report, workload: str) -> Table:
    """One line an architecture, protocol and window; a column a length."""
    own = [one for one in report.found.extrapolations if one.workload == workload]
    trained = report.study.workloads[workload].tokenise.row_tokens
    columns = list(dict.fromkeys(row["length"] for one in own for row in one.rows))
    heads = [f"{count(length)} ({times(length, trained)})" for length in columns]
    table = Table(f"lengths-{workload}", f"Perplexity by length: {workload}",
                  ["reading", "protocol", "architecture", "window", *heads, "published"],
                  note=f"Trained at {count(trained)} tokens; xN: N times that. Perplexity with a 95 % interval, and bits per byte "
                       "behind the stroke. blocks: the same text in blocks of each length, each read from nothing. positions: "
                       "each book once; the loss between one length and the next." + _cannot(own))
    for one in own:
        for protocol, window in dict.fromkeys((row["protocol"], row["window"]) for row in one.rows):
            rows = {row["length"]: row for row in one.rows if (row["protocol"], row["window"]) == (protocol, window)}
            claims = {times(length, trained): report.published.cell(*cell) for length in rows
                      if (cell := (workload, one.architecture, one.label, protocol, times(length, trained)))
                      and report.published.of(*cell)}
            table.rows.append([one.label, protocol, one.name(own), "as trained" if not rows[next(iter(rows))].get("overridden")
                               else str(window), *(_perplexity(rows.get(length)) for length in columns),
                               "; ".join(f"{each}: {cell}" for each, cell in claims.items()) or published.NONE])
    return table


def times(length: int, trained: int) -> str:
    """`x1.5`: how many times the trained length."""
    return f"x{length / trained:g}"


def _cannot(own: list[Measured]) -> str:
    """Why lengths were not read, each reason once."""
    reasons = dict.fromkeys(f"{one.architecture} at {count(row['length'])}: {row['cannot']}" for one in own for row in one.rows
                            if row.get("cannot"))
    return f" Not read: {'; '.join(reasons)}." if reasons else ""


# -------------------------------------------------------------------------------------------------------------- deploy
def deploy(report: Report, workload: str) -> Table:
    """Speed, state and recall by input length, in one table."""
    own = [one for one in report.found.deploys if one.workload == workload]
    table = Table(f"deploy-{workload}", f"Deployed: {workload}",
                  ["measured", "architecture", "length", "time to first token", "tokens/s", "state", "peak", "recall", "order",
                   "control", "published"],
                  note="time to first token: prefill of the prompt, median [ms]. state: live bytes after the prompt. peak: tensors "
                       "alive at once in the prefill, without weights. recall: of documents cut at that length, with a 95 % "
                       "interval, beside the higher control; a dash where no evaluation has that length.")
    for one in own:
        for row in one.rows:
            found = _recall_at(report, workload, one, row["length"])
            table.rows.append([
                one.label, one.name(own), count(row["length"]), *(
                    ("–", "–", "–", row["reason"]) if row["reason"] else
                    (f"{row['ttft_ms']:.1f} ms", count(row["tokens_per_s"]), size(row["state_bytes"]),
                     "–" if row.get("peak_bytes") is None else size(row["peak_bytes"]))),
                *(found or ("–", "–", "–")), report.published.cell(workload, one.architecture, one.label, str(row["length"]))])
    return table


def _recall_at(report: Report, workload: str, one: Measured, length: int) -> tuple[str, str, str] | None:
    """Recall in the first order, on documents of that length, of the first evaluation that has it."""
    for panel in report.panels_of(workload):
        setting = report.settings.get((workload, panel.task))
        if setting is not None and setting.document_tokens == length and setting.budget != "total":
            order = orders_of(report.found, panel)[0]
            row = next((row for row in report.recalls if (row.panel, row.architecture, row.order)
                        == (panel, one.architecture, order)), None)
            if row is not None and (one.architecture, one.seed, order, NONE) in report.found.answers[panel]:
                return (interval(row.score.value, row.score.low, row.score.high), order,
                        share(max(row.controls.values(), default=None)))
    return None


def lines(report: Report) -> list[str]:
    """Sentences for the page: the whole text and its two kinds of tokens, and how far each model reads."""
    told = []
    for one in report.found.perplexities:
        rows = {slice_name(row): row for row in one.rows}
        told.append(f"* {one.workload}, {one.label}, {one.name(report.found.perplexities)}: perplexity " + ", ".join(
            f"{_perplexity(rows[name])} of {name}" for name in ("all tokens", "recall tokens", "other tokens") if name in rows) + ".")
    for one in report.found.extrapolations:
        read = [row for row in one.rows if row["perplexity"] is not None and row["protocol"] == "blocks" and not row.get("overridden")]
        if read:
            told.append(f"* {one.workload}, {one.label}, {one.name(report.found.extrapolations)}: perplexity {_perplexity(read[0])} at "
                        f"{count(read[0]['length'])} tokens, {_perplexity(read[-1])} at {count(read[-1]['length'])}.")
    return told
