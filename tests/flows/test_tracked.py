"""A study that fails leaves the runs of its finished stages finished, and ends the others the way it ended."""

from types import SimpleNamespace

from flows.recording.tracked import Runs
from storage.artifacts import Store
from storage.tracking import Tracking


def test_only_unfinished_stages_end_with_the_study(home):
    store = Store()
    made = store.produce("scores", {}, {}, "code", lambda folder: None)
    runs = Runs.__new__(Runs)
    runs.plan = SimpleNamespace(stages={"done": SimpleNamespace(artifact=made, kind="evaluate"),
                                         "open": SimpleNamespace(artifact="scores-none", kind="evaluate")})
    runs.store, runs.tracking, runs.parent = store, Tracking(), None
    experiment = runs.experiment = runs.tracking.experiment("toy")
    runs.of = {key: runs.tracking.start(experiment, key, {"fingerprint": key}, {}) for key in ("done", "open")}
    runs.tracking.finish(runs.of["done"], "FINISHED")
    runs.end("FAILED")

    from mlflow.tracking import MlflowClient
    client = MlflowClient(Tracking().uri)
    assert {key: client.get_run(run).info.status for key, run in runs.of.items()} == {"done": "FINISHED", "open": "FAILED"}


def test_what_cannot_be_registered_keeps_no_run_from_ending(home, monkeypatch, told):
    """And does not take the place of the failure that the study ended with."""
    def refuse(self):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Runs, "_register_missed", refuse)
    runs = Runs.__new__(Runs)
    runs.plan, runs.store, runs.tracking, runs.of = SimpleNamespace(stages={}), Store(), Tracking(), {}
    runs.parent = runs.tracking.start(runs.tracking.experiment("toy"), "study", {"fingerprint": "f"}, {})
    runs.end("FAILED")

    from mlflow.tracking import MlflowClient
    assert MlflowClient(Tracking().uri).get_run(runs.parent).info.status == "FAILED"
    assert any("No space left on device" in message for message in told)
