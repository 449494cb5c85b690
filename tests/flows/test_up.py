"""`reread up` with the real servers: one stack, killed piece by piece, ended, and started again over what it kept."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from flows.services.processes import ProcessId
from tests.flows.test_end_to_end import Command, call

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]

MEMORY = 1_500_000_000       # bytes of everything `up` starts


class Stack(Command):
    """An attached `up`; its words are in `output` (results) and `log` (progress)."""

    def __init__(self, home: Path, **variables: str | None) -> None:
        self.home = home
        with pytest.MonkeyPatch.context() as environment:
            for name, value in variables.items():
                environment.delenv(name, raising=False) if value is None else environment.setenv(name, value)
            super().__init__(home, "up")
        began = time.monotonic()
        self.says("Ctrl-C stops them")
        self.seconds = time.monotonic() - began
        self.look()

    def says(self, words: str, times: int = 1, seconds: float = 600) -> None:
        deadline = time.time() + seconds
        while self.output.read_text().count(words) < times:
            assert self.process.poll() is None and time.time() < deadline, self.output.read_text() + self.log.read_text()
            time.sleep(0.1)
        self.look()

    def records(self) -> dict[str, dict]:
        return {path.stem: json.loads(path.read_text()) for path in (self.home / "services").glob("*.json")}

    def url(self, name: str) -> str:
        return self.records()[name]["url"]

    def interrupt(self) -> float:
        """Ctrl-C; how many seconds it took to end."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        assert self.end(60) == 0, self.log.read_text()
        return time.monotonic() - began


def status(home: Path) -> tuple[int, dict]:
    command = Command(home, "status", "--json")
    code = command.end(60)
    return code, json.loads(command.output.read_text())


def page(url: str) -> str:
    """As a browser asks for it."""
    with urllib.request.urlopen(urllib.request.Request(url, headers={"accept": "text/html"}), timeout=30) as response:
        return response.read().decode()


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("reread") / "home"


@pytest.fixture(scope="module")
def stack(place):
    found = Stack(place, HOME="/proc/no-home-of-mine")
    yield found
    if found.process.poll() is None:
        found.interrupt()


def test_all_pages_answer_within_bounds(stack):
    text = stack.output.read_text()
    for path in ("/v2/deployments", "/v2/runs"):
        assert stack.url("prefect") + path in text and "<html" in page(stack.url("prefect") + path)
    assert f"{stack.url('mlflow')}/#/experiments/0/runs?workflowType=machine_learning" in text
    assert "<html" in page(stack.url("mlflow"))
    code, found = status(stack.home)
    assert code == 0 and found["ok"], found
    assert {one["state"] for one in found["services"]} == {"answers"} and found["queue"]["running"] == 0
    assert 100_000_000 < found["memory_bytes"] < MEMORY
    assert found["services"][1]["server_version"] == found["versions"]["mlflow"]
    print(f"all answered after {stack.seconds:.0f} s, load {os.getloadavg()[0]:.1f}, "
          f"memory {found['memory_bytes'] / 1e6:.0f} MB")


def test_each_child_that_is_killed_is_told_and_started_again(stack):
    for number, name in enumerate(("mlflow", "deployments", "prefect"), 1):
        before = stack.records()[name]
        psutil.Process(before["process"]["pid"]).kill()
        stack.says("started again: ", number)
        assert f"{name} died (1 of 4). The end of its log" in stack.output.read_text()
        after = stack.records()[name]
        assert after["process"] != before["process"] and after["url"] == before["url"]
    deadline = time.time() + 120                 # whoever serves the deployments waits a little before it asks again
    while (found := status(stack.home))[0] and time.time() < deadline:
        time.sleep(2)
    assert found[0] == 0, found[1]["findings"]


def test_data_survive_a_restart_and_ctrl_c_leaves_nothing(stack):
    mlflow, api = stack.url("mlflow"), stack.url("prefect") + "/api"
    experiment = call(f"{mlflow}/api/2.0/mlflow/experiments/create", {"name": "kept"})["experiment_id"]
    call(f"{mlflow}/api/2.0/mlflow/runs/create", {"experiment_id": experiment, "run_name": "a run"})
    deployment = next(one for one in call(f"{api}/deployments/filter", {}) if one["name"] == "cloze")
    later = "2100-01-01T00:00:00Z"
    run = call(f"{api}/deployments/{deployment['id']}/create_flow_run", {
        "name": "kept", "state": {"type": "SCHEDULED", "state_details": {"scheduled_time": later}}})
    waiting = status(stack.home)[1]["queue"]             # that one, and the nights that come first
    assert waiting["scheduled"] >= 1 and waiting["next"]["at"] <= later

    seconds = stack.interrupt()
    assert "stopped deployments, mlflow, prefect" in stack.output.read_text() and stack.living() == []
    assert [path.name for path in (stack.home / "services").iterdir()] == [".start.lock"]
    print(f"ended after {seconds:.1f} s, load {os.getloadavg()[0]:.1f}")

    again = Stack(stack.home, HOME=None)
    try:
        print(f"all answered again after {again.seconds:.0f} s, load {os.getloadavg()[0]:.1f}")
        assert f"#/experiments/{experiment}/runs?workflowType=machine_learning" in again.output.read_text()
        runs = call(f"{again.url('mlflow')}/api/2.0/mlflow/runs/search", {"experiment_ids": [experiment]})["runs"]
        assert [one["info"]["run_name"] for one in runs] == ["a run"]
        assert call(f"{again.url('prefect')}/api/flow_runs/{run['id']}")["name"] == "kept"
    finally:
        again.interrupt()
    assert again.living() == []


@pytest.mark.parametrize("seconds", [2.0, 5.0])
def test_sigterm_while_starting_leaves_nothing(place, seconds):
    up = Command(place, "up")
    up.until("starting mlflow", 60)
    time.sleep(seconds)
    up.look()
    up.process.terminate()
    assert up.end(60) == 130, up.log.read_text()
    assert up.family and up.living() == [] and not list((place / "services").glob("*.json"))
    assert all(isinstance(identity, ProcessId) for identity in up.family)
