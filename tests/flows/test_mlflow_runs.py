"""What is found in MLflow after a training and an evaluation: names, numbers, tables, data, a registered model."""

import json
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient

from flows.commands.single import here
from flows.forms.requests import EvaluateRequest, PretrainRequest
from flows.recording import registering
from flows.recording.about import Abouts
from flows.recording.tracked import Runs
from storage.artifacts import Store
from storage.errors import SpecError
from storage.shards import RowTable
from storage.tracking import Tracking, default_uri, views
from storage.tracking.registry import Registry
from tasks.specs import DisjointRowsSpec, TrainSpec

HOME_VARIABLES = ("MLFLOW_TRACKING_URI", "REREAD_REGISTER", "REREAD_MLFLOW_URL")
CLOZE = {"task": "disjoint", "limit": 3, "orders": ["small_first", "large_first"], "task_options": {"sizes": [[4, 8], [4, 16]]}}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A training and an evaluation of it, done in this process; what MLflow then has."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("runs") / "home"
        patch.setenv("REREAD_HOME", str(home))
        for name in HOME_VARIABLES:
            patch.delenv(name, raising=False)
        store = Store()
        training = PretrainRequest(model="jrt-mini", seed=3, train=TrainSpec(steps=3, log_every=1), experiment="demo",
                                   rows=DisjointRowsSpec(batches=3)).plan(store)
        checkpoint = here(training, store)
        evaluation = EvaluateRequest(checkpoint=checkpoint, cloze=CLOZE, generation_tokens=1, bootstrap=100).plan(store)
        scores = here(evaluation, store)
        client = MlflowClient(tracking_uri=default_uri(), registry_uri=default_uri())
        runs = {name: client.search_runs([client.get_experiment_by_name(name).experiment_id])
                for name in ("demo", "evaluate")}
        yield SimpleNamespace(store=store, client=client, checkpoint=checkpoint, scores=scores, training=training,
                              evaluation=evaluation, trained=runs["demo"][0], asked=runs["evaluate"][0], runs=runs)


def listed(world, run, path=None):
    return {file.path for file in world.client.list_artifacts(run.info.run_id, path)}


def read(world, run, path):
    return json.loads(open(world.client.download_artifacts(run.info.run_id, path), encoding="utf-8").read())


def test_a_training_says_what_it_is_in_short_names(world):
    tags, params = world.trained.data.tags, world.trained.data.params
    expected = {"kind": "training", "stage": "pretrain", "architecture": "jrt", "model": "jrt-mini", "seed": "3",
                "corpus": "disjoint", "study": "demo", "device": "cpu"}
    assert expected.items() <= tags.items() and expected.items() <= params.items()
    manifest = world.store.manifest(world.checkpoint)
    assert params["parameters"] == str(manifest.counts["parameters"]) and int(params["state_bytes"]) > 0
    assert tags["git_commit"] and tags["artifact"] == world.checkpoint and params["train.steps"] == "3"


def test_a_training_has_curves_with_tokens_at_every_step(world):
    history = {name: [(point.step, point.value) for point in world.client.get_metric_history(world.trained.info.run_id, name)]
               for name in ("loss", "tokens")}
    assert [step for step, _ in history["loss"]] == [step for step, _ in history["tokens"]] == [1, 2, 3]
    tokens = [value for _, value in history["tokens"]]
    assert tokens == sorted(tokens) and tokens[-1] == world.store.manifest(world.checkpoint).counts["tokens"]
    assert world.trained.data.metrics["parameters"] == world.store.manifest(world.checkpoint).counts["parameters"]


def test_an_evaluation_says_who_was_asked_what_how(world):
    tags, params, metrics = world.asked.data.tags, world.asked.data.params, world.asked.data.metrics
    expected = {"kind": "evaluation", "architecture": "jrt", "model": "jrt-mini", "task": "disjoint", "seed": "3",
                "order": "small_first, large_first", "strategy": "left_pad", "corpus": "disjoint"}
    assert expected.items() <= tags.items() and expected.items() <= params.items()
    assert params["spec.seed"] == "0"                       # of the bootstrap, where `seed` is the model's
    assert metrics["parameters"] == int(params["parameters"]) and metrics["state_bytes"] > 0
    assert metrics["tokens"] == world.store.manifest(world.checkpoint).counts["tokens"]


