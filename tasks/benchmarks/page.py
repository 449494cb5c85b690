"""The rows as tables and as a page: what was measured, under which conditions, beside what the papers printed."""

from __future__ import annotations

from typing import Any

from tasks.benchmarks import published
from tasks.benchmarks.drawing import conditions
from tasks.benchmarks.notes import contention, note
from tasks.benchmarks.refusals import ran, reason
from tasks.benchmarks.sections import (
    BACKWARD,
    DECODE,
    FIRST_TOKEN,
    FORWARD,
    GENERATION,
    INCREMENTAL,
    MODEL_FORWARD,
    PREFIXES,
    STEP,
)
from tasks.reporting.tables import Table, count, size

Row = dict[str, Any]


def tables(rows: list[Row]) -> list[Table]:
    """One table a measure, with the columns that say something there, and a note that says how it was taken."""
    found = []
    for measure in dict.fromkeys(row["measure"] for row in rows):
        own = sorted((row for row in rows if row["measure"] == measure), key=_place)
        columns = [(title, [cell(row) for row in own]) for title, cell in COLUMNS if title not in _dropped(measure)]
        columns = [(title, cells) for title, cells in columns if title in KEPT or _says(title, cells)]
        names = NAMES.get(measure, {})
        found.append(Table(measure.replace(" ", "-"), f"{measure[0].upper()}{measure[1:]}: {conditions(own)}",
                           [names.get(title, title) for title, _ in columns],
                           [list(line) for line in zip(*(cells for _, cells in columns))], note(own)))
    return found


def _says(column: str, cells: list[str]) -> bool:
    """Whether a column is worth its room: one row a call is the rule."""
    return not set(cells) <= ({"", "1"} if column == "batch" else {"", "–"})


def _place(row: Row) -> tuple:
    """Lengths together where operations compete, systems together where one grows."""
    return (row["batch"] or 0, row["n"]) if row["measure"] in (FORWARD, BACKWARD, DECODE) else ()


def _dropped(measure: str) -> tuple[str, ...]:
    return (("tokens/s",) if measure in (FORWARD, BACKWARD, MODEL_FORWARD) else ()) + (() if measure == STEP else ("FLOPs",))


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


ATTENTION_MODEL = {"x SDPA": "x attention model"}
# columns that say something else, or more, in the tables of a measure
NAMES = {STEP: {"state": "state counted", "measured": "state measured"}, FIRST_TOKEN: {"tokens/s": "prompt tokens/s"},
         GENERATION: {"tokens/s": "new tokens/s"}, MODEL_FORWARD: ATTENTION_MODEL, PREFIXES: ATTENTION_MODEL,
         INCREMENTAL: ATTENTION_MODEL}
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
    ("FLOPs", lambda row: "–" if row["flops"] is None else count(row["flops"])),
    ("peak", lambda row: "–" if row["peak_bytes"] is None else size(row["peak_bytes"])),
    ("state", lambda row: "–" if row["state_bytes"] is None else size(row["state_bytes"])),
    ("measured", lambda row: "–" if row["state_bytes_measured"] is None else size(row["state_bytes_measured"])),
    ("of floor", lambda row: "–" if row["floor_fraction"] is None else f"{100 * row['floor_fraction']:.0f} %"),
    ("contended", lambda row: {True: "yes", False: "no", None: ""}[row["contended"]]),
)


def _printed(claim: Row) -> str:
    """A published value with its unit."""
    return f"{claim['value']:{',.0f' if claim['unit'] == 'MB' else 'g'}} {claim['unit']}"


def compared(rows: list[Row]) -> Table:
    """Ours and a paper's figure for the same operation and length, with what differs."""
    table = Table("published", "Beside published figures",
                  ["op", "backend", "n", "here", "published", "published system", "x SDPA here", "x FA2 published", "claim",
                   "what differs"],
                  note="Published values are as two study notes of the papers report them; they were not measured again. "
                       "Compare the ratios: each is within one machine.")
    for row in rows:
        own, known, peak = row["published"], published.claim_of(row), published.memory(row)
        beginning = [row["op"], row["backend"], count(row["n"])]
        if own:
            ratio = own["unit"] == "x vanilla"
            here = f"{_times(row['ratio_to_vanilla'])} x vanilla" if ratio else f"{milliseconds(row['ms'])} ms"
            table.rows.append([*beginning, here, _printed(own), known["system"] if known else "",
                               "" if ratio else _times(row["ratio_to_sdpa"]),
                               _times(published.ratio(row)).replace("–", ""), own["claim_id"], own["differs"]])
        if peak:
            table.rows.append([*beginning, f"peak {size(row['peak_bytes'])}", _printed(peak),
                               peak["system"], "", "", peak["claim_id"],
                               f"{published.differs(peak, row)}; here what the forward allocates, weights not counted"])
    return table


def elsewhere(rows: list[Row]) -> Table:
    """Published figures of the same measures at lengths or batches that were not measured here."""
    table = Table("published-only", "Published, not measured here", ["system", "n", "batch", "value", "claim", "conditions"])
    for claim in published.elsewhere(rows):
        table.rows.append([claim["system"], count(claim["n"]), str(claim["batch"] or ""), _printed(claim),
                           claim["claim_id"], f"{claim['hardware']}; {claim['measure']}; {claim['conditions']}"])
    return table


def markdown(rows: list[Row], facts: dict[str, Any], plots: list[str]) -> str:
    """The page of one benchmark."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    refused = [row for row in rows if row["ms"] is None]
    contended = contention(rows)
    lines = [f"# Benchmark `{facts['preset']}`", "", f"Machine: {facts['machine']}. {versions}.", "",
             f"{len(rows)} rows, {len(refused)} without a time." + (f" {contended}." if contended else ""), ""]
    lines += [f"* {'refused' if ran(row) else 'no result'}: {row['op']} ({row['backend']}), {row['measure']}, n {row['n']:,}: {reason(row)}"
              for row in refused]
    for name in plots:
        lines += [f"![{name.removesuffix('.png')}]({name})", ""]
    lines += [table.markdown() for table in tables(rows)]
    lines += [table.markdown() for table in (compared(rows), elsewhere(rows)) if table.rows]
    if facts["absent"]:
        lines += ["### Not here", "", *(f"* {sentence}" for sentence in facts["absent"]), ""]
    truths = dict.fromkeys(f"{row['op']}, {row['measure']}: {row['truth']}" for row in rows if row["truth"])
    lines += ["### What each was held against", "", *(f"* {sentence}" for sentence in truths), ""]
    return "\n".join(lines)
