"""Tracking: every number once, in the right run, whatever dies meanwhile. The store is a real SQLite MLflow."""

import inspect
import itertools
import json
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from storage.errors import TrackingError
from storage.tracking import NoTracking, Tracking, default_uri, experiment_link, run_link, writer

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def first_use(tmp_path_factory) -> tuple[Path, str, str]:
    """The database that a first run creates, and what that run wrote to stdout and stderr."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    process = python("""
        tracking = Tracking(sys.argv[1], spool=sys.argv[2])
        run = tracking.start(tracking.experiment("first"), "child")
        tracking.metrics(run, {"a": 1.0}, 0)
        tracking.finish(run)
        print(os.environ["MLFLOW_DISABLE_TELEMETRY"])
        """, f"sqlite:///{path}", str(path.parent / "spool"))
    return path, *process.communicate()


@pytest.fixture
def database(first_use) -> Path:
    """To be copied, which takes no time; creating one takes seconds."""
    return first_use[0]


@pytest.fixture
def tracking(home, database, monkeypatch) -> Tracking:
    """A tracking object on a store of its own, which is tried again at once after a failure."""
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.0)
    home.mkdir(parents=True)
    shutil.copy(database, home / "mlflow.db")
    return Tracking()


@pytest.fixture
def run(tracking) -> str:
    return tracking.start(tracking.experiment("study"), "child", {"fingerprint": "checkpoint-1"})


def history(tracking: Tracking, run_id: str, key: str) -> list[tuple[int, float]]:
    """(step, value) of every point, read past our code."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=tracking.uri)
    return [(point.step, point.value) for point in client.get_metric_history(run_id, key)]


def stored(tracking: Tracking, run_id: str):
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=tracking.uri).get_run(run_id)


def journals(tracking: Tracking) -> list[dict]:
    return [json.loads(line) for path in tracking.spool.glob("*.jsonl") for line in path.read_text().splitlines()]


# ---------------------------------------------------------------------------------------------------------- runs
def test_the_store_is_in_the_home_unless_the_environment_names_another(home, monkeypatch):
    assert Tracking().uri == default_uri() == f"sqlite:///{home}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    assert Tracking().uri == "http://tracker:5000"
    assert Tracking("sqlite:///relative.db").uri == f"sqlite:///{os.getcwd()}/relative.db"
    for uri in ("./mlruns", "file:///tmp/mlruns"):
        with pytest.raises(TrackingError, match="names a folder.*sqlite:////"):
            Tracking(uri)


def test_an_experiment_is_made_once_for_training_with_its_files_beside_the_database(tracking, home):
    first = tracking.experiment("study")
    assert tracking.experiment("study") == first
    from mlflow import MlflowClient

    found = MlflowClient(tracking_uri=tracking.uri).get_experiment(first)
    assert found.tags["mlflow.experimentKind"] == "custom_model_development"
    assert found.artifact_location == f"file://{home}/mlflow-artifacts"
    MlflowClient(tracking_uri=tracking.uri).delete_experiment(first)
    assert tracking.experiment("study") == first            # brought back
    assert MlflowClient(tracking_uri=tracking.uri).get_experiment(first).lifecycle_stage == "active"


def test_a_child_run_carries_parent_tags_and_parameters(tracking):
    experiment = tracking.experiment("study")
    parent = tracking.start(experiment, "the study")
    child = tracking.start(experiment, "child", {"fingerprint": "f", "arch": "based"}, {"lr": 0.1, "a[0]": "x"}, parent)
    found = stored(tracking, child)
    assert found.info.run_name == "child" and found.info.status == "RUNNING"
    assert found.data.tags["mlflow.parentRunId"] == parent and found.data.tags["arch"] == "based"
    assert found.data.params == {"lr": "0.1", "a_0_": "x"}
    assert tracking.find(experiment, {"arch": "based"}) == [child]
    assert tracking.find(experiment, {"arch": "based", "fingerprint": "other"}) == []
    tracking.tag(child, {"arch": "jrt", "long": "x" * 9000})
    assert stored(tracking, child).data.tags["arch"] == "jrt"
    assert tracking.link(child) == run_link(experiment, child) == f"#/experiments/{experiment}/runs/{child}?workflowType=machine_learning"
    assert tracking.experiment_link(experiment) == experiment_link(experiment) == (
        f"#/experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey=recall")