def test_recall_is_the_mean_over_columns_of_the_main_order(world):
    rows = json.loads((world.store.path(world.scores) / "scores.json").read_text())
    of = {row["column"]: row["value"] for row in rows if row["order"] == "small_first" and row["control"] == "none"}
    metrics = world.asked.data.metrics
    assert len(of) == 2 and metrics["recall"] == pytest.approx(sum(of.values()) / 2)
    assert all(metrics[f"recall/small_first/{column.replace('|', '_')}"] == value for column, value in of.items())
    assert metrics["recall/mean"] == metrics["recall"] and metrics["recall/low"] <= metrics["recall"] <= metrics["recall/high"]
    assert {name.rpartition("/")[0] for name in metrics} == {"", "recall", "recall/small_first", "recall/large_first"}
    table = read(world, world.asked, "scores.json")
    assert table["columns"][:2] == ["score", "recall"] and len(table["data"]) == 4
    assert {"control_empty", "share_other", "above_controls"} <= set(table["columns"])


def test_runs_say_what_came_of_them(world):
    note = world.asked.data.tags["mlflow.note.content"]
    run = f"#/experiments/{world.asked.info.experiment_id}/runs/{world.asked.info.run_id}/artifacts"
    assert note.startswith("**recall ") and f"({run}/predictions/wrong.json?" in note and f"({run}/scores.json?" in note
    assert f"Checkpoint `{world.checkpoint}`." in world.trained.data.tags["mlflow.note.content"]


def test_answers_can_be_browsed(world):
    assert listed(world, world.asked, "predictions") >= {"predictions/all.json", "predictions/control_empty.json"}
    table = read(world, world.asked, "predictions/all.json")
    assert table["columns"][:7] == ["id", "correct", "error", "gold", "prediction", "order", "column"]
    assert table["columns"][-1] == "prompt"
    answers = RowTable(world.store.path(world.scores) / "predictions.arrow").table.to_pylist()
    assert len(table["data"]) == sum(row["control"] == "none" for row in answers)
    entries = json.loads(world.asked.data.tags["mlflow.loggedArtifacts"])
    assert {"path": "predictions/all.json", "type": "table"} in entries
    assert f"({len(answers)} of {len(answers)} shown)" in world.asked.data.tags["mlflow.note.content"]


def test_data_is_named_with_the_artifact_as_digest(world):
    for run, role, context, name in ((world.trained, "rows", "training", "disjoint rows"),
                                     (world.asked, "prompts", "evaluation", "disjoint prompts")):
        [found] = run.inputs.dataset_inputs
        assert found.dataset.name == name and found.dataset.digest.startswith(f"{role}-")
        assert found.tags[0].value == context and found.dataset.digest in found.dataset.source
        assert json.loads(found.dataset.profile)


def test_the_training_is_a_version_with_weights_and_card(world):
    [version] = Registry().versions()
    assert version.name == "demo" and version.run_id == world.trained.info.run_id
    counts = world.store.manifest(world.checkpoint).counts
    expected = {"checkpoint": world.checkpoint, "architecture": "jrt", "model": "jrt-mini", "size": "mini", "seed": "3",
                "parameters": str(counts["parameters"]), "tokens": str(counts["tokens"]), "corpus": "disjoint",
                "study": "demo", "workload": "data"}
    assert expected.items() <= version.tags.items() and {"state_bytes", "git_commit"} <= set(version.tags)
    assert listed(world, world.trained, "model") >= {"model/README.md", "model/model.safetensors", "model/config.json"}
    found = world.client.get_model_version("demo", "1")
    assert found.description.startswith(f"jrt-mini, seed 3, trained on {counts['tokens']:,} tokens of disjoint. A causal ")
    assert "MB" in found.description and "### Architecture" in found.description and len(found.description) <= 5000
    assert f"[Card](#/experiments/{world.trained.info.experiment_id}/runs/{version.run_id}/artifacts/model/README.md?" in found.description
    assert "`models:/demo@best-mini`" in world.client.get_registered_model("demo").description
    assert not list((world.store.folder / "exports").iterdir())


def test_registering_again_makes_no_second_version(world):
    about = Abouts(world.training, world.store).of(world.training.goal)
    registering.register(Tracking(), world.trained.info.run_id, world.store, world.checkpoint, about)
    registering.register_missed(Tracking(), world.trained.info.experiment_id, world.store, {world.checkpoint: about})
    assert len(Registry().versions()) == 1


