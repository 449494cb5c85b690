"""Drives the stages of one plan through Prefect and Ray, as early as their inputs and the cores allow.

Stages wait here, not in Ray: one that waits for its inputs, for cores or for its next attempt holds no core and no GPU.
This process never blocks inside Ray, where the signal that ends a cancelled run would be lost.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from concurrent import futures
from contextlib import suppress
from typing import Any

from prefect import get_run_logger, runtime
from prefect.states import Cancelled, Crashed, Failed
from prefect_ray.context import remote_options

from flows.planning.plan import Plan, Stage
from flows.recording.tracked import Runs
from flows.running import limits, schedule
from flows.running.embedded import uninterrupted
from flows.running.ray_runner import cores, session, shut_down, start
from flows.running.stages import TASKS
from flows.running.task_states import ended
from flows.running.work import Order, Outcome
from flows.showing import results_page
from flows.showing.run_log import run_log
from flows.showing.watch import Watch, clock
from storage.artifacts import Store
from storage.errors import RereadError, SpecError, StageFailed
from storage.home import local_home
from storage.masked import masked

POLL_SECONDS = 0.2
REFRESH_SECONDS = 3.0
AGAIN = "Run the same again to go on from what is done"


class Runner:
    """One plan, from its first missing stage to its goal. To be used inside a flow with our Ray task runner."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self.plan, self.store = plan, store
        self.tasks: dict[str, Any] = {}                       # Prefect's futures: they draw the edges of the graph
        self.waits: dict[str, futures.Future] = {}            # the same, to be waited for without Ray
        self.began: dict[str, float] = {}                     # monotonic; of the attempt under way
        self.attempts: dict[str, int] = {}
        self.not_before: dict[str, float] = {}
        self.running: dict[str, Stage] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.seconds = limits.stage_seconds()
        self.runs: Runs | None = None

    def run(self) -> dict[str, Any]:
        """Do what is missing.

        Returns {"artifact", "began", "ended", "stages": {key: {"title", "began", "ended"}}}, times in seconds since
        the epoch, only the stages that ran.

        Raises:
            RereadError: what a stage raised, or StageFailed naming the stage.
        """
        began = time.time()
        with run_log(get_run_logger()):
            if self.plan.finished:
                get_run_logger().info("%s exists: nothing to do", self.plan.goal.artifact)
            else:
                self._run()
        return {"artifact": self.plan.goal.artifact, "began": began, "ended": time.time(),
                "stages": {key: {"title": self.plan.stages[key].title, "began": outcome.began, "ended": outcome.ended}
                           for key, outcome in self.outcomes.items()}}

    def _run(self) -> None:
        self.runs = Runs(self.plan, self.store)
        folder = local_home() / "notes" / str(runtime.flow_run.id)
        try:
            start()
            with Watch(self.plan, folder) as watch:
                self.drive(watch)
        except Exception as error:
            error.stages = self.states()                           # for the page that tells what failed
            self.abandon(f"stopped since another stage failed: {error}")
            self.runs.end("FAILED")
            raise
        except BaseException:           # Ctrl-C, or cancelled; Ray goes first, so that no stage ends its run after us
            with uninterrupted():       # a second Ctrl-C would leave runs that seem to go on for ever
                shut_down()
                self.runs.end("KILLED")
                for key in self.running:
                    ended(self.tasks[key].task_run_id, Cancelled(message="the run was cancelled"))
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        try:
            results_page.publish(self.plan, self.store, self.outcomes, self.runs)
        except Exception as trouble:  # noqa: BLE001 - what was asked is made; only its page is not
            get_run_logger().warning("%s is made; the page of results could not be: %s: %s", self.plan.goal.artifact,
                                     type(trouble).__name__, masked(str(trouble)))
        finally:
            self.runs.end("FINISHED")

    def drive(self, watch: Watch) -> None:
        """The loop: start what can start, wait a little, collect what ended."""
        waiting = {stage.key: stage for stage in self.plan.missing()}
        done = {key for key in self.plan.stages if key not in waiting}
        check_gpus(waiting.values())
        capacity, refreshed = cluster_cores(), 0.0
        while waiting or self.running:
            now = time.monotonic()
            ready = [stage for key, stage in waiting.items() if self.not_before.get(key, now) <= now]
            for stage in schedule.start_now(ready, self.running.values(), done, capacity):
                self.submit(stage, watch)
                self.running[stage.key] = waiting.pop(stage.key)
                watch.started(stage)
            for key in self.ended():
                stage = self.running.pop(key)
                outcome = self.outcome(stage, watch)
                if outcome is None:
                    waiting[key] = stage
                    continue
                self.outcomes[key] = outcome
                watch.finished(stage, outcome.seconds)
                done.add(key)
            self.check_time(watch)
            watch.tick()
            if time.monotonic() - refreshed > REFRESH_SECONDS:
                refreshed = time.monotonic()
                session().refresh()

    def submit(self, stage: Stage, watch: Watch) -> None:
        """Hand one stage to Ray. Ray itself does not repeat it: that would be at once, and shown nowhere."""
        note = watch.note_path(stage)
        inputs = {"results": self.plan.results} if stage.kind == "report" else stage.inputs
        order = Order(stage.kind, stage.module, stage.title, stage.spec, inputs, self.store.root,
                      str(note) if note else None, self.runs.of.get(stage.key), self.runs.address,
                      self.runs.about(stage.key))
        made_from = {key: self.tasks[key] for key in stage.after if key in self.tasks}
        with remote_options(num_cpus=0 if stage.drives else stage.cores, num_gpus=stage.gpus, max_retries=0):
            task = TASKS[stage.kind].submit(stage.title, order, made_from)
        self.tasks[stage.key], self.waits[stage.key] = task, task.wrapped_future.future()
        self.attempts[stage.key] = self.attempts.get(stage.key, 0) + 1
        self.began[stage.key] = time.monotonic()

    def ended(self) -> list[str]:
        """Keys of the stages that ended, after a short wait."""
        keys = {self.waits[key]: key for key in self.running}
        if not keys:
            time.sleep(POLL_SECONDS)
        return [keys[future] for future in futures.wait(keys, POLL_SECONDS, futures.FIRST_COMPLETED).done]

    def outcome(self, stage: Stage, watch: Watch) -> Outcome | None:
        """What the stage returned; None when its process died and it shall be tried again."""
        done = self.waits[stage.key]
        if (death := done.exception()) is not None and limits.is_death(death):
            return self.again(stage, watch, death)
        try:
            outcome = result(done)
        except RereadError:
            watch.failed(stage)
            raise
        except Exception as error:
            watch.failed(stage)
            raise StageFailed(f"{stage.title} failed: {type(error).__name__}: {error}. {AGAIN}; --debug shows where it "
                              "happened, and so does the log of the run") from error
        if outcome.artifact != stage.artifact:
            raise StageFailed(f"{stage.title} made {outcome.artifact} where {stage.artifact} was planned: its sources "
                              "or inputs changed meanwhile; run the same command again")
        return outcome

    def again(self, stage: Stage, watch: Watch, error: Exception) -> None:
        """A stage whose process died: another attempt after a pause, or the end."""
        attempt = self.attempts[stage.key]
        died = f"the process of {stage.title} was killed from outside"
        ended(self.tasks[stage.key].task_run_id, Crashed(message=f"{died[0].upper()}{died[1:]}."))
        watch.failed(stage)
        if attempt > len(limits.RETRY_SECONDS):
            raise StageFailed(f"{died} {attempt} times, which mostly means that memory ran out: ask for less at once "
                              f"(shorter rows, a smaller batch) or free memory, then run the same again") from error
        pause = limits.RETRY_SECONDS[attempt - 1]
        self.not_before[stage.key] = time.monotonic() + pause
        get_run_logger().warning("%s; trying again in %.0f s (attempt %d of %d)", died, pause, attempt + 1,
                                 len(limits.RETRY_SECONDS) + 1)

    def check_time(self, watch: Watch) -> None:
        """StageFailed for a stage that takes longer than its kind may."""
        for key, stage in self.running.items():
            allowed = self.seconds[stage.kind]
            if time.monotonic() - self.began[key] > allowed:
                text = (f"{stage.title} took longer than {clock(allowed)}, the limit for stages of kind {stage.kind}: set "
                        f"{limits.VARIABLE}={stage.kind}=<hours> higher if it was only slow. {AGAIN}")
                watch.failed(stage)
                stop_task(self.tasks[key], Failed(name="TimedOut", message=text))
                self.running.pop(key)
                raise StageFailed(text)

    def abandon(self, reason: str) -> None:
        """End the stages that still run: what they would make has no use without the one that failed."""
        for key in self.running:
            stop_task(self.tasks[key], Cancelled(message=reason))

    def states(self) -> dict[str, str]:
        """How far each stage came, by title."""
        found = {}
        for key, stage in self.plan.stages.items():
            found[stage.title] = ("was there" if stage.exists else "done" if key in self.outcomes else
                                  "stopped" if key in self.running else
                                  "failed" if key in self.attempts else "not started")
        return found


def result(done: futures.Future) -> Outcome:
    """What a stage's task came to, which Prefect hands over as a state; raises what the stage raised."""
    from prefect.states import State

    value = done.result()
    return value.result(raise_on_failure=True, _sync=True) if isinstance(value, State) else value


def stop_task(task: Any, state: Any) -> None:
    """End the process that works on a task, and tell the server what became of it."""
    import ray

    with suppress(Exception):           # Ray itself may be what failed
        ray.cancel(task.wrapped_future, force=True)
    ended(task.task_run_id, state)


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
