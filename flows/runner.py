"""Drives the stages of one plan through Prefect and Ray, as early as their inputs and the cores allow."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from typing import Any

from prefect import get_run_logger, runtime
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect_ray.context import remote_options

from flows import schedule, services
from flows.plan import Plan, Stage
from flows.ray_runner import cores, session
from flows.stages import TASKS
from flows.tracked import Runs
from flows.watch import Watch
from flows.work import Order, Outcome
from storage.artifacts import Store
from storage.errors import RereadError, SpecError, StageFailed
from storage.home import local_home

POLL_SECONDS = 0.2
REFRESH_SECONDS = 3.0


class Runner:
    """One plan, from its first missing stage to its goal. To be used inside a flow with a Ray task runner."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self.plan, self.store = plan, store
        self.futures: dict[str, Any] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.runs: Runs | None = None

    def run(self) -> dict[str, Any]:
        """Do what is missing.

        Returns {"artifact", "began", "ended", "stages": {key: {"title", "began", "ended"}}}, times in seconds since
        the epoch, only the stages that ran.

        Raises:
            RereadError: what a stage raised, or StageFailed naming the stage.
        """
        began = time.time()
        if not self.plan.finished:
            self.runs = Runs(self.plan, self.store)
            folder = local_home() / "notes" / str(runtime.flow_run.id)
            try:
                with Watch(self.plan, folder) as watch:
                    self.drive(watch)
            except BaseException as error:
                self.runs.end("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")
                raise
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            self.publish()
            self.runs.end("FINISHED")
        else:
            get_run_logger().info("%s exists: nothing to do", self.plan.goal.artifact)
        return {"artifact": self.plan.goal.artifact, "began": began, "ended": time.time(),
                "stages": {key: {"title": self.plan.stages[key].title, "began": outcome.began, "ended": outcome.ended}
                           for key, outcome in self.outcomes.items()}}

    def drive(self, watch: Watch) -> None:
        """The loop: start what can start, wait a little, collect what ended."""
        waiting = {stage.key: stage for stage in self.plan.missing()}
        done = {key for key in self.plan.stages if key not in waiting}
        running: dict[str, Stage] = {}
        check_gpus(waiting.values())
        capacity, refreshed = cluster_cores(), 0.0
        while waiting or running:
            for stage in schedule.start_now(waiting.values(), running.values(), done, capacity):
                self.futures[stage.key] = self.submit(stage, watch)
                running[stage.key] = waiting.pop(stage.key)
                watch.started(stage)
            for key in self.wait(running):
                stage = running.pop(key)
                self.outcomes[key] = self.outcome(stage, watch)
                watch.finished(stage, self.outcomes[key].seconds)
                done.add(key)
            watch.tick()
            if time.monotonic() - refreshed > REFRESH_SECONDS:
                refreshed = time.monotonic()
                session().refresh()

    def submit(self, stage: Stage, watch: Watch) -> Any:
        note = watch.note_path(stage)
        inputs = {"results": self.plan.results} if stage.kind == "report" else stage.inputs
        order = Order(stage.kind, stage.module, stage.title, stage.spec, inputs, self.store.root,
                      str(note) if note else None, self.runs.of.get(stage.key), self.runs.address)
        made_from = {key: self.futures[key] for key in stage.after if key in self.futures}
        with remote_options(num_cpus=0 if stage.drives else stage.cores, num_gpus=stage.gpus):
            return TASKS[stage.kind].submit(stage.title, order, made_from)

    def wait(self, running: dict[str, Stage]) -> list[str]:
        """Keys of the stages that ended, after a short wait."""
        import ray

        references = {self.futures[key].wrapped_future: key for key in running}
        ended, _ = ray.wait(list(references), num_returns=1, timeout=POLL_SECONDS)
        return [references[reference] for reference in ended]

    def outcome(self, stage: Stage, watch: Watch) -> Outcome:
        """What the stage returned; also raises for a stage whose process died, which Prefect itself does not."""
        try:
            outcome = self.futures[stage.key].result()
        except RereadError:
            watch.failed(stage)
            raise
        except Exception as error:
            watch.failed(stage)
            raise StageFailed(f"{stage.title} failed: {type(error).__name__}: {error}. Run the same command again to "
                              "go on from what is done; --debug shows where it happened") from error
        if outcome.artifact != stage.artifact:
            raise StageFailed(f"{stage.title} made {outcome.artifact} where {stage.artifact} was planned: its sources "
                              "or inputs changed meanwhile; run the same command again")
        return outcome

    def publish(self) -> None:
        """The result table and the links on the page of the flow run, the report's files in the study's MLflow run."""
        pages = services.mlflow_url() + self.runs.page
        key = f"study-{self.plan.name}" if self.plan.goal.kind == "report" else f"{self.plan.goal.kind}-result"
        create_link_artifact(pages, "Training runs in MLflow", key=f"{key}-mlflow",
                             description=f"MLflow, experiment {self.plan.name}: [{pages}]({pages})")
        if self.plan.goal.kind == "report":
            self.runs.publish(self.store)
            folder = self.store.path(self.plan.goal.artifact)
            text = (folder / "report.md").read_text(encoding="utf-8")
            create_markdown_artifact(without_images(text), key=key, description=f"Report of study {self.plan.name}")
        get_run_logger().info("%s; MLflow: %s", self.plan.goal.artifact, pages)


def without_images(markdown: str) -> str:
    """Prefect shows Markdown but has no files beside it."""
    return "\n".join(line for line in markdown.splitlines() if not line.startswith("![")) + "\n"


def check_gpus(stages: Iterable[Stage]) -> None:
    """SpecError where a stage would wait for ever for a GPU: the embedded Ray gets no more than this machine has."""
    import ray

    here = ray.cluster_resources().get("GPU", 0)
    for stage in stages:
        if stage.gpus > here and not os.environ.get("RAY_ADDRESS"):
            raise SpecError(f"{stage.title} needs {stage.gpus} GPU, this machine shows Ray {here:.0f}; set RAY_ADDRESS to a "
                            "cluster that has one, or take device=cpu")


def cluster_cores() -> int:
    """Cores that stages may use."""
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", cores())))
