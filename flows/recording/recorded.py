"""What a stage made, where people look in MLflow: headline numbers under short names, tables, figures, a few words.

    evaluate       recall, recall/mean, low, high, above_controls; recall/<order>/<column>; tables scores, predictions/...
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
from flows.recording.scored import headline_metrics, score_metrics, score_table, words
from storage.artifacts import Store
from storage.home import is_url
from storage.tracking import Tracking
from storage.tracking.limits import cut_whole

LOSSES = ("loss", "bits_per_byte", "perplexity")
NOTE = "mlflow.note.content"


def record(tracking: Tracking, run: str, kind: str, store: Store, artifact: str, about: About | None = None) -> None:
    """Put what a measuring stage made where people look."""
    about, folder = about or About(), store.path(artifact)
    numbers = {name: float(about.facts[name]) for name in NUMBERS        # a training counts its tokens itself
               if name in about.facts and (name, kind) != ("tokens", "pretrain")}
    recorder = {"evaluate": _evaluation, "pretrain": _training, "bench": _bench}.get(kind, _measured)
    recorder(tracking, run, kind, store, folder)            # first: MLflow lists metrics as they came
    if numbers:
        tracking.metrics(run, numbers, step=0)


def _evaluation(tracking: Tracking, run: str, kind: str, store: Store, folder: Path) -> None:
    rows = _json(folder / "scores.json")
    found = headline_metrics(folder, rows)
    tracking.metrics(run, found | score_metrics(rows), step=0)
    counts = store.manifest(folder.name).counts
    if counts.get("examples_per_second"):
        tracking.metrics(run, {"examples_per_second": counts["examples_per_second"]}, step=0)
    tracking.table(run, score_table(rows), "scores")
    tables, shown, asked = answer_tables(store, folder)
    for name, table in tables.items():
        tracking.table(run, table, f"predictions/{name}")
    left = "" if shown == asked else f", {asked - shown:,} more in artifact `{folder.name}`"
    pages = [f"[{name.replace('_', ' ')}]({tracking.link(run, f'predictions/{name}.json')})" for name in tables]
    tracking.tag(run, {NOTE: words(rows, found, f"Answers: {', '.join(pages)} ({shown:,} of {asked:,} shown{left}). [All scores]"
                                                f"({tracking.link(run, 'scores.json')}), with shares of mistakes.")})
    for figure in sorted(folder.glob("*.png")):
        tracking.artifacts(run, figure, "figures")


def _training(tracking: Tracking, run: str, kind: str, store: Store, folder: Path) -> None:
    summary = _json(folder / "summary.json")
    found = summary.get("validation_bits_per_byte")
    if isinstance(found, (int, float)) and summary.get("steps"):
        tracking.metrics(run, {"bits_per_byte": found}, summary["steps"], summary.get("tokens"))
    if not is_url(store.root):
        tracking.artifacts(run, folder / "summary.json")
    tracking.tag(run, {NOTE: training_words(summary, folder.name)})


def training_words(summary: dict[str, Any], checkpoint: str) -> str:
    """What a training came to. summary: its summary.json; what it does not say is left out."""
    said = [f"**{words} {summary[name]:.3f}**" for name, words in (
        ("validation_bits_per_byte", "validation bits per byte"), ("loss", "last loss")) if isinstance(summary.get(name), (int, float))]
    counted = [f"{summary[name]:,} {name}" for name in ("tokens", "steps") if isinstance(summary.get(name), int)]
    return f"{', '.join(said) or 'Trained'}{' after ' + ' in '.join(counted) if counted else ''}. Checkpoint `{checkpoint}`."


def study_words(report: str, page: str, runs: str) -> str:
    """What a study came to: links to its report and its runs, then what its report.md says before its second heading."""
    intro, _, sections = report.partition("\n## ")
    first = "\n".join(line for line in sections.partition("\n## ")[0].splitlines() if not line.startswith("!["))
    told = (f"[Report]({page}) · [Runs by recall]({runs})", intro.partition("\n")[2].strip(), first and f"### {first.strip()}")
    return cut_whole("\n\n".join(part for part in told if part))


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
    for length, values in sorted(timing_metrics(rows).items()):
        tracking.metrics(run, values, step=length)
    for figure in sorted((*folder.glob("*.png"), *folder.glob("*.md"))):
        tracking.artifacts(run, figure, "figures" if figure.suffix == ".png" else None)


def timing_metrics(rows: list[dict[str, Any]]) -> dict[int, dict[str, float]]:
    """Length, which is the step -> `ms/forward/taylor chunked` and the ratios likewise, for every row that has them: a group
    a measure, in it a curve an operation."""
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        place = f"{row['measure']}/{row['op']} {row['backend']}"
        place += f" batch {row['batch']}" if row["batch"] not in (None, 1) else ""
        found.setdefault(int(row["n"] or 0), {}).update({
            f"{name}/{place}": row[name] for name in ("ms", "ratio_to_sdpa", "ratio_to_peer", "peak_bytes", "state_bytes",
                                                     "floor_fraction") if row[name] is not None})
    return found


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
