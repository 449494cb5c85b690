"""The engine of a run without Prefect's server and without Ray: stages that end, die, hang, wait and fail."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import ray.exceptions
from prefect.states import Completed, Failed

from flows.planning.plan import Plan, Stage
from flows.running import limits, runner
from flows.running.work import Outcome
from flows.showing import results_page
from storage.artifacts import Store
from storage.errors import SpecError, StageFailed
from tests.flows.tiny_stages import TinySpec


class Reference:
    """Ray's reference to what a task returns, as far as the engine looks at it."""

    def __init__(self) -> None:
        self.done: Future = Future()

    def future(self) -> Future:
        return self.done


class Cluster:
    """Ray and Prefect's server: `answers` says what each attempt at a stage comes to, and everything is noted."""

    def __init__(self) -> None:
        self.answers: dict[str, list] = {}
        self.submitted: list[tuple[str, dict]] = []
        self.references: list[Reference] = []
        self.cancelled: list[Reference] = []
        self.states: list = []
        self.ended: list[str] = []
        self.published: list[str] = []
        self.events: list[str] = []
        self.options: list[dict] = []

    def submit(self, title, order, made_from):
        from prefect_ray.context import RemoteOptionsContext

        self.options.append(RemoteOptionsContext.get().current_remote_options)
        reference = Reference()
        self.submitted.append((title, made_from))
        self.references.append(reference)
        answer = self.answers[title].pop(0)
        if isinstance(answer, BaseException):
            reference.done.set_exception(answer)
        elif answer is not None:
            reference.done.set_result(answer)
        return SimpleNamespace(task_run_id=f"{title} {len(self.submitted)}", wrapped_future=reference)


@pytest.fixture
def cluster(home, monkeypatch):
    found = Cluster()
    task = SimpleNamespace(submit=found.submit)
    monkeypatch.setattr(runner, "TASKS", {kind: task for kind in limits.HOURS})
    monkeypatch.setattr(runner, "start", lambda: found.events.append("ray"))
    monkeypatch.setattr(runner, "shut_down", lambda: found.events.append("ray gone"))
    monkeypatch.setattr(runner, "session", lambda: SimpleNamespace(refresh=lambda: None))
    monkeypatch.setattr(runner, "check_gpus", lambda stages: None)
    monkeypatch.setattr(runner, "cluster_cores", lambda: 2)
    monkeypatch.setattr(runner, "get_run_logger", lambda: logging.getLogger("page"))
    monkeypatch.setattr(runner, "ended", lambda task, state: found.states.append((task, state)))
    monkeypatch.setattr(runner, "Runs", lambda plan, store: SimpleNamespace(
        of={}, address=None, about=lambda key: None, end=lambda status: (found.ended.append(status), found.events.append(status))))
    monkeypatch.setattr(results_page, "publish", lambda *_: found.published.append("page"))
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(limits, "RETRY_SECONDS", (0.05, 0.1))
    monkeypatch.setattr(ray, "cancel", lambda reference, force: found.cancelled.append(reference))
    return found


def plan(*stages: Stage) -> Plan:
    return Plan("tiny", {stage.key: stage for stage in stages}, stages[-1])


def stage(key: str, kind: str = "corpus", after: tuple[str, ...] = (), exists: bool = False) -> Stage:
    return Stage(key, kind, f"make {key}", TinySpec(name=key), {}, f"tiny-{key}", exists, after)


def made(key: str) -> Outcome:
    return Outcome(f"tiny-{key}", 1.0, 3.0)


def run(*stages: Stage) -> dict:
    return runner.Runner(plan(*stages), Store()).run()


def test_stages_run_in_order_and_the_page_is_made(cluster):
    cluster.answers = {"make a": [made("a")], "make b": [Completed(data=made("b"))]}
    done = run(stage("a"), stage("b", after=("a",)))
    assert [title for title, _ in cluster.submitted] == ["make a", "make b"]
    assert list(cluster.submitted[1][1]) == ["a"], "an edge of the graph"
    assert done["artifact"] == "tiny-b" and set(done["stages"]) == {"a", "b"}
    assert cluster.ended == ["FINISHED"] and cluster.published == ["page"]


def test_a_finished_plan_starts_no_ray_and_no_tracking(cluster, caplog):
    with caplog.at_level(logging.INFO, "page"):
        assert run(stage("a", exists=True))["stages"] == {}
    assert cluster.events == [] and "nothing to do" in caplog.text


def test_a_wrong_limit_is_told_before_ray(cluster, monkeypatch):
    monkeypatch.setenv(limits.VARIABLE, "pretrain=soon")
    with pytest.raises(SpecError, match=limits.VARIABLE):
        run(stage("a"))
    assert cluster.events == []


def test_a_stage_whose_process_died_is_tried_again_after_a_pause(cluster, caplog):
    cluster.answers = {"make a": [ray.exceptions.WorkerCrashedError(), made("a")]}
    began = time.monotonic()
    with caplog.at_level(logging.INFO, "page"):
        assert set(run(stage("a"))["stages"]) == {"a"}
    assert time.monotonic() - began >= 0.05 and len(cluster.submitted) == 2
    [(task, state)] = cluster.states
    assert task == "make a 1" and state.is_crashed() and "killed" in state.message, "its task run is not left Pending"
    assert "trying again" in caplog.text and "attempt 2 of 3" in caplog.text
    assert all(options["max_retries"] == 0 for options in cluster.options), "Ray would repeat it at once and unseen"


