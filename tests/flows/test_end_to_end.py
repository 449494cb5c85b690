"""The real thing: the study `smoke` through a Prefect server and Ray, killed, interrupted, finished, and run again."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from flows.services.processes import ProcessId

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

LESS = ("--set", "workloads.pydocs.architectures={jrt: {model: jrt-tiny}}", "--set", "train.steps=12")


def heed_interrupts() -> None:
    """A process started from a background job inherits a deaf ear for Ctrl-C; a person's terminal does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Command:
    """`reread ...` as a process of its own, with everything it starts."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.log = home.parent / f"{time.monotonic_ns()}.log"
        self.output = self.log.with_suffix(".out")
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith(("PREFECT_", "RAY_", "MLFLOW_TRACKING"))}
        with open(self.log, "w") as errors, open(self.output, "w") as output:
            self.process = subprocess.Popen([sys.executable, "-m", "flows.cli", *arguments], stdout=output, stderr=errors,
                                            env={**environment, "REREAD_HOME": str(home)}, preexec_fn=heed_interrupts)
        self.family: set[ProcessId] = set()

    def look(self) -> None:
        try:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self.family.add(ProcessId.of(child))
        except psutil.NoSuchProcess:
            pass

    def until(self, words: str, seconds: float = 300) -> None:
        deadline = time.time() + seconds
        while words not in self.log.read_text():
            self.look()
            assert self.process.poll() is None and time.time() < deadline, self.log.read_text()
            time.sleep(0.2)
        self.look()

    def end(self, seconds: float = 600) -> int:
        deadline = time.time() + seconds
        while self.process.poll() is None and time.time() < deadline:
            self.look()
            time.sleep(0.3)
        return self.process.wait(1)

    def living(self) -> list[ProcessId]:
        return [identity for identity in self.family if identity.alive]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("reread") / "home"


def test_a_study_survives_a_kill_and_an_interruption_and_is_done_once(place):
    killed = Command(place, "study", "run", "smoke", *LESS)
    killed.until("start   pretrain")
    killed.process.kill()
    assert killed.end() == -9

    interrupted = Command(place, "study", "run", "smoke", *LESS)
    interrupted.until("start   ")
    time.sleep(1)
    interrupted.process.send_signal(signal.SIGINT)
    assert interrupted.end(60) == 130, interrupted.log.read_text()
    assert "interrupted" in interrupted.log.read_text() and "Traceback" not in interrupted.log.read_text()
    assert interrupted.living() == [] and killed.living() == []       # also what the killed one had left

    whole = Command(place, "study", "run", "smoke", *LESS, "--json")
    assert whole.end() == 0, whole.log.read_text()
    done = json.loads(whole.output.read_text())
    assert done["did"] > 0 and Path(done["path"]).is_file() and done["failure"] is None
    assert whole.living() == [] and len(whole.family) > 5
    assert 0 < done["overhead_seconds"] < done["seconds"]

    again = Command(place, "study", "run", "smoke", *LESS)
    assert again.end() == 0
    assert "nothing to do" in again.output.read_text() and done["path"] in again.output.read_text()
    assert again.family == set() and not list((place / "services").glob("*.json"))


def test_prefect_shows_names_logs_and_the_report(place):
    """What a person finds in the Prefect UI afterwards, read from its database."""
    with sqlite3.connect(place / "prefect" / "prefect.db") as database:
        flows = [name for name, in database.execute("select name from flow_run where state_type = 'COMPLETED'")]
        tasks = [name for name, in database.execute("select name from task_run")]
        logs = [message for message, in database.execute("select message from log")]
        keys = {key for key, in database.execute("select key from artifact")}
        edges = [json.loads(text) for text, in database.execute("select task_inputs from task_run where name like 'evaluate%'")]
    assert flows == ["study smoke, 2 changes"]
    assert "pretrain jrt seed 0 on pydocs rows" in tasks and "evaluate jrt seed 0 on pydocs" in tasks
    assert any(message.startswith("pretrain jrt seed 0 on pydocs rows in ") for message in logs)
    assert {"study-smoke", "study-smoke-mlflow"} <= keys
    assert any(inputs.get("made_from") for inputs in edges)


def test_mlflow_has_a_run_for_the_study_and_one_below_for_each_model(place, monkeypatch):
    monkeypatch.setenv("REREAD_HOME", str(place))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{place}/mlflow.db")
    experiment = client.get_experiment_by_name("smoke").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([experiment])}
    parent = runs["study smoke"]
    assert set(runs) == {"study smoke", "pretrain jrt seed 0 on pydocs rows", "pretrain based seed 0 on disjoint rows",
                         "evaluate jrt seed 0 on pydocs", "evaluate based seed 0 on disjoint"}, "one run each, resumed"
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    child = runs["pretrain jrt seed 0 on pydocs rows"]
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.data.tags["architecture"] == "jrt" and child.data.tags["artifact"].startswith("checkpoint-")
    assert child.data.params["train.steps"] == "12"
    steps = [point.step for point in client.get_metric_history(child.info.run_id, "loss")]
    assert steps == sorted(set(steps)) and steps, "a resumed run repeats no step"
    assert "report/report.md" in {file.path for file in client.list_artifacts(parent.info.run_id, "report")}
    assert "scores.json" in {file.path for file in client.list_artifacts(
        runs["evaluate jrt seed 0 on pydocs"].info.run_id)}


def call(url: str, data: dict | None = None):
    """What the server answers. It says 503 while its database is locked, as on a busy machine; its own clients ask again."""
    request = urllib.request.Request(url, json.dumps(data).encode() if data is not None else None,
                                     {"content-type": "application/json"})
    for left in reversed(range(8)):
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)
        except urllib.error.HTTPError as refusal:
            if refusal.code != 503 or not left:
                raise
            time.sleep(2)


def submitted(api: str, deployment: str, form: dict) -> tuple[dict, str]:
    """The last state and the name of a run that was asked for as the page does."""
    run = call(f"{api}/deployments/{deployment}/create_flow_run",
               {"parameters": {"request": form}, "state": {"type": "SCHEDULED"}})
    deadline = time.time() + 300
    while (found := call(f"{api}/flow_runs/{run['id']}"))["state"]["type"] not in ("COMPLETED", "FAILED", "CRASHED"):
        assert time.time() < deadline, found["state"]
        time.sleep(1)
    return found["state"], found["name"]


def test_up_serves_every_flow_and_down_leaves_nothing(tmp_path):
    home = tmp_path / "home"
    up = Command(home, "up", "--detach")
    try:
        assert up.end(300) == 0, up.log.read_text()
        text = up.output.read_text()
        assert "Prefect   http://127.0.0.1:" in text and "MLflow    http://127.0.0.1:" in text
        records = {path.stem: json.loads(path.read_text()) for path in (home / "services").glob("*.json")}
        assert set(records) == {"prefect", "mlflow", "deployments"}
        api = records["prefect"]["url"] + "/api"
        found = {one["name"]: one for one in call(f"{api}/deployments/filter", {})}
        assert set(found) == {"study", "tokenise", "pretrain", "cloze", "evaluate", "perplexity", "extrapolation", "deploy",
                              "bench", "nightly-evaluation"}
        assert found["pretrain"]["entrypoint"] == "flows.single.pretrain"
        schema = found["pretrain"]["parameter_openapi_schema"]["definitions"]["PretrainAdvancedTrain"]["properties"]
        assert schema["zero_stage"]["enum"] == [0, 1, 2, 3] and schema["threads"]["minimum"] == 1
        state, name = submitted(api, found["cloze"]["id"], {"task": "disjoint", "orders": ["small_first"], "limit": 2})
        assert state["type"] == "COMPLETED" and name == "cloze disjoint, 1 order", state
        with pytest.raises(urllib.error.HTTPError) as refusal:      # no such choice: the form is not even taken
            submitted(api, found["cloze"]["id"], {"task": "sqad"})
        assert b"'request.task'" in refusal.value.read()
        state, name = submitted(api, found["pretrain"]["id"], {"advanced": {"train": {"workers": 2}}})
        assert state["type"] == "FAILED" and name == "pretrain", "the choices are fine one by one, not together"
        assert "Advanced > Training: trainer 'in_process' has one worker" in state["message"], state
        assert not list((home / "artifacts").glob("corpus-*"))
        assert list((home / "artifacts").glob("prompts-*/manifest.json"))
        living = [ProcessId(**record["process"]) for record in records.values()]
        assert all(identity.alive for identity in living)
    finally:
        down = Command(home, "down")
        assert down.end(120) == 0
    assert down.output.read_text().count("stopped") == 3
    assert not any(identity.alive for identity in living) and not list((home / "services").glob("*.json"))
