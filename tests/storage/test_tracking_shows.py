"""What the interface gets from us beside numbers: views, data sets, texts, readings of the machine."""

import json
import threading
import time

import pytest
from mlflow import MlflowClient

from storage.tracking import Tracking, experiment_link, model_link, run_link, system, views


@pytest.fixture(scope="module")
def tracking(tmp_path_factory) -> Tracking:
    home = tmp_path_factory.mktemp("shows")
    return Tracking(f"sqlite:///{home}/mlflow.db", spool=home / "spool")


@pytest.fixture
def run(tracking) -> str:
    return tracking.start(tracking.experiment("study"), "child")


@pytest.fixture(scope="module")
def client(tracking) -> MlflowClient:
    return MlflowClient(tracking_uri=tracking.uri)


def test_links_open_a_view_that_the_experiment_has(tracking, client):
    experiment = tracking.experiment("study")
    tags = client.get_experiment(experiment).tags
    for key in views.VIEWS:
        state = json.loads(tags[f"mlflow.sharedViewState.{key}"])
        assert experiment_link(experiment, key).endswith(f"viewStateShareKey={key}") and state["orderByKey"].startswith("metrics.`")
        assert f"viewStateShareKey={key})" in tags["mlflow.note.content"]
    recall = json.loads(tags["mlflow.sharedViewState.recall"])
    assert recall["orderByAsc"] is False and recall["selectedColumns"][0] == "metrics.`recall`"
    training = json.loads(tags["mlflow.sharedViewState.training"])
    assert training["globalLineChartConfig"]["selectedXAxisMetricKey"] == "tokens"


def test_filters_of_views_are_searches_that_mlflow_takes(tracking, client):
    experiment = tracking.experiment("filters")
    wanted = tracking.start(experiment, "a", {"kind": "evaluation"})
    tracking.start(experiment, "b", {"kind": "training"})
    found = client.search_runs([experiment], views.VIEWS["recall"]["searchFilter"], order_by=["metrics.`recall` DESC"])
    assert [one.info.run_id for one in found] == [wanted]


def test_an_old_view_is_renewed_and_a_note_of_a_person_stays(tracking, client):
    experiment = tracking.experiment("noted")
    client.set_experiment_tag(experiment, "mlflow.note.content", "mine")
    client.set_experiment_tag(experiment, "mlflow.sharedViewState.recall", "{}")
    tracking.experiment("noted")
    tags = client.get_experiment(experiment).tags
    assert tags["mlflow.note.content"] == "mine" and json.loads(tags["mlflow.sharedViewState.recall"])["selectedColumns"]


def test_names_of_models_are_quoted_in_links():
    assert model_link("a b", "3") == "#/models/a%20b/versions/3?workflowType=machine_learning"
    assert run_link("7", "ab", "a b/c.json") == "#/experiments/7/runs/ab/artifacts/a%20b/c.json?workflowType=machine_learning"
    assert model_link("quick-pydocs") == "#/models/quick-pydocs?workflowType=machine_learning"


def test_data_is_named_once(tracking, client, run, recwarn):
    one = {"name": "pydocs rows", "digest": "rows-" + "0" * 16, "context": "training", "source": "/home/artifacts/rows-0",
           "profile": {"rows": 3}}
    for _ in range(2):
        tracking.inputs(run, [one, {**one, "name": "fda prompts", "digest": "prompts-1", "context": "evaluation"}])
    found = client.get_run(run).inputs.dataset_inputs
    assert {(each.dataset.name, each.dataset.digest, each.tags[0].value) for each in found} == {
        ("pydocs rows", "rows-" + "0" * 16, "training"), ("fda prompts", "prompts-1", "evaluation")}
    assert len(found) == 2 and json.loads(found[0].dataset.source) == {"uri": "/home/artifacts/rows-0"}
    assert not [warning for warning in recwarn if "dataset" in str(warning.message).lower()]


def test_texts_and_folders_that_move(tracking, client, run, tmp_path):
    tracking.text(run, "<p>é</p>", "pages/report.html")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("1")
    tracking.artifacts(run, tmp_path / "model", "model", move=True)
    assert not (tmp_path / "model").exists()
    assert {file.path for file in client.list_artifacts(run, "model")} == {"model/weights"}
    assert open(client.download_artifacts(run, "pages/report.html"), encoding="utf-8").read() == "<p>é</p>"
    tracking._submit({"op": "artifacts", "run": run, "path": str(tmp_path / "model"), "subfolder": "model", "move": True})
    assert not (tracking.spool / "refused.log").exists()            # delivered twice: the second time it is gone already


def readings(client, run):
    return [point.step for point in client.get_metric_history(run, system.STEP)]


def test_the_machine_is_read_while_a_run_goes_on_and_counted_on(tracking, client, run, monkeypatch):
    asked = set()

    def load():             # as psutil does it: what happened since this thread asked last
        known, _ = threading.get_ident() in asked, asked.add(threading.get_ident())
        return 50.0 if known else 0.0

    monkeypatch.setattr("psutil.cpu_percent", load)
    monkeypatch.setattr(system, "SHORTEST", 0.05)
    monkeypatch.setenv("REREAD_SYSTEM_METRICS", "0.1")
    for _ in range(2):
        before = len(readings(client, run))
        with system.watched(tracking, run):
            deadline = time.monotonic() + 60
            while len(readings(client, run)) < before + 2 and time.monotonic() < deadline:
                tracking.flush()
                time.sleep(0.2)
        tracking.flush()
    steps = readings(client, run)
    assert steps == list(range(len(steps))) and len(steps) >= 4
    assert {point.value for point in client.get_metric_history(run, system.STEP)} == {50.0}
    assert client.get_run(run).data.metrics["system/system_memory_usage_megabytes"] > 0


def test_a_short_run_has_no_readings_and_they_can_be_switched_off(tracking, client, run, monkeypatch):
    with system.watched(tracking, run):
        pass
    assert readings(client, run) == []
    assert system.interval() == 15.0
    for text, seconds in (("off", None), ("3", 10.0), ("60", 60.0), ("soon", 15.0)):
        monkeypatch.setenv("REREAD_SYSTEM_METRICS", text)
        assert system.interval() == seconds
