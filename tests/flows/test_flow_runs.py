"""Runs triggered as on Prefect's pages, on the real stack: a mistake, a training that loses its worker and is cancelled,
a run with nothing to do. One stack for all."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from flows.services.processes import ProcessId
from tests.flows.test_end_to_end import Command, call

pytestmark = [pytest.mark.services, pytest.mark.timeout(1500)]

SETS = {"batches": 40, "vocabulary": 256}
ENDS = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


class Stack:
    """What `reread up` serves, and runs by its REST interface."""

    def __init__(self, home: Path) -> None:
        self.home = home
        records = {path.stem: json.loads(path.read_text()) for path in (home / "services").glob("*.json")}
        self.api = records["prefect"]["url"] + "/api"
        self.served = records["deployments"]["process"]["pid"]
        self.deployments = {one["name"]: one["id"] for one in call(f"{self.api}/deployments/filter", {})}

    def submit(self, deployment: str, **form) -> str:
        return call(f"{self.api}/deployments/{self.deployments[deployment]}/create_flow_run",
                    {"parameters": {"request": form}, "state": {"type": "SCHEDULED"}})["id"]

    def state(self, run: str) -> dict:
        return call(f"{self.api}/flow_runs/{run}")["state"]

    def until(self, run: str, *types: str, seconds: float = 600) -> dict:
        deadline = time.time() + seconds
        while (state := self.state(run))["type"] not in types:
            assert time.time() < deadline and (state["type"] not in ENDS), (state, self.log(run))
            time.sleep(0.3)
        return state

    def log(self, run: str) -> list[str]:
        found = call(f"{self.api}/logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}, "sort": "TIMESTAMP_ASC"})
        return [one["message"] for one in found]

    def ended_log(self, run: str, words: str) -> list[str]:
        """The log once those words are in it: the last lines arrive a moment after the state."""
        deadline = time.time() + 20
        lines = self.log(run)
        while not any(words in line for line in lines) and time.time() < deadline:
            time.sleep(0.2)
            lines = self.log(run)
        return lines

    def tasks(self, run: str) -> list[tuple[str, str]]:
        found = call(f"{self.api}/task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}, "sort": "EXPECTED_START_TIME_ASC"})
        return [(one["name"], one["state"]["type"]) for one in found]

    def artifacts(self, run: str) -> dict[str, dict]:
        found = call(f"{self.api}/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run]}}})
        return {one["key"]: one for one in found if one["key"]}

    def family(self) -> list[psutil.Process]:
        """The processes of the run under way."""
        return psutil.Process(self.served).children(recursive=True)


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs") / "home"
    up = Command(home, "up", "--detach")
    try:
        assert up.end(400) == 0, up.log.read_text()
        yield Stack(home)
    finally:
        Command(home, "down").end(120)


def clean(lines: list[str]) -> None:
    """Nothing that only frameworks care about."""
    for line in lines:
        assert not line.startswith(("Finished in state", "Beginning flow run")), lines
        assert not any(noise in line for noise in ("Traceback", "Deprecat", "*** SIG", "ray::", "C  [", "Engine execution")), lines


def test_a_mistake_is_told_at_once_and_without_ray(stack):
    began = time.time()
    run = stack.submit("evaluate", checkpoint="checkpoint-0000", prompts={"task": "disjoint"})
    rays = []
    while (state := stack.state(run))["type"] not in ENDS:
        rays += [process for process in stack.family() if "raylet" in process.name()]
        assert time.time() - began < 120, state
        time.sleep(0.2)
    print(f"a wrong checkpoint: told after {time.time() - began:.1f} s, load {os.getloadavg()[0]:.1f}")
    assert state["type"] == "FAILED" and "checkpoint-0000" in state["message"] and rays == []
    assert not state["message"].startswith(("Flow run", "Validation")), state["message"]
    failure = stack.artifacts(run)["failure"]
    assert state["message"] in failure["data"] and "What to do" in failure["data"]
    lines = stack.ended_log(run, state["message"])
    assert lines[-1] == state["message"]
    clean(lines)


def test_a_training_loses_its_worker_goes_on_and_is_cancelled(stack):
    began = time.time()
    run = stack.submit("pretrain", model="jrt-tiny", data={**SETS, "batches": 1500})

    def curve() -> int:
        return sum(len(path.read_text().splitlines()) for path in stack.home.glob("work/*/curve.jsonl"))

    def step(after: int, seconds: float = 600) -> None:
        deadline = time.time() + seconds
        while curve() <= after:
            assert stack.state(run)["type"] not in ENDS and time.time() < deadline, stack.log(run)
            time.sleep(0.2)

    step(0)
    print(f"submit to first training step: {time.time() - began:.1f} s, load {os.getloadavg()[0]:.1f}")

    [worker] = [process for process in stack.family() if process.name().startswith("ray::pretrain")]
    worker.send_signal(signal.SIGKILL)
    deadline = time.time() + 300
    while not any("attempt 2" in line for line in stack.log(run)):
        assert time.time() < deadline, stack.log(run)
        time.sleep(0.3)
    while not any(process.name().startswith("ray::pretrain") for process in stack.family()):
        assert time.time() < deadline, stack.log(run)
        time.sleep(0.3)
    step(curve())
    assert ("CRASHED" in [state for name, state in stack.tasks(run) if name.startswith("pretrain")]), stack.tasks(run)

    processes = [ProcessId.of(process) for process in stack.family()]
    assert len(processes) > 3
    call(f"{stack.api}/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    began, gone = time.time(), None
    while (state := stack.state(run))["type"] != "CANCELLED" or gone is None:
        if gone is None and not any(identity.alive for identity in processes):
            gone = time.time() - began
        assert state["type"] != "CRASHED" and time.time() - began < 60, (state, stack.log(run))
        time.sleep(0.1)
    print(f"cancelled: {len(processes)} processes gone after {gone:.1f} s, state after {time.time() - began:.1f} s, "
          f"load {os.getloadavg()[0]:.1f}")
    assert gone <= 10 * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)) / 2), "10 s, more on a busy machine"
    assert {state for name, state in stack.tasks(run) if name.startswith("pretrain")} <= {"CRASHED", "CANCELLED"}
    clean(stack.log(run))
    served = (stack.home / "logs" / "deployments.log").read_text().splitlines()
    assert not any("*** SIGTERM" in line or "SystemExit" in line or "ray::core" in line for line in served[-10:]), served[-10:]

    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{stack.home}/mlflow.db")
    [tracked] = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert tracked.info.status == "KILLED"


def test_a_finished_run_shows_its_result_and_has_nothing_to_do_again(stack):
    form = {"task": "disjoint", "orders": ["small_first"], "limit": 2}
    run = stack.submit("cloze", **form)
    stack.until(run, "COMPLETED")
    lines = stack.ended_log(run, "; MLflow: ")
    clean(lines)
    assert any(" in " in line and "prompts-" in line for line in lines), lines
    found = stack.artifacts(run)
    assert {"cloze-result", "cloze-result-mlflow"} <= set(found) and "## Stages" in found["cloze-result"]["data"]

    began = time.time()
    again = stack.submit("cloze", **form)
    stack.until(again, "COMPLETED")
    print(f"nothing to do: ended after {time.time() - began:.1f} s, load {os.getloadavg()[0]:.1f}")
    assert any("nothing to do" in line for line in stack.ended_log(again, "nothing to do")) and stack.tasks(again) == []
