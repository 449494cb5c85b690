"""What a stage made, where people look in MLflow: headline numbers under short names, tables, figures, a few words.

    evaluate       recall (mean over columns of the main order, without control), recall/<column>/<order>,
                   control/<which>/<column>/<order>, above_controls/..., errors/<class>/...; tables scores, predictions/...
    pretrain       bits_per_byte at the end, beside the curves; summary.json
    perplexity     loss, bits_per_byte, perplexity of everything; extrapolation: of the shortest length; a table each
    deploy, bench  tokens_per_second, timings; tables and figures
    all            parameters, state_bytes and tokens as metrics too, so that they sort and plot as numbers
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flows.recording.about import NUMBERS, About
from flows.recording.answers import answer_tables
from storage.artifacts import Store
from storage.home import is_url
from storage.tracking import Tracking

MAIN = "default"                # the order whose recall is the headline, where it was asked
REPEATED = "uncommon"           # a column that repeats items of another: no column of its own in a mean
NONE = "none"
LOSSES = ("loss", "bits_per_byte", "perplexity")
NOTE = "mlflow.note.content"


def record(tracking: Tracking, run: str, kind: str, store: Store, artifact: str, about: About | None = None) -> None:
    """Put what a measuring stage made where people look."""
    about, folder = about or About(), store.path(artifact)
    numbers = {name: float(about.facts[name]) for name in NUMBERS        # a training counts its tokens itself
               if name in about.facts and (name, kind) != ("tokens", "pretrain")}
    if numbers:
        tracking.metrics(run, numbers, step=0)
    recorder = {"evaluate": _evaluation, "pretrain": _training, "bench": _bench}.get(kind, _measured)
    recorder(tracking, run, kind, store, folder)


def _evaluation(tracking: Tracking, run: str, kind: str, store: Store, folder: Path) -> None:
    rows = _json(folder / "scores.json")
    order = main_order(rows)
    recall, columns = headline(rows, order)
    tracking.metrics(run, score_metrics(rows) | ({} if recall is None else {"recall": recall}), step=0)
    counts = store.manifest(folder.name).counts
    if counts.get("examples_per_second"):
        tracking.metrics(run, {"examples_per_second": counts["examples_per_second"]}, step=0)
    tracking.table(run, rows, "scores")
    tables, shown, asked = answer_tables(store, folder)
    for name, table in tables.items():
        tracking.table(run, table, f"predictions/{name}")
    left = "" if shown == asked else f", {asked - shown:,} more in artifact `{folder.name}`"
    tracking.tag(run, {NOTE: f"**recall {'–' if recall is None else f'{recall:.3f}'}**, mean over {', '.join(columns) or 'no column'} in the order {order}. "
                             f"Answers: Artifacts, `predictions/` ({shown:,} of {asked:,} shown{left}); scores with their "
                             "95 % intervals: `scores.json`."})
    for figure in sorted(folder.glob("*.png")):
        tracking.artifacts(run, figure, "figures")


def main_order(rows: list[dict[str, Any]]) -> str:
    """The default order, or where that was not asked the first one."""
    orders = [row["order"] for row in rows]
    return MAIN if MAIN in orders or not orders else orders[0]


def headline(rows: list[dict[str, Any]], order: str) -> tuple[float | None, list[str]]:
    """The mean over the columns of an order, without control, each counting the same; and which columns these are."""
    chosen = {row["column"]: row["value"] for row in rows if row["order"] == order and row["control"] == NONE
              and row["column"] != REPEATED and row.get("value") is not None}
    return (sum(chosen.values()) / len(chosen) if chosen else None), list(chosen)


def score_metrics(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Every score by column and order."""
    found = {}
    for row in rows:
        place = f"{row['column']}/{row['order']}"
        if row.get("value") is not None:
            found[f"recall/{place}" if row["control"] == NONE else f"control/{row['control']}/{place}"] = row["value"]
        if row["control"] != NONE:
            continue
        if row.get("above_controls") and row["above_controls"]["difference"] is not None:
            found[f"above_controls/{place}"] = row["above_controls"]["difference"]
        found |= {f"errors/{name}/{place}": share for name, share in (row.get("errors") or {}).items()}
    return found


def _training(tracking: Tracking, run: str, kind: str, store: Store, folder: Path) -> None:
    summary = _json(folder / "summary.json")
    found = summary.get("validation_bits_per_byte")
    if isinstance(found, (int, float)) and summary.get("steps"):
        tracking.metrics(run, {"bits_per_byte": found}, summary["steps"], summary.get("tokens"))
    if not is_url(store.root):
        tracking.artifacts(run, folder / "summary.json")


def _measured(tracking: Tracking, run: str, kind: str, store: Store, folder: Path) -> None:
    """perplexity, extrapolation, deploy: a table, and the row that stands for it."""
    path = folder / f"{kind}.json"
    if not path.is_file():
        return
    rows = _json(path)
    tracking.table(run, rows, kind)
    for step, values in measured_metrics(kind, rows).items():
        if values:
            tracking.metrics(run, values, step=step)
    for figure in sorted(folder.glob("*.png")):
        tracking.artifacts(run, figure, "figures")


def measured_metrics(kind: str, rows: list[dict[str, Any]]) -> dict[int, dict[str, float]]:
    """Step -> metrics. Short names at step 0: of everything read, or of the shortest length as trained; timings as deployed
    by input length, which is the step."""
    found: dict[int, dict[str, float | None]] = {0: {}}
    if kind == "perplexity":
        whole = next((row for row in rows if row.get("slice") == "all"), {})
        found[0] = {name: whole.get(name) for name in LOSSES}
        found[0] |= {f"perplexity/{row['slice']}": row.get("perplexity") for row in rows if row.get("slice") != "all"}
    elif kind == "extrapolation":
        read = [row for row in rows if not row.get("overridden") and row.get("perplexity") is not None]
        found[0] = {name: min(read, key=lambda row: row["length"]).get(name) for name in LOSSES} if read else {}
    elif kind == "deploy":
        found |= {row["length"]: {"ttft_ms": row.get("ttft_ms"), "peak_bytes": row.get("peak_bytes"),
                                   "live_state_bytes": row.get("state_bytes"),
                                   "tokens_per_second": row.get("tokens_per_s")} for row in rows}
    return {step: {name: float(value) for name, value in values.items() if isinstance(value, (int, float))}
            for step, values in found.items()}


def _bench(tracking: Tracking, run: str, kind: str, store: Store, folder: Path) -> None:
    rows = _json(folder / "timings.json")
    tracking.table(run, rows, "timings")
    tracking.metrics(run, timing_metrics(rows), step=0)
    for figure in sorted((*folder.glob("*.png"), *folder.glob("*.md"))):
        tracking.artifacts(run, figure, "figures" if figure.suffix == ".png" else None)


def timing_metrics(rows: list[dict[str, Any]]) -> dict[str, float]:
    """`ms/forward/taylor/chunked/4096` and the ratios likewise, for every row that has them."""
    found = {}
    for row in rows:
        place = "/".join(str(row[name]) for name in ("measure", "op", "backend", "n"))
        place += f"/batch {row['batch']}" if row["batch"] not in (None, 1) else ""
        found |= {f"{name}/{place}": row[name] for name in ("ms", "ratio_to_sdpa", "ratio_to_peer", "peak_bytes",
                                                           "state_bytes", "floor_fraction") if row[name] is not None}
    return found


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
