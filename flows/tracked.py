"""Runs in MLflow: one for the study, one below it for each stage that trains or measures, ended with what they track.

Runs are created before stages start, by the one process that plans them, so that no stage makes a second one; a run
that an earlier attempt left unfinished is found by its fingerprint, the artifact id, and continued.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flows.plan import RUNS_IN_MLFLOW, Plan, Stage
from storage.artifacts import Store
from storage.home import is_url
from storage.provenance import git_commit
from storage.tracking import Tracking
from tasks.specs import Spec

PARAMS = 200           # a run page with more is not read


class Runs:
    """The runs of one plan. `of` maps stage keys to run ids, where the stage has one."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self.plan, self.store = plan, store
        self.tracking = Tracking()
        self.experiment = self.tracking.experiment(plan.name)
        commit = {"git_commit": git_commit() or "unknown"}
        goal = plan.goal
        self.parent = None
        if goal.kind == "report":
            self.parent = self.tracking.start(
                self.experiment, f"study {plan.name}",
                {**goal.tags, **commit, "fingerprint": goal.artifact, "artifact": goal.artifact}, flat(goal.spec))
        self.of = {stage.key: self._start(stage, commit) for stage in plan.missing() if stage.kind in RUNS_IN_MLFLOW}

    def _start(self, stage: Stage, commit: dict[str, str]) -> str:
        inputs = {f"input.{role}": artifact for role, artifact in stage.inputs.items()}
        return self.tracking.start(
            self.experiment, stage.title,
            {**stage.tags, **commit, **inputs, "fingerprint": stage.artifact, "artifact": stage.artifact},
            flat(stage.spec), self.parent)

    @property
    def address(self) -> str:
        """What a worker needs to log to the same store."""
        return self.tracking.uri

    @property
    def page(self) -> str:
        """Path of the page that shows these runs, to be put after the server's address."""
        return "/" + self.tracking.experiment_link(self.experiment)

    def publish(self, store: Store) -> None:
        """The files of the report go to the study's run."""
        if self.parent is not None:
            self.tracking.artifacts(self.parent, store.path(self.plan.goal.artifact), "report")

    def end(self, status: str) -> None:
        """FINISHED, FAILED or KILLED. Runs of stages that did not get to their own end are ended so; a finished one stays."""
        if status != "FINISHED":
            for key, run in self.of.items():
                if not self.store.exists(self.plan.stages[key].artifact):
                    self.tracking.finish(run, status)
        if self.parent is not None:
            self.tracking.finish(self.parent, status)
        self.tracking.close()


@contextmanager
def tracked(uri: str | None, run: str | None) -> Iterator[dict[str, Any]]:
    """Keyword arguments for a stage that has a run. The run ends the way the stage does."""
    if run is None:
        yield {}
        return
    tracking = Tracking(uri)
    status = "FAILED"
    try:
        yield {"tracking": tracking, "run_id": run}
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        tracking.finish(run, status)
        tracking.close()


def record(tracking: Tracking, run: str, kind: str, store: Store, artifact: str) -> None:
    """Put what a measuring stage made where people look: a table, and its headline numbers as metrics."""
    folder = store.path(artifact)
    if kind == "evaluate":
        rows = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
        tracking.table(run, rows, "scores")
        tracking.metrics(run, {f"{row['column']}/{row['order']}/{row['control']}": row["value"] for row in rows
                               if row.get("value") is not None}, step=0)
    elif kind in ("perplexity", "extrapolation", "deploy"):
        rows = json.loads((folder / f"{kind}.json").read_text(encoding="utf-8"))
        tracking.table(run, rows, kind)
    elif kind == "bench":
        rows = json.loads((folder / "timings.json").read_text(encoding="utf-8"))
        tracking.table(run, rows, "timings")
        tracking.metrics(run, timing_metrics(rows), step=0)
        for figure in sorted((*folder.glob("*.png"), *folder.glob("*.md"))):
            tracking.artifacts(run, figure, "figures" if figure.suffix == ".png" else None)
    elif kind == "pretrain" and not is_url(store.root):
        tracking.artifacts(run, folder / "summary.json")


def timing_metrics(rows: list[dict[str, Any]]) -> dict[str, float]:
    """`ms/forward/taylor/chunked/4096` and the ratios likewise, for every row that has them."""
    found = {}
    for row in rows:
        place = "/".join(str(row[name]) for name in ("measure", "op", "backend", "n"))
        place += f"/batch {row['batch']}" if row["batch"] not in (None, 1) else ""
        found |= {f"{name}/{place}": row[name] for name in ("ms", "ratio_to_sdpa", "ratio_to_peer", "peak_bytes",
                                                           "state_bytes", "floor_fraction") if row[name] is not None}
    return found


def flat(spec: Spec, prefix: str = "") -> dict[str, Any]:
    """The fields of a spec by dotted name."""
    found: dict[str, Any] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, dict) and value:
            for key, item in value.items():
                walk(item, f"{name}.{key}" if name else str(key))
        elif value is not None and len(found) < PARAMS:
            found[name] = value

    walk(spec.model_dump(mode="json"), prefix)
    return found
