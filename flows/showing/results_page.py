"""What a finished run leaves on its Prefect page: the result as a table, its stages with their times, links to MLflow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flows.planning.plan import Plan
from flows.recording.tracked import Runs
from flows.running.work import Outcome
from flows.services import local
from flows.showing.columns import MEASURED, with_controls
from flows.showing.watch import clock
from storage.artifacts import Store
from storage.tracking.places import run_link

ROWS = 60              # a longer table is cut: MLflow has the whole one
BENCH = ("measure", "op", "backend", "n", "batch", "ms", "ratio_to_sdpa", "ratio_to_peer")
TRAINED = {"validation_bits_per_byte": "bits per byte (validation)", "validation_loss": "loss (validation)",
           "loss": "loss (training)", "loss_answer": "loss of answers", "tokens": "tokens",
           "tokens_per_second": "tokens/s", "parameters": "parameters", "seconds": "seconds"}


def publish(plan: Plan, store: Store, outcomes: Mapping[str, Outcome], runs: Runs) -> None:
    """Artifacts of the flow run, and the report's files in the study's MLflow run."""
    from prefect import get_run_logger
    from prefect.artifacts import create_link_artifact, create_markdown_artifact

    server, goal = local.mlflow_url(), plan.goal
    place = server + runs.page
    key = key_of(f"study-{plan.name}" if goal.kind == "report" else f"{goal.kind}-result")
    if goal.kind == "report":
        runs.publish(store)
    create_markdown_artifact(page(plan, store, outcomes, links(runs, server)), key=key,
                             description=f"{goal.title}: result, stages, links")
    create_link_artifact(place, "Training runs in MLflow", key=f"{key}-mlflow",
                         description=f"MLflow, experiment {plan.name}: [{place}]({place})")
    get_run_logger().info("%s; MLflow: %s", goal.artifact, place)


def links(runs: Runs, server: str) -> dict[str, str]:
    """Addresses in MLflow: of every stage that has a run, by its key; of the study as ``""``; of all runs as `*`."""
    found = {key: f"{server}/{run_link(runs.experiment, run)}" for key, run in runs.of.items()}
    if runs.parent is not None:
        found[""] = f"{server}/{run_link(runs.experiment, runs.parent)}"
    return {**found, "*": server + runs.page}


def page(plan: Plan, store: Store, outcomes: Mapping[str, Outcome], found: Mapping[str, str]) -> str:
    """The whole page in Markdown. `found`: see `links`."""
    goal = plan.goal
    ends = [goal] if goal.kind != "evaluate" else [one for one in plan.stages.values() if one.kind == goal.kind]
    named = {"": f"study {plan.name}", **{one.key: one.title for one in ends}, "*": f"all runs of {plan.name}"}
    shown = [f"[{name}]({found[key]})" for key, name in named.items() if key in found]
    parts = []
    for one in ends:                    # a night asks a model several evaluations
        parts += [] if one.kind == "report" else [f"# {one.title}"]
        parts += [result(one.kind, store.path(one.artifact))]
    parts += [*([f"In MLflow: {', '.join(shown)}"] if shown else []),
              "## Stages", stages(plan, outcomes, found)]
    return "\n\n".join(parts) + "\n"


def result(kind: str, folder: Path) -> str:
    """What the goal of a plan found, as Markdown."""
    if kind == "report":
        return without_images((folder / "report.md").read_text(encoding="utf-8")).strip()
    if kind == "evaluate":
        return table(("task", "column", "order", "prompts", "recall", "95 % interval", "controls"), [
            (row["task"], row["column"], row["order"], row["n"], row["value"], interval(row),
             ", ".join(f"{name} {cell(value)}" for name, value in row["controls"].items()))
            for row in with_controls(read(folder / "scores.json"))])
    if kind == "pretrain":
        summary = read(folder / "summary.json")
        return table(("", "value"), [(text, summary[name]) for name, text in TRAINED.items()
                                     if summary.get(name) is not None])
    if kind == "bench":
        return filled(read(folder / "timings.json"), BENCH)
    if kind in MEASURED:
        return filled(read(folder / f"{kind}.json"), MEASURED[kind])
    counts = read(folder / "manifest.json").get("counts", {})
    return table(("", "value"), [(name, value) for name, value in counts.items() if not isinstance(value, (dict, list))])


def stages(plan: Plan, outcomes: Mapping[str, Outcome], found: Mapping[str, str]) -> str:
    """One row a stage that ran, in the order in which they began."""
    rows = []
    for key, outcome in sorted(outcomes.items(), key=lambda item: item[1].began):
        stage = plan.stages[key]
        speed = stage.tokens / outcome.seconds if stage.tokens and outcome.seconds else None
        rows.append((stage.title, clock(outcome.seconds), speed, f"`{outcome.artifact}`",
                     f"[run]({found[key]})" if key in found else ""))
    there = sum(stage.exists for stage in plan.stages.values())
    text = table(("stage", "took", "tokens/s", "artifact", "MLflow"), rows)
    return text + (f"\n\n{there} more {'was' if there == 1 else 'were'} there already." if there else "")


def filled(rows: list[dict[str, Any]], columns: Iterable[str]) -> str:
    """These columns of the rows, without those that nothing fills."""
    kept = [name for name in columns if any(row.get(name) is not None for row in rows)]
    return table(kept, [[row.get(name) for name in kept] for row in rows])


def table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table, cut after ROWS rows."""
    columns, rows = list(columns), [list(row) for row in rows]
    lines = [columns, ["---"] * len(columns), *([cell(value) for value in row] for row in rows[:ROWS])]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return text + (f"\n\n{len(rows) - ROWS} more rows: see MLflow." if len(rows) > ROWS else "")


def cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value).replace("|", "\\|").replace("\n", " ")


def interval(row: Mapping[str, Any]) -> str:
    return "–" if row.get("low") is None else f"{row['low']:.3f} to {row['high']:.3f}"


def key_of(text: str) -> str:
    """A key that Prefect accepts: lower case, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def without_images(markdown: str) -> str:
    """Prefect shows Markdown but has no files beside it."""
    return "\n".join(line for line in markdown.splitlines() if not line.startswith("![")) + "\n"