def test_a_stage_that_dies_each_time_ends_the_run_clearly(cluster):
    cluster.answers = {"make a": [ray.exceptions.WorkerCrashedError() for _ in range(3)]}
    with pytest.raises(StageFailed, match="process of make a was killed from outside 3 times.*memory"):
        run(stage("a"))
    assert len(cluster.states) == 3 and cluster.ended == ["FAILED"]


def test_a_helper_process_that_died_is_the_stages_own_to_try_again(cluster):
    """Prefect has tried it as often as it may; the stage's own process lives."""
    cluster.answers = {"make a": [Failed(data=ray.exceptions.WorkerCrashedError())]}
    with pytest.raises(StageFailed, match="make a failed: WorkerCrashedError"):
        run(stage("a"))
    assert len(cluster.submitted) == 1


def test_a_broken_ray_hides_no_failure(cluster, monkeypatch):
    def refuse(reference, force):
        raise RuntimeError("Ray is gone")

    monkeypatch.setattr(ray, "cancel", refuse)
    cluster.answers = {"make a": [None], "make b": [Failed(data=SpecError("wrong field: x"))]}
    with pytest.raises(SpecError, match="wrong field: x"):
        run(stage("a"), stage("b"))


def test_a_mistake_is_not_tried_again_and_stops_the_others(cluster):
    cluster.answers = {"make a": [None], "make b": [Failed(data=SpecError("wrong field: x"))]}
    with pytest.raises(SpecError, match="wrong field: x") as told:
        run(stage("a"), stage("b"), stage("c", after=("a", "b")))
    assert len(cluster.submitted) == 2 and cluster.cancelled == [cluster.references[0]]
    [(task, state)] = cluster.states
    assert task == "make a 1" and state.is_cancelled() and "wrong field: x" in state.message
    assert told.value.stages == {"make a": "stopped", "make b": "failed", "make c": "not started"}


def test_an_unexpected_failure_names_the_stage(cluster):
    cluster.answers = {"make a": [Failed(data=ValueError("a bug"))]}
    with pytest.raises(StageFailed, match="make a failed: ValueError: a bug") as told:
        run(stage("a"))
    assert isinstance(told.value.__cause__, ValueError)


def test_a_stage_that_takes_too_long_is_ended_by_name(cluster, monkeypatch):
    monkeypatch.setenv(limits.VARIABLE, "corpus=0.00003")
    cluster.answers = {"make a": [None]}
    with pytest.raises(StageFailed, match="make a took longer than 0.1 s.*REREAD_STAGE_HOURS=corpus"):
        run(stage("a"))
    [(task, state)] = cluster.states
    assert task == "make a 1" and state.name == "TimedOut" and cluster.cancelled == cluster.references


def test_cancelled_means_ray_gone_first_then_runs_killed(cluster, monkeypatch):
    from prefect.exceptions import TerminationSignal

    cluster.answers = {"make a": [None]}

    def interrupt(self):
        raise TerminationSignal(15)

    monkeypatch.setattr(runner.Runner, "ended", interrupt)
    with pytest.raises(TerminationSignal):
        run(stage("a"))
    assert cluster.events == ["ray", "ray gone", "KILLED"], "a stage that is torn down must not have the last word"
    assert [(task, state.type.value) for task, state in cluster.states] == [("make a 1", "CANCELLED")]


def test_a_second_interrupt_leaves_no_run_going_on(cluster, monkeypatch):
    import os
    import signal

    cluster.answers = {"make a": [None]}
    monkeypatch.setattr(runner, "shut_down", lambda: os.kill(os.getpid(), signal.SIGINT) or time.sleep(0.05))
    monkeypatch.setattr(runner.Runner, "ended", lambda self: os.kill(os.getpid(), signal.SIGINT) or [])
    with pytest.raises(KeyboardInterrupt):
        run(stage("a"))
    assert cluster.ended == ["KILLED"] and len(cluster.states) == 1


@pytest.mark.parametrize("trouble", [ConnectionError("http://me:secret@host is away"), KeyError("x")])
def test_a_page_that_cannot_be_made_costs_no_result(cluster, monkeypatch, caplog, trouble):
    def publish(*_):
        raise trouble

    monkeypatch.setattr(results_page, "publish", publish)
    cluster.answers = {"make a": [made("a")]}
    assert run(stage("a"))["artifact"] == "tiny-a"
    assert cluster.ended == ["FINISHED"] and "tiny-a is made; the page of results could not be" in caplog.text
    assert "secret" not in caplog.text


def test_a_waiting_stage_holds_nothing(cluster):
    """Neither one that waits for its input, nor one that waits for its next attempt, is known to Ray meanwhile."""
    gpu = Stage("g", "bench", "make g", TinySpec(name="g"), {}, "tiny-g", False, ("a",))
    cluster.answers = {"make a": [None], "make g": [ray.exceptions.WorkerCrashedError(), made("g")]}
    held = []

    def later():
        time.sleep(0.2)
        held.append([title for title, _ in cluster.submitted])
        cluster.references[0].done.set_result(made("a"))

    thread = threading.Thread(target=later)
    thread.start()
    run(stage("a"), gpu)
    thread.join()
    assert held == [["make a"]], "the benchmark waits here, not in Ray, where it would hold its GPU"
    assert [title for title, _ in cluster.submitted] == ["make a", "make g", "make g"]


def test_the_engine_waits_without_ray(cluster, monkeypatch):
    """Inside Ray the signal that ends a cancelled run would be swallowed."""
    def forbidden(*_, **__):
        raise AssertionError("blocked inside Ray")

    monkeypatch.setattr(ray, "wait", forbidden)
    monkeypatch.setattr(ray, "get", forbidden)
    cluster.answers = {"make a": [made("a")]}
    run(stage("a"))
