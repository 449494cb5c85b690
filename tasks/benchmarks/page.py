"""The rows as tables and as a page: what was measured, under which conditions, beside what the papers printed."""

from __future__ import annotations

from typing import Any

from tasks.benchmarks import published
from tasks.benchmarks.drawing import conditions
from tasks.benchmarks.sections import BACKWARD, DECODE, FORWARD, MODEL_FORWARD, STEP
from tasks.reporting.tables import Table, count, size

Row = dict[str, Any]


def tables(rows: list[Row]) -> list[Table]:
    """One table a measure, with the columns that say something there."""
    found = []
    for measure in dict.fromkeys(row["measure"] for row in rows):
        own = sorted((row for row in rows if row["measure"] == measure), key=_place)
        columns = [(title, [cell(row) for row in own]) for title, cell in COLUMNS if title not in _dropped(measure)]
        columns = [(title, cells) for title, cells in columns if title in KEPT or _says(title, cells)]
        found.append(Table(measure.replace(" ", "-"), f"{measure[0].upper()}{measure[1:]}: {conditions(own)}",
                           [title for title, _ in columns], [list(line) for line in zip(*(cells for _, cells in columns))]))
    return found


def _says(column: str, cells: list[str]) -> bool:
    """Whether a column is worth its room: one row a call is the rule."""
    return not set(cells) <= ({"", "1"} if column == "batch" else {"", "–"})


def _place(row: Row) -> tuple:
    """Lengths together where operations compete, systems together where one grows."""
    return (row["batch"] or 0, row["n"]) if row["measure"] in (FORWARD, BACKWARD, DECODE) else ()


def _dropped(measure: str) -> tuple[str, ...]:
    return ("tokens/s",) if measure in (FORWARD, BACKWARD, MODEL_FORWARD) else ()


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def milliseconds(value: float | None) -> str:
    """Three digits that matter."""
    return "–" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _peer(row: Row) -> str:
    return "" if row["peer"] is None else _times(row["ratio_to_peer"])


def _spread(row: Row) -> str:
    return "–" if row["p20"] is None else f"{milliseconds(row['p20'])} to {milliseconds(row['p80'])}"


KEPT = ("op", "backend", "n", "ms", "error")
COLUMNS = (
    ("op", lambda row: row["op"]),
    ("backend", lambda row: row["backend"]),
    ("n", lambda row: count(row["n"])),
    ("batch", lambda row: str(row["batch"] or "")),
    ("ms", lambda row: milliseconds(row["ms"])),
    ("median", lambda row: milliseconds(row["ms_median"])),
    ("p20 to p80", _spread),
    ("runs", lambda row: str(row["repetitions"]) if row["repetitions"] else ""),
    ("error", lambda row: _number(row["error"], ".1e")),
    ("x SDPA", lambda row: _times(row["ratio_to_sdpa"])),
    ("x vanilla", lambda row: _times(row["ratio_to_vanilla"])),
    ("x peer", _peer),
    ("tokens/s", lambda row: "–" if row["tokens_per_second"] is None else count(row["tokens_per_second"])),
    ("peak", lambda row: "–" if row["peak_bytes"] is None else size(row["peak_bytes"])),
    ("state", lambda row: "–" if row["state_bytes"] is None else size(row["state_bytes"])),
    ("measured", lambda row: "–" if row["state_bytes_measured"] is None else size(row["state_bytes_measured"])),
    ("of floor", lambda row: "–" if row["floor_fraction"] is None else f"{100 * row['floor_fraction']:.0f} %"),
    ("contended", lambda row: {True: "yes", False: "no", None: ""}[row["contended"]]),
)


def compared(rows: list[Row]) -> Table:
    """Ours and a paper's figure for the same operation and length, with what differs."""
    table = Table("published", "Beside published figures",
                  ["op", "backend", "n", "here", "published", "x SDPA here", "x FA2 published", "claim", "what differs"],
                  note="Published values are as two study notes of the papers report them; they were not measured again. "
                       "Compare the ratios: each is within one machine.")
    for row in rows:
        claim = row["published"]
        if claim is None:
            continue
        ratio = claim["unit"] == "x vanilla"
        here = f"{_times(row['ratio_to_vanilla'])} x vanilla" if ratio else f"{milliseconds(row['ms'])} ms"
        table.rows.append([row["op"], row["backend"], count(row["n"]), here, f"{claim['value']:g} {claim['unit']}",
                           "" if ratio else _times(row["ratio_to_sdpa"]), _times(published.ratio(row)).replace("–", ""),
                           claim["claim_id"], claim["differs"]])
    return table


def elsewhere(rows: list[Row]) -> Table:
    """Published figures of the same measures at lengths or batches that were not measured here."""
    table = Table("published-only", "Published, not measured here", ["system", "n", "batch", "value", "claim", "conditions"])
    for claim in published.elsewhere(rows):
        table.rows.append([claim["system"], count(claim["n"]), str(claim["batch"] or ""), f"{claim['value']:g} {claim['unit']}",
                           claim["claim_id"], f"{claim['hardware']}; {claim['measure']}; {claim['conditions']}"])
    return table


NOTES = {
    FORWARD: "ms: best repetition, the thread's CPU time on a CPU. error: largest difference from float64 over its largest "
             "value; a row whose check fails has no time. x SDPA, x peer: their time over ours in this run, so above 1 is "
             "faster; of several peers the quickest counts. Ours read the public layout with padding on; attention and peers get their own layout before the clock.",
    DECODE: "One step of one layer's mixing after a context that was not read but made: states of a fixed size cost the "
            "same whatever they hold. state: bytes held.",
    STEP: "state and FLOPs as each mixer's `cost` counts them, measured: bytes of the live state.",
}


def markdown(rows: list[Row], facts: dict[str, Any], plots: list[str]) -> str:
    """The page of one benchmark."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    refused = [row for row in rows if row["ms"] is None]
    contended = sum(bool(row["contended"]) for row in rows)
    lines = [f"# Benchmark `{facts['preset']}`", "", f"Machine: {facts['machine']}. {versions}.", "",
             f"{len(rows)} rows, {len(refused)} refused by their check"
             + (f", {contended} contended: something else used the processor, so compare ratios, not milliseconds"
                if contended else "") + ".", ""]
    lines += [f"* refused: {row['op']} ({row['backend']}), {row['measure']}, n {row['n']:,}: "
              + (row["note"] or "not finite" if row["error"] is None else f"error {row['error']:.1e} above {row['tolerance']:.0e}")
              for row in refused]
    for name in plots:
        lines += [f"![{name.removesuffix('.png')}]({name})", ""]
    for table in tables(rows):
        table.note = NOTES.get(table.name.replace("-", " "), "")
        lines += [table.markdown()]
    lines += [table.markdown() for table in (compared(rows), elsewhere(rows)) if table.rows]
    if facts["absent"]:
        lines += ["### Not here", "", *(f"* {sentence}" for sentence in facts["absent"]), ""]
    truths = dict.fromkeys(f"{row['op']}, {row['measure']}: {row['truth']}" for row in rows if row["truth"])
    lines += ["### What each was held against", "", *(f"* {sentence}" for sentence in truths), ""]
    return "\n".join(lines)