def test_a_checkpoint_that_a_killed_process_left_is_registered_later(world, monkeypatch):
    monkeypatch.setenv("REREAD_REGISTER", "tags")
    runs = Runs.__new__(Runs)
    runs.plan, runs.store, runs.abouts, runs.of, runs.parent = world.training, world.store, Abouts(world.training, world.store), {}, None
    runs.plan.name, runs.tracking, runs.experiment = "later", Tracking(), world.trained.info.experiment_id
    try:
        runs.end("FINISHED")
        [version] = Registry().versions("later")
        assert version.tags["checkpoint"] == world.checkpoint
    finally:
        runs.plan.name = "demo"
        world.client.delete_registered_model("later")


@pytest.mark.parametrize("how, versions", [("off", 0), ("tags", 1)])
def test_how_much_is_registered_is_a_setting(world, monkeypatch, how, versions):
    monkeypatch.setenv("REREAD_REGISTER", how)
    tracking = Tracking()
    run = tracking.start(tracking.experiment("demo"), "again", {"fingerprint": how})
    about = Abouts(world.training, world.store).of(world.training.goal)
    registering.register(tracking, run, world.store, world.checkpoint, registering.About(about.facts, f"only-{how}"))
    assert len(Registry().versions(f"only-{how}")) == versions
    assert {file.path for file in world.client.list_artifacts(run, "model")} == ({"model/README.md"} if versions else set())


def test_a_setting_that_is_none_is_told(monkeypatch):
    monkeypatch.setenv("REREAD_REGISTER", "everything")
    with pytest.raises(SpecError, match="REREAD_REGISTER is 'everything'; expected weights, tags or off"):
        registering.wanted()


def test_an_export_that_fails_leaves_the_training_as_it_is(world, monkeypatch, told):
    monkeypatch.setattr("flows.commands.weights.write_folder", lambda *_: 1 / 0)
    about = Abouts(world.training, world.store).of(world.training.goal)
    registering.register(Tracking(), world.trained.info.run_id, world.store, world.checkpoint, about)
    assert any("is not registered as demo (ZeroDivisionError" in message for message in told)


def test_a_registry_that_is_away_gets_the_version_later(world, tmp_path, monkeypatch):
    monkeypatch.setattr("storage.tracking.writer.RETRY_SECONDS", 0.0)
    monkeypatch.setenv("REREAD_REGISTER", "tags")
    (tmp_path / "store").write_text("in the way")
    tracking = Tracking(f"sqlite:///{tmp_path}/store/mlflow.db")
    run = tracking.start(tracking.experiment("demo"), "training")
    about = Abouts(world.training, world.store).of(world.training.goal)
    registering.register(tracking, run, world.store, world.checkpoint, about)
    tracking.inputs(run, [{"name": "a", "digest": "rows-1", "context": "training", "source": "/a"}])
    assert not tracking.flush()
    (tmp_path / "store").unlink()
    assert tracking.flush()
    [version] = Registry(tracking.uri).versions("demo")
    client = MlflowClient(tracking_uri=tracking.uri, registry_uri=tracking.uri)
    assert [file.path for file in client.list_artifacts(version.run_id, "model")] == ["model/README.md"]
    assert client.get_run(version.run_id).inputs.dataset_inputs[0].dataset.name == "a"


def test_the_page_of_a_plan_opens_the_view_of_what_it_makes(world):
    found = []
    for plan in (world.training, world.evaluation):
        runs = Runs.__new__(Runs)
        runs.plan, runs.experiment = plan, "7"
        found.append(runs.page)
    assert found == [f"/#/experiments/7/runs?workflowType=machine_learning&viewStateShareKey={view}"
                     for view in ("training", "recall")]


def test_the_columns_of_views_are_names_that_runs_have(world):
    for key, run in (("recall", world.asked), ("training", world.trained)):
        kept = {"metrics": run.data.metrics, "params": run.data.params, "tags": run.data.tags}
        columns = [column.partition(".") for column in views.VIEWS[key]["selectedColumns"]]
        missing = {name for group, _, name in columns if name.strip("`") not in kept[group]}
        assert missing <= {"`suite`", "`bits_per_byte`"}           # only where a suite asks; where there are validation rows