@pytest.mark.parametrize("status, continued", [(None, True), ("FAILED", True), ("KILLED", True), ("FINISHED", False)])
def test_an_unfinished_run_of_the_same_fingerprint_is_continued(tracking, run, status, continued):
    if status:
        tracking.finish(run, status)
        assert stored(tracking, run).info.status == status
    again = Tracking()
    found = again.start(again.experiment("study"), "child", {"fingerprint": "checkpoint-1", "attempt": 2}, {"new": 1})
    assert (found == run) is continued
    assert stored(tracking, found).info.status == "RUNNING" and stored(tracking, found).data.tags["attempt"] == "2"
    assert stored(tracking, found).data.params == {"new": "1"}
    other = again.start(again.experiment("study"), "child", {"fingerprint": "checkpoint-2"})
    assert other not in (run, found)


def test_a_changed_parameter_does_not_stop_a_continued_run(tracking, caplog):
    experiment = tracking.experiment("study")
    run = tracking.start(experiment, "child", {"fingerprint": "f"}, {"lr": 1})
    with caplog.at_level("WARNING", logger="reread"):
        assert tracking.start(experiment, "child", {"fingerprint": "f"}, {"lr": 2}) == run
    assert stored(tracking, run).data.params == {"lr": "1"} and "earlier values of lr" in caplog.text


# ------------------------------------------------------------------------------------------------------- numbers
def test_metrics_are_logged_by_step_with_tokens(tracking, run, monkeypatch):
    milliseconds = itertools.count(1_700_000_000_000)
    monkeypatch.setattr(writer, "_now", lambda: next(milliseconds))
    for step in range(5):
        tracking.metrics(run, {"loss": 1 / (step + 1), "odd[name]": step}, step, tokens=step * 100)
        tracking.metrics(run, {"validation/loss": 2.0}, step, tokens=step * 100)
    assert tracking.last_step(run, "loss") == 4 and tracking.last_step(run, "nothing") is None
    assert history(tracking, run, "loss") == [(step, 1 / (step + 1)) for step in range(5)]
    assert history(tracking, run, "tokens") == [(step, step * 100) for step in range(5)]
    assert len(history(tracking, run, "odd_name_")) == len(history(tracking, run, "validation/loss")) == 5
    assert journals(tracking) == []


def test_metrics_go_out_in_batches(tracking, run, monkeypatch):
    monkeypatch.setattr(writer, "SECONDS", 1000.0)
    for step in range(writer.BATCH - 1):
        tracking.metrics(run, {"loss": 1.0}, step)
    assert history(tracking, run, "loss") == []
    tracking.metrics(run, {"loss": 1.0}, writer.BATCH)
    assert len(history(tracking, run, "loss")) == writer.BATCH


def test_a_metric_waits_for_its_batch_only_so_long(tracking, run, monkeypatch):
    monkeypatch.setattr(writer, "SECONDS", 0.0)
    tracking.metrics(run, {"loss": 1.0}, 0)
    assert len(history(tracking, run, "loss")) == 1


def test_buffering_costs_microseconds(tracking, run, monkeypatch):
    monkeypatch.setattr(writer, "SECONDS", 1000.0)
    began = time.process_time()
    for step in range(500):
        tracking.metrics(run, {"loss": 1.0}, step)
    assert (time.process_time() - began) / 500 < 2e-4


def test_not_a_number_and_infinity_are_kept(tracking, run):
    tracking.metrics(run, {"a": float("nan"), "b": float("inf"), "c": np.float32(0.5)}, 0)
    assert tracking.flush()
    assert np.isnan(history(tracking, run, "a")[0][1]) and history(tracking, run, "b")[0][1] > 1e300
    assert history(tracking, run, "c") == [(0, 0.5)]


def test_a_continued_run_drops_steps_it_has(tracking, run):
    for step in range(30):
        tracking.metrics(run, {"loss": float(step)}, step)
    tracking.close()
    again = Tracking()
    assert again.start(again.experiment("study"), "child", {"fingerprint": "checkpoint-1"}) == run
    for step in range(20, 40):                       # resumed from the checkpoint of step 20
        again.metrics(run, {"loss": -1.0, "new": 1.0}, step)
    again.flush()
    assert history(tracking, run, "loss") == [(step, float(step) if step < 30 else -1.0) for step in range(40)]
    assert len(history(tracking, run, "new")) == 20


def test_a_worker_that_was_only_given_the_run_drops_them_too(tracking, run):
    tracking.metrics(run, {"loss": 1.0}, 0)
    tracking.close()
    worker = pickle.loads(pickle.dumps(tracking))
    assert worker.uri == tracking.uri and worker.spool == tracking.spool
    for step in range(2):
        worker.metrics(run, {"loss": 2.0}, step)
    worker.close()
    assert history(tracking, run, "loss") == [(0, 1.0), (1, 2.0)]


