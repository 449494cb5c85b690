"""Runs in MLflow: one for the study, one below it for each stage that trains or measures, ended with what they track.

Runs are created before stages start, by the one process that plans them, so that no stage makes a second one; a run
that an earlier attempt left unfinished is found by its fingerprint, the artifact id, and continued.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from flows.planning.plan import RUNS_IN_MLFLOW, Plan, Stage
from flows.recording.about import KINDS, About, Abouts, parameters
from flows.recording.lineage import datasets
from flows.recording.recorded import NOTE, record, study_words
from flows.recording.registering import register, register_missed
from storage import logs
from storage.artifacts import Store
from storage.provenance import git_commit
from storage.tracking import Tracking, experiment_link
from storage.tracking.system import watched
from storage.tracking.views import START

VIEWS = {"pretrain": "training", "perplexity": "reading", "extrapolation": "reading", "deploy": "speed", "bench": "speed"}

log = logs.get("flows.tracked")

__all__ = ["Runs", "finished", "record", "tracked"]


class Runs:
    """The runs of one plan. `of` maps stage keys to run ids, where the stage has one."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self.plan, self.store = plan, store
        self.tracking = Tracking()
        self.experiment = self.tracking.experiment(plan.name)
        self.abouts = Abouts(plan, store)
        commit = {"git_commit": git_commit() or "unknown"}
        goal = plan.goal
        self.parent = None
        if goal.kind == "report":
            self.parent = self.tracking.start(
                self.experiment, f"study {plan.name}",
                {**goal.tags, **commit, "kind": KINDS["report"], "fingerprint": goal.artifact, "artifact": goal.artifact},
                parameters(About(), goal.spec))
        self.of = {stage.key: self._start(stage, commit) for stage in plan.missing() if stage.kind in RUNS_IN_MLFLOW}

    def _start(self, stage: Stage, commit: dict[str, str]) -> str:
        inputs = {f"input.{role}": artifact for role, artifact in stage.inputs.items()}
        about = self.abouts.of(stage)
        return self.tracking.start(
            self.experiment, stage.title,
            {**about.facts, **commit, **inputs, "fingerprint": stage.artifact, "artifact": stage.artifact},
            parameters(about, stage.spec), self.parent)

    def about(self, key: str) -> About | None:
        """What the process that does a stage has to know of its run; None for a stage without one."""
        return self.abouts.of(self.plan.stages[key]) if key in self.of else None

    @property
    def address(self) -> str:
        """What a worker needs to log to the same store."""
        return self.tracking.uri

    @property
    def page(self) -> str:
        """Path of the page that shows these runs in the view that fits, to be put after the server's address."""
        return "/" + experiment_link(self.experiment, VIEWS.get(self.plan.goal.kind, START))

    def publish(self, store: Store) -> None:
        """The files of the report go to the study's run, and the report as one page, `report.html`."""
        if self.parent is None:
            return
        from flows.services.local import mlflow_url
        from tasks.reporting.html import page

        folder = store.path(self.plan.goal.artifact)
        self.tracking.artifacts(self.parent, folder, "report")
        runs = {self.plan.stages[key].title: f"{mlflow_url()}/{self.tracking.link(run)}" for key, run in self.of.items()}
        self.tracking.text(self.parent, page(folder, f"Study {self.plan.name}", runs), "report.html")
        self.tracking.tag(self.parent, {NOTE: study_words((folder / "report.md").read_text(encoding="utf-8"), self.tracking.link(
            self.parent, "report.html"), experiment_link(self.experiment))})

    def end(self, status: str) -> None:
        """FINISHED, FAILED or KILLED. Runs of stages that did not get to their own end are ended so; a finished one stays."""
        if status != "FINISHED":
            for key, run in self.of.items():
                if not self.store.exists(self.plan.stages[key].artifact):
                    self.tracking.finish(run, status)
        try:
            self._register_missed()
        except Exception as trouble:  # noqa: BLE001 - must not take the place of what the study itself ended with
            log.warning("earlier checkpoints are not registered: %s: %s", type(trouble).__name__, trouble)
        finally:
            if self.parent is not None:
                self.tracking.finish(self.parent, status)
            self.tracking.close()

    def _register_missed(self) -> None:
        """Trainings of this plan that were there before: an earlier process may have been killed before it registered."""
        before = {stage.artifact: about for stage in self.plan.stages.values()
                  if stage.kind == "pretrain" and stage.key not in self.of and self.store.exists(stage.artifact)
                  and (about := self.abouts.of(stage)).register}
        register_missed(self.tracking, self.experiment, self.store, before)


@contextmanager
def tracked(uri: str | None, run: str | None, about: About | None = None, store: Store | None = None,
            inputs: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Keyword arguments for a stage that has a run. The run ends the way the stage does; it names the data that the stage
    reads, and of a training also what the machine does meanwhile."""
    if run is None:
        yield {}
        return
    tracking = Tracking(uri)
    status = "FAILED"
    try:
        if store is not None and about is not None:
            tracking.inputs(run, datasets(store, inputs or {}, about))
        training = about is not None and about.facts.get("kind") == KINDS["pretrain"]
        with watched(tracking, run) if training else nullcontext():
            yield {"tracking": tracking, "run_id": run}
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        tracking.finish(run, status)
        tracking.close()


def finished(tracking: Tracking, run: str, kind: str, store: Store, artifact: str, about: About | None = None) -> None:
    """What a stage made is shown in its run; a training also becomes a version of its registered model."""
    record(tracking, run, kind, store, artifact, about)
    if about is not None and about.register:
        register(tracking, run, store, artifact, about)
