"""The wrapper around a stage, without servers."""

from __future__ import annotations

import pytest

from flows.recording.about import About, parameters
from flows.recording.tracked import tracked
from flows.running.work import Order, perform
from flows.showing.notes import noting, read
from storage.artifacts import Store
from storage.errors import SpecError
from tasks.specs import ClozeSpec, TrainSpec
from tests.flows import tiny_stages
from tests.flows.tiny_stages import TinySpec

MODULE = "tests.flows.tiny_stages"


def order(store: Store, **fields) -> Order:
    return Order("corpus", MODULE, "a tiny stage", TinySpec(name="a", **fields), {}, store.root)


def test_a_stage_is_performed_once(home):
    store = Store()
    first, second = perform(order(store)), perform(order(store))
    assert first.artifact == second.artifact == tiny_stages.plan(TinySpec(name="a"), store)
    assert store.exists(first.artifact) and first.seconds >= 0 and first.ended <= second.began


def test_what_a_stage_raises_is_passed_on_and_leaves_no_artifact(home):
    store = Store()
    with pytest.raises(ValueError, match="broken"):
        perform(order(store, fail="broken"))
    assert store.list() == []


def test_its_progress_is_the_note(home, tmp_path):
    with noting(tmp_path / "note.json"):
        perform(order(Store()))
    assert "pid" in read(tmp_path / "note.json")


def test_a_tracked_run_ends_the_way_its_stage_does(home):
    from mlflow import MlflowClient

    from storage.tracking import Tracking, default_uri

    tracking = Tracking()
    experiment = tracking.experiment("tiny")
    runs = [tracking.start(experiment, name, {"fingerprint": name}) for name in ("good", "bad", "stopped")]
    with tracked(default_uri(), runs[0]) as given:
        assert set(given) == {"tracking", "run_id"} and given["run_id"] == runs[0]
    with pytest.raises(ValueError), tracked(default_uri(), runs[1]):
        raise ValueError
    with pytest.raises(KeyboardInterrupt), tracked(default_uri(), runs[2]):
        raise KeyboardInterrupt
    client = MlflowClient(default_uri())
    assert [client.get_run(run).info.status for run in runs] == ["FINISHED", "FAILED", "KILLED"]
    with tracked(None, None) as given:
        assert given == {}


def test_parameters_are_dotted_names():
    named = parameters(About(), TrainSpec(steps=3))
    assert named["steps"] == 3 and named["optimiser.learning_rate"] == 8e-4
    assert "sweep" not in named, "what is not set is not shown"
    named = parameters(About(), ClozeSpec(task="lookup", task_options={"lines": [4, 8]}))
    assert named["task_options.lines"] == [4, 8]


def test_only_failures_that_may_pass_are_tried_again():
    from prefect.states import Failed

    from flows.running.stages import worth_retrying

    assert worth_retrying(None, None, Failed(data=ConnectionResetError("gone")))
    assert worth_retrying(None, None, Failed(data=OSError(5, "disk")))
    assert not worth_retrying(None, None, Failed(data=SpecError("wrong field")))
    assert not worth_retrying(None, None, Failed(data=ValueError("a bug")))