# --------------------------------------------------------------------------------------------------------- files
def test_files_tables_and_models(tracking, run, tmp_path, home):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("1")
    tracking.artifacts(run, tmp_path / "model", "model")
    (tmp_path / "note.txt").write_text("n")
    tracking.artifacts(run, tmp_path / "note.txt")
    rows = [{"task": "swde", "value": np.float32(0.5), "n": np.int64(3)}, {"task": "fda", "low": float("nan")}]
    for _ in range(2):
        tracking.table(run, rows, "tables/scores")
    place = home / "mlflow-artifacts" / run / "artifacts"
    assert (place / "model" / "weights").read_text() == "1" and (place / "note.txt").read_text() == "n"
    assert json.loads((place / "tables" / "scores.json").read_text()) == {
        "columns": ["task", "value", "n", "low"], "data": [["swde", 0.5, 3, None], ["fda", None, None, None]]}
    assert json.loads(stored(tracking, run).data.tags["mlflow.loggedArtifacts"]) == [
        {"path": "tables/scores.json", "type": "table"}]
    assert tracking.register("based/tiny", run, "model", {"recall": 0.5}) == "1"
    assert tracking.register("based/tiny", run, "model", {"recall": 0.6}) == "1"      # the same files
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=tracking.uri, registry_uri=tracking.uri)
    assert client.get_model_version("based-tiny", "1").tags == {"recall": "0.6"}
    tracking.artifacts(run, tmp_path / "model", "other")
    long = "first\n\n" + "words " * 800 + "\n\n| a |"
    assert tracking.register("based/small", run, "other", {}, long + "x" * 5000, family="all of them") == "1"
    assert tracking.register("based/small", run, "model", {}, family="others") == "2"
    assert client.get_registered_model("based-small").description == "all of them"
    assert client.get_model_version("based-small", "1").description == long.rpartition("\n\n")[0]
    with pytest.raises(TrackingError, match="no such file"):
        tracking.artifacts(run, tmp_path / "nowhere")


# ------------------------------------------------------------------------------------------------------ failures
def test_a_store_that_is_away_from_the_start_gets_everything_later(home, database, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.0)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    place = tmp_path / "store"
    place.write_text("in the way of the store's folder")
    tracking = Tracking(f"sqlite:///{place}/mlflow.db")
    with caplog.at_level("WARNING", logger="reread"):
        experiment = tracking.experiment("study")
        parent = tracking.start(experiment, "the study", params={"a": 1})
        child = tracking.start(experiment, "child", {"fingerprint": "f"}, parent=parent)
        for step in range(10):
            tracking.metrics(child, {"loss": float(step)}, step)
        tracking.table(child, [{"a": 1}], "t")
        tracking.finish(child)
        assert tracking.last_step(child, "loss") is None and tracking.find(experiment, {"fingerprint": "f"}) == []
        assert tracking.register("m", child, "t.json") == "" and tracking.link(child) == "#/"
        assert not tracking.flush()
    assert caplog.text.count("work goes on, numbers wait in") == 1
    journal = next(tracking.spool.glob("*.jsonl"))
    shutil.copy(journal, tracking.spool / "orphan")
    place.unlink()
    place.mkdir()
    shutil.copy(database, place / "mlflow.db")
    operations = journals(tracking)
    assert tracking.flush() and journals(tracking) == []
    runs = tracking.find(tracking.experiment("study"), {})
    assert len(runs) == 2
    found, = tracking.find(tracking.experiment("study"), {"fingerprint": "f"})
    assert history(tracking, found, "loss") == [(step, float(step)) for step in range(10)]
    assert stored(tracking, found).info.status == "FINISHED"
    assert stored(tracking, stored(tracking, found).data.tags["mlflow.parentRunId"]).data.params == {"a": "1"}
    worker = Tracking(tracking.uri)
    worker.metrics(child, {"loss": 10.0}, 10)             # the id given out then still works, in any process
    assert worker.last_step(child, "loss") == 10 and f"/runs/{found}?" in worker.link(child)
    (tracking.spool / "orphan").rename(tracking.spool / "orphan.jsonl")      # as if killed before the journal was cleared
    assert Tracking(tracking.uri).replay() == len(operations)
    assert tracking.find(tracking.experiment("study"), {}) == runs and len(history(tracking, found, "loss")) == 11


