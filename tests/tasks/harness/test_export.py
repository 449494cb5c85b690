"""Prompts and answers elsewhere: lm_eval runs the exported tasks and says and scores what the evaluation did."""

import json
import subprocess
import sys

import pytest
import yaml

from flows.commands import harness
from storage.artifacts import Store
from storage.errors import ArtifactError, ConfigError
from storage.shards import RowTable
from tasks import cloze, evaluate
from tasks.harness import register
from tasks.harness.export import export_prompts
from tasks.harness.samples import samples
from tasks.harness.task_files import answers
from tasks.scoring import contains
from tasks.specs import ClozeSpec, EvaluateSpec
from tasks.tokenizers import load_tokenizer
from tests.tasks.documents import artifacts
from tests.tasks.test_evaluate import checkpoint

NEW = 6


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(store, checkpoint, prompts, scores) of a model that reads prefixes, and where its home is."""
    home = tmp_path_factory.mktemp("export") / "home"
    store = Store(home)
    corpus, shards = artifacts(store)
    asked = ClozeSpec(task="pydocs", limit=3, document_tokens=60, orders=("default", "twice"), generation_tokens=NEW,
                      task_options={"columns": ["natural"]})
    prompts = cloze.run(asked, store, corpus=corpus, shards=shards)
    model = checkpoint(store, load_tokenizer(store.path(shards) / "tokenizer"), ("conv", "prefix", "full"))
    scores = evaluate.run(EvaluateSpec(generation_tokens=NEW, bootstrap=100, keep_out="one"), store, model, prompts)
    return store, model, prompts, scores, home


def arguments(model):
    return f"checkpoint={model},batch_size=4,add_bos_token=True"


@pytest.fixture(scope="module")
def ran(world, tmp_path_factory):
    """Numbers of prompts by exported task, lm_eval's results of our model on all of them, and its log of their samples."""
    import lm_eval
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    store, model, prompts, _, home = world
    root = tmp_path_factory.mktemp("elsewhere")
    tasks = export_prompts(store, prompts, root / "tasks")
    register()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REREAD_HOME", str(home))
        results = lm_eval.simple_evaluate(
            "reread", arguments(model), tasks=["reread_pydocs"], batch_size=1, device="cpu", bootstrap_iters=0,
            task_manager=TaskManager(include_path=str(root / "tasks"), include_defaults=False))
    tracker = EvaluationTracker(output_path=str(root / "out"))
    tracker.date_id = "2026"
    for name in tasks:
        tracker.save_results_samples(name, results["samples"][name])
    return tasks, results, log_of(root / "out", tasks)


def log_of(folder, tasks):
    """Their samples by task, as they write them."""
    return {name: [json.loads(line) for file in folder.rglob(f"samples_{name}_20*.jsonl")
                   for line in file.read_text(encoding="utf-8").splitlines()] for name in tasks}


def test_every_column_order_and_control_is_a_task(world, ran):
    store, _, prompts, scores, _ = world
    tasks, _, _ = ran
    rows = json.loads((store.path(scores) / "scores.json").read_text())
    expected = {f"reread_pydocs_{row['column']}_{row['order']}" + ("" if row["control"] == "none" else f"_{row['control']}"):
                row["n"] for row in rows}
    assert tasks == expected and len(tasks) >= 6 and any("uncommon" in name for name in tasks)


def test_they_score_what_we_score(world, ran):
    store, _, _, scores, _ = world
    _, results, _ = ran
    assert results["config"]["cut"]["generate_until"]["cut"] == 0
    values = set()
    for row in json.loads((store.path(scores) / "scores.json").read_text()):
        control = "" if row["control"] == "none" else f"_{row['control']}"
        theirs = results["results"][f"reread_pydocs_{row['column']}_{row['order']}{control}"]
        assert theirs["contains,none"] == pytest.approx(row["value"])
        values.add(row["value"])
    assert values


def test_samples_are_theirs_field_by_field(world, ran):
    store, _, prompts, scores, _ = world
    _, _, logged = ran
    mine = list(samples(store, scores))
    table = RowTable(store.path(scores) / "predictions.arrow").table.to_pylist()
    assert len(mine) == len(table) == store.manifest(prompts).counts["prompts"]
    assert len({sample["filtered_resps"][0] for sample in mine}) > 4
    for sample, row in zip(mine, table):
        theirs = logged[sample["task"]][sample["doc_id"]]
        for name in ("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "doc_hash", "prompt_hash",
                     "target_hash"):
            assert sample[name] == theirs[name], name
        assert sample["correct"] == theirs["contains"] and set(sample["metrics"]) >= {"correct"}
        assert (sample["item"], sample["order"], sample["control"]) == (row["item"], row["order"], row["control"])
        assert set(sample["metrics"]) >= {"contains", "exact", "f1"} and sample["f1"] == row["f1"]
        assert (sample["error"], sample["truncated"], sample["tokens"]) == (row["error"], row["truncated"], row["tokens"])
        assert sample["loglikelihood"] is None, "not asked, and no NaN in JSON"