def test_a_link_to_a_run_that_the_store_does_not_know_stops_nothing(tracking):
    tracking.experiment("study")
    assert tracking.link("pending-of-a-process-that-waits", "scores.json") == tracking.link("0" * 32) == "#/"


ODD = [".", "..", "", "a/../b", "//", " ", "line\nbreak", "a|b", "é 汉", "x" * 300, "x" * 234 + "/y", "x" * 234 + "/../y"]


def test_an_odd_name_takes_no_other_number_away(tracking, run):
    for step, name in enumerate(ODD):
        tracking.metrics(run, {"recall": 0.5, f"recall/default/{name}": 0.25}, step)
    assert tracking.flush() and not (tracking.spool / "refused.log").exists()
    assert len(history(tracking, run, "recall")) == len(ODD)


def test_a_store_that_breaks_for_a_while_gets_everything_once(tracking, run, home):
    tracking.metrics(run, {"loss": 0.0}, 0)
    tracking.flush()
    database = sqlite3.connect(home / "mlflow.db", isolation_level=None)
    database.execute("ALTER TABLE metrics RENAME TO elsewhere")
    tracking.metrics(run, {"loss": 1.0}, 1)
    assert not tracking.flush()
    assert [operation["step"] for operation in journals(tracking)] == [1]
    database.execute("ALTER TABLE elsewhere RENAME TO metrics")
    tracking.metrics(run, {"loss": 2.0}, 2)
    assert tracking.flush()
    assert history(tracking, run, "loss") == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_a_store_that_fails_is_tried_ever_more_rarely(home, tmp_path, monkeypatch):
    (tmp_path / "store").write_text("in the way")
    tracking = Tracking(f"sqlite:///{tmp_path}/store/mlflow.db")
    now, tries = [1000.0], []
    monkeypatch.setattr(writer.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(writer, "connect", lambda uri, real=writer.connect: (tries.append(now[0]), real(uri)))
    for _ in range(4000):
        tracking.flush() if tracking._journal.operations else tracking.tag("0" * 32, {"a": 1})
        now[0] += 1.0
    assert [round(after - before) for before, after in zip(tries, tries[1:])][:6] == [30, 60, 120, 240, 480, 600]
    tracking.close()
    assert tries[-1] == now[0]                            # a last try, however long the pause


def test_an_unreachable_server_costs_seconds_once(home):
    tracking = Tracking("http://127.0.0.1:9")
    began = time.monotonic()
    run = tracking.start(tracking.experiment("study"), "child")
    for step in range(3000):
        tracking.metrics(run, {"loss": 1.0}, step)
    tracking.finish(run)
    assert time.monotonic() - began < 30
    assert len(journals(tracking)) == 3002


def test_what_the_store_refuses_is_set_aside(tracking, run, caplog):
    with caplog.at_level("WARNING", logger="reread"):
        tracking.metrics("0" * 32, {"loss": 1.0}, 0)
        tracking.metrics(run, {"loss": 1.0}, 0)
        assert tracking.flush()
        tracking.tag("0" * 32, {"a": 1})
    assert "refuses metrics" in caplog.text and "refuses tags" in caplog.text
    assert len((tracking.spool / "refused.log").read_text().splitlines()) == 2
    assert history(tracking, run, "loss") == [(0, 1.0)] and journals(tracking) == []


def test_delivering_twice_changes_nothing(tracking, run, monkeypatch):
    for step in range(5):
        tracking.metrics(run, {"loss": float(step)}, step)
    operations = list(tracking._journal.operations)
    assert tracking.flush()
    tracking._journal.operations.extend(operations)       # as if the store's answer had been lost
    assert tracking.flush()
    assert len(history(tracking, run, "loss")) == 5


def script(body: str) -> str:
    return "import os, signal, sys\nfrom storage.tracking import Tracking, writer\n" + textwrap.dedent(body)


def python(body: str, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", script(body), *arguments], cwd=REPOSITORY, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_numbers_of_a_killed_process_are_replayed_once(tracking, run):
    process = python("""
        writer.SECONDS = 1000
        tracking = Tracking()
        for step in range(50):
            tracking.metrics(sys.argv[1], {"loss": float(step)}, step)
            if step == 20:
                tracking.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        """, run)
    process.communicate()
    assert process.returncode == -9 and len(history(tracking, run, "loss")) == 21
    with open(next(tracking.spool.glob("*.jsonl")), "a") as file:
        file.write('{"op": "metrics", "ru')               # a line that the kill cut off
    assert tracking.start(tracking.experiment("study"), "child", {"fingerprint": "checkpoint-1"}) == run
    assert history(tracking, run, "loss") == [(step, float(step)) for step in range(50)]
    assert not list(tracking.spool.glob("*.jsonl")) and tracking.replay() == 0


def test_a_living_process_keeps_its_journal(tracking, run, monkeypatch):
    monkeypatch.setattr(writer, "SECONDS", 1000.0)
    tracking.metrics(run, {"loss": 1.0}, 0)
    assert Tracking().replay() == 0 and len(journals(tracking)) == 1


@pytest.mark.parametrize("count, steps", [(2, 1000), pytest.param(8, 2500, marks=pytest.mark.long)])
def test_processes_side_by_side_lose_no_metric_and_double_none(tracking, home, count, steps):
    """All suffer an outage in the middle, the database locked while they work; the first is then killed with numbers that
    it has not delivered, and another goes on from an earlier step, as from a checkpoint."""
    experiment = tracking.experiment("study")
    runs = [tracking.start(experiment, f"run {i}", {"fingerprint": str(i)}) for i in range(count)]
    body = """
        import time
        run, factor, first, steps, dies = sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:])
        writer.BATCH, writer.RETRY_SECONDS = steps // 10, 0.2
        tracking = Tracking()
        if first:
            assert tracking.start(tracking.experiment("study"), "again", {"fingerprint": "0"}) == run
        for step in range(first, steps):
            tracking.metrics(run, {"loss": step * factor}, step)
            if step == steps // 2:
                print("half", flush=True)
            if dies and step == steps * 3 // 4:
                writer.BATCH = 10 ** 9
            if dies and step == steps * 4 // 5:
                os.kill(os.getpid(), signal.SIGKILL)
        while not tracking.flush():
            time.sleep(0.1)
        tracking.finish(run)
        """

    def process(i, first=0, dies=0):
        return python(body, runs[i], str(i + 1), str(first), str(steps), str(dies))

    processes = [process(i, dies=int(i == 0)) for i in range(count)]
    processes[0].stdout.readline()
    holder = sqlite3.connect(home / "mlflow.db", isolation_level=None, timeout=60)
    holder.execute("BEGIN EXCLUSIVE")
    time.sleep(1)
    holder.execute("ROLLBACK")
    processes[0].communicate()
    assert processes[0].returncode == -9
    processes[0] = process(0, first=steps // 2)
    for each in processes:
        _, errors = each.communicate()
        assert each.returncode == 0, errors
    for i, run in enumerate(runs):
        assert history(tracking, run, "loss") == [(step, step * (i + 1.0)) for step in range(steps)]
        assert stored(tracking, run).info.status == "FINISHED"
    assert not list(tracking.spool.glob("*.jsonl"))


# ---------------------------------------------------------------------------------------------------------- rest
def test_switched_off_takes_the_same_calls(tmp_path):
    def public(kind):
        return {name: str(inspect.signature(member)) for name, member in inspect.getmembers(kind, inspect.isfunction)
                if not name.startswith("_")}
    assert public(NoTracking) == public(Tracking)
    off = NoTracking()
    run = off.start(off.experiment("x"), "y", {}, {}, None)
    off.metrics(run, {"a": 1.0}, 0, tokens=3)
    off.finish(run)
    assert off.last_step(run, "a") is None and off.find("", {}) == [] and off.flush() and off.replay() == 0


def test_importing_tracking_does_not_import_mlflow():
    process = python("print('mlflow' in sys.modules)")
    assert process.communicate()[0].strip() == "False"


def test_nothing_is_printed_and_nothing_is_sent_home(first_use):
    assert first_use[1:] == ("true\n", "")


@pytest.mark.parametrize("name", ["p%20q", "q?y", "50% of h#x, é"])
def test_a_home_may_have_any_name(database, tmp_path, monkeypatch, name):
    from storage.tracking.runs import read_runs

    home = tmp_path / name
    home.mkdir()
    shutil.copy(database, home / "mlflow.db")
    monkeypatch.setenv("REREAD_HOME", str(home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tracking = Tracking()
    run = tracking.start(tracking.experiment("study"), "one")
    tracking.table(run, [{"a": 1}], "t")
    tracking.close()
    assert [one.id for one in read_runs("study")] == [run]
    assert list((home / "mlflow-artifacts").rglob("t.json"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and home not in path.parents]