def test_a_right_answer_is_counted_where_metrics_are_computed(world, ran, tmp_path, monkeypatch):
    """No tiny model is ever right, so one task is scored with a model that says the answers."""
    import lm_eval
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    class Knows(LM):
        def loglikelihood(self, requests): ...
        def loglikelihood_rolling(self, requests): ...
        def generate_until(self, requests):
            return [f" It is {request.doc['answers'][-1].upper()}." if k % 2 else request.doc["answers"][0]
                    for k, request in enumerate(requests)]

    store, _, prompts, _, _ = world
    tasks = export_prompts(store, prompts, tmp_path / "tasks")
    found = lm_eval.simple_evaluate(Knows(), tasks=["reread_pydocs_natural_twice"], bootstrap_iters=0,
                                    task_manager=TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False))
    scored = found["results"]["reread_pydocs_natural_twice"]
    count = tasks["reread_pydocs_natural_twice"]
    assert scored["contains,none"] == 1.0 and scored["exact,none"] == pytest.approx((count + 1) // 2 / count)


def test_the_folder_needs_nothing_of_this_project(world, tmp_path):
    store, _, prompts, _, _ = world
    export_prompts(store, prompts, tmp_path / "tasks")
    text = (tmp_path / "tasks" / "answers.py").read_text()
    assert not any(f"import {name}" in text or f"from {name}" in text for name in ("tasks", "models", "storage", "flows"))
    assert str(store.root) not in "".join(file.read_text() for file in (tmp_path / "tasks").iterdir())
    script = "import answers; print(len(answers.load('reread_pydocs_natural_default.jsonl', checkpoint='x')['test']))"
    said = subprocess.run([sys.executable, "-c", script], cwd=tmp_path / "tasks", capture_output=True, text=True, check=True)
    assert int(said.stdout) > 0
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_constructor("!function", lambda _, node: node.value)
    config = yaml.load((tmp_path / "tasks" / "reread_pydocs_natural_default.yaml").read_text(), loader)
    assert config["generation_kwargs"] == {"until": ["\n"], "max_gen_toks": NEW, "do_sample": False}
    assert "process_results" not in config and config["metadata"]["order"] == "default"


@pytest.mark.parametrize("prediction, given", [("it is INT32 dtype.", ["x", "int32 dtype"]), ("int32", ["int32 dtype"]),
                                               ("", ["a"]), ("a+b", ["A+B"]), ("aab", ["a+b"])])
def test_the_metrics_are_those_of_the_evaluation(prediction, given):
    asked = [answers.contains(references=[each], predictions=[prediction]) for each in given]
    assert any(asked) == contains(prediction, given)


def test_the_commands(world, tmp_path, monkeypatch, capsys):
    store, _, prompts, scores, home = world
    monkeypatch.setenv("REREAD_HOME", str(home))
    harness.export_prompts_command(prompts[:14], str(tmp_path / "tasks"), json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["prompts"] == prompts and set(told["tasks"]) <= {file.stem for file in (tmp_path / "tasks").iterdir()}
    with pytest.raises(ConfigError, match="not empty"):
        harness.export_prompts_command(prompts, str(tmp_path / "tasks"))
    harness.export_samples_command(scores, str(tmp_path / "deep" / "samples.jsonl"), json=True)
    told = json.loads(capsys.readouterr().out)
    lines = (tmp_path / "deep" / "samples.jsonl").read_text().splitlines()
    assert told["samples"] == len(lines) == len(list(samples(store, scores)))
    with pytest.raises(ConfigError, match="there already"):
        harness.export_samples_command(scores, str(tmp_path / "deep" / "samples.jsonl"))
    harness.export_samples_command(scores, str(tmp_path / "deep" / "samples.jsonl"), force=True)
    with pytest.raises(ArtifactError, match="expected prompts"):
        harness.export_prompts_command(scores, str(tmp_path / "other"))
    with pytest.raises(ArtifactError, match="expected scores"):
        harness.export_samples_command(prompts, str(tmp_path / "other.jsonl"))
    assert not (tmp_path / "other").exists() and not list(tmp_path.glob("*.partial"))


def test_scores_of_other_prompts_are_refused(world):
    store, model, prompts, scores, _ = world
    other = store.produce("prompts", {**store.manifest(prompts).spec, "less": 1}, {}, "0", lambda folder: _half(store, prompts, folder))
    moved = store.produce("scores", store.manifest(scores).spec, {"checkpoint": model, "prompts": other}, "1",
                          lambda folder: _copy(store.path(scores) / "predictions.arrow", folder))
    with pytest.raises(ArtifactError, match="does not answer the prompts"):
        list(samples(store, moved))


def _half(store, prompts, folder):
    from storage.shards import ShardWriter

    table = RowTable(store.path(prompts) / "prompts.arrow").table
    with ShardWriter(folder / "prompts.arrow", table.schema) as writer:
        for row in table.to_pylist()[::2]:
            writer.append(row)
    return store.manifest(prompts).counts


def _copy(file, folder):
    import shutil

    shutil.copy(file, folder)
    return {}


@pytest.mark.long
def test_their_whole_command_line_runs_our_model(world, ran, tmp_path, monkeypatch):
    """As a person types it: `reread lm-eval --model reread ...`, with everything that it writes."""
    store, model, prompts, _, home = world
    export_prompts(store, prompts, tmp_path / "tasks")
    monkeypatch.setenv("REREAD_HOME", str(home))
    assert not harness.run_lm_eval(["--model", "reread", "--model_args", arguments(model), "--include_path",
                                    str(tmp_path / "tasks"), "--tasks", "reread_pydocs", "--output_path",
                                    str(tmp_path / "out"), "--log_samples", "--device", "cpu"])
    [results] = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(results.read_text())["config"]["model"] == "reread"
    assert log_of(tmp_path / "out", ran[0]) == ran[2]


def test_without_lm_eval_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"reread\[harness\]"):
        harness.run_lm_eval(["--help"])


def test_their_command_line_runs_as_a_module():
    said = subprocess.run([sys.executable, "-m", "tasks.harness.run", "ls", "--help"], capture_output=True, text=True)
    assert said.returncode == 0 and "usage: " in said.stdout
