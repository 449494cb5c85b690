"""Answers and scores: independent of batches, resumable, counted right."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from models import LanguageModel, Layout, ModelConfig, build, load_model, save_model
from storage.artifacts import Store
from storage.errors import ArtifactError, SpecError, StageFailed
from storage.shards import RowTable, ShardWriter
from tasks import actors, cloze, evaluate, predictions, scores, scoring
from tasks.answer_errors import CLASSES
from tasks.specs import ClozeSpec, EvaluateSpec
from tasks.tokenizers import load_tokenizer
from tests.tasks.documents import artifacts

MIXERS = {
    "conv": {"kind": "base_conv", "expand": 2}, "prefix": {"kind": "prefix", "heads": 2, "feature_dim": 4},
    "window": {"kind": "sliding_window", "heads": 2, "window": 5}, "linear": {"kind": "based", "heads": 2,
                                                                             "feature_dim": 4},
    "full": {"kind": "attention", "heads": 2},
}
NEW = 4


def checkpoint(store, tokenizer, plan=tuple(MIXERS), seed=0, **settings):
    """A model with random weights, as an artifact."""
    config = ModelConfig(width=16, vocabulary=tokenizer.vocabulary_size, mixers={name: MIXERS[name] for name in plan},
                         plan=plan, seed=seed, init_std=0.5, tie=False, **settings)

    def make(folder):
        save_model(build(config), folder)
        tokenizer.save(folder / "tokenizer")

    return store.produce("checkpoint", {"config": config.model_dump(mode="json")}, {}, "0", make)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(store, checkpoint, prompts) of a tiny model that reads prefixes and a few prompts of documents."""
    store = Store(tmp_path_factory.mktemp("evaluate") / "home")
    corpus, shards = artifacts(store)
    asked = ClozeSpec(task="pydocs", limit=2, document_tokens=40, orders=("default", "twice"),
                      task_options={"columns": ["natural", "swap"]})
    prompts = cloze.run(asked, store, corpus=corpus, shards=shards)
    model = checkpoint(store, load_tokenizer(store.path(shards) / "tokenizer"))
    return store, model, prompts


def spec(**settings):
    return EvaluateSpec(**{"generation_tokens": NEW, "bootstrap": 100, **settings})


def predicted(store, scores):
    """(item, order, control) -> ids, and the same for texts."""
    table = RowTable(store.path(scores) / "predictions.arrow")
    keys = list(zip(table.column("item"), table.column("order"), table.column("control")))
    values, offsets = table.column("ids")
    return dict(zip(keys, (values[a:b].tolist() for a, b in zip(offsets, offsets[1:])))), table


def again(store, prompts, change):
    """The prompts as another artifact, rows changed."""
    table = RowTable(store.path(prompts) / "prompts.arrow")
    manifest = store.manifest(prompts)

    def make(folder):
        with ShardWriter(folder / "prompts.arrow", cloze.SCHEMA) as writer:
            for row in change(table.table.to_pylist()):
                writer.append(row)
        return manifest.counts

    return store.produce("prompts", {**manifest.spec, "changed": change.__name__}, {}, "0", make)


# ------------------------------------------------------------------------------------------------- same text always
def shuffled(rows):
    random.Random(7).shuffle(rows)
    return rows


@pytest.mark.parametrize("strategy", ["left_pad", "iterate"])
def test_float64_answers_do_not_depend_on_batches_or_order(world, strategy):
    store, model, prompts = world
    found = [predicted(store, evaluate.run(spec(dtype="float64", batch_rows=rows, strategy=strategy), store, model,
                                           which))[0]
             for which in (prompts, again(store, prompts, shuffled)) for rows in (1, 3, 8)]
    assert all(each == found[0] for each in found)
    assert len({tuple(ids) for ids in found[0].values()}) > 8          # the model does say different things


def test_float32_answers_differ_only_where_two_tokens_tie(world):
    store, model, prompts = world
    found = []
    for which in (prompts, again(store, prompts, shuffled)):
        for rows in (1, 3, 8):
            found.append(predicted(store, evaluate.run(spec(batch_rows=rows), store, model, which)))
    first, table = found[0]
    texts = dict(zip(zip(table.column("item"), table.column("order"), table.column("control")),
                     RowTable(store.path(prompts) / "prompts.arrow").table.to_pylist()))
    for ids, _ in found[1:]:
        for key in first:
            if ids[key] != first[key]:
                assert tied(store, model, texts[key], first[key], ids[key]), key


def tied(store, model, row, a, b):
    """Whether the tokens where two answers part have logits within 1e-5."""
    at = next(k for k in range(NEW) if a[k:k + 1] != b[k:k + 1])
    tokenizer = load_tokenizer(store.path(model) / "tokenizer")
    prompt = [tokenizer.end_of_text, *tokenizer.encode(row["prompt"])]
    ids = prompt + a[:at]
    layout = Layout.dense(1, len(ids)).with_prefix(len(prompt) - row["tail_tokens"])
    with torch.no_grad():
        best = load_model(store.path(model))(torch.tensor([ids]), layout)[0, -1].topk(2).values
    return float(best[0] - best[1]) < 1e-5


def test_an_answer_is_what_step_by_step_forward_passes_say(world):
    """The oracle: no cache, no batch, the whole sequence again for each token, prefix set by the prompt."""
    store, model, prompts = world
    ids, _ = predicted(store, evaluate.run(spec(dtype="float64"), store, model, prompts))
    tokenizer = load_tokenizer(store.path(model) / "tokenizer")
    loaded = load_model(store.path(model), torch.float64)
    for row in RowTable(store.path(prompts) / "prompts.arrow").table.to_pylist()[::5]:
        prompt = [tokenizer.end_of_text, *tokenizer.encode(row["prompt"])]
        tail = len(tokenizer.encode(row["tail"]))
        said = []
        while len(said) < NEW:
            whole = prompt + said
            layout = Layout.dense(1, len(whole)).with_prefix(len(prompt) - tail)
            with torch.no_grad():
                token = int(loaded(torch.tensor([whole]), layout)[0, -1, :tokenizer.vocabulary_size].argmax())
            if b"\n" in tokenizer.token_bytes(token) or token == tokenizer.end_of_text:
                break
            said.append(token)
        assert said == ids[row["id"], row["order"], row["control"]]


@pytest.mark.parametrize("strategy, keep_out, prefix_tokens, expected", [
    ("left_pad", "question", None, [8, 4, 6]), ("left_pad", "one", None, [9, 5, 7]), ("left_pad", "none", None, [10, 6, 8]),
    ("left_pad", "question", 5, [5, 4, 5]), ("left_pad", "none", 0, [0, 0, 0]),
    ("reread", "question", None, [15, 7, 11]), ("reread", "one", None, [16, 8, 12]), ("reread", "none", 13, [13, 9, 13]),
])
def test_the_prefix_is_set_by_the_prompt(monkeypatch, strategy, keep_out, prefix_tokens, expected):
    seen = {}

    def greedy(model, prompts, prefix, **settings):
        assert settings["strategy"] == "left_pad"
        seen.update(zip((prompt[-1] + 1 for prompt in prompts), prefix))
        return [[] for _ in prompts]

    class Model:
        config = ModelConfig(width=4, vocabulary=8, mixers={"a": {"kind": "attention", "heads": 1}}, plan="a")

    monkeypatch.setattr("models.greedy", greedy)
    kept = {"question": 2, "one": 1, "none": 0}[keep_out]
    asked = [predictions.Prompt(str(n), tuple(range(n)), kept, lead=1, tail=2) for n in (10, 6, 8)]
    predictions._greedy(asked, Model, spec(strategy=strategy, prefix_tokens=prefix_tokens), NEW, frozenset(), 0)
    assert [seen[n] for n in (10, 6, 8)] == expected


# ------------------------------------------------------------------------------------------------------------- reread
@pytest.mark.parametrize("lead, tail, expected", [
    (1, 2, [0, 1, 2, 3, 1, 2, 3, 4, 5]), (0, 2, [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]), (1, 0, [0, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5]),
    (1, 5, [0, 1, 2, 3, 4, 5]), (0, 6, [0, 1, 2, 3, 4, 5]),
])
def test_the_head_is_read_twice_and_nothing_else(lead, tail, expected):
    prompt = predictions.Prompt("k", tuple(range(6)), 1, lead, tail)
    assert list(prompt.twice().ids) == expected and prompt.twice().keep_out == 1


def test_reread_is_left_pad_of_the_longer_text(world):
    """Every model, with a prefix or without, answers E H H T as it would had the text been that."""
    store, model, prompts = world
    tokenizer = load_tokenizer(store.path(model) / "tokenizer")
    causal = checkpoint(store, tokenizer, plan=("linear", "full"))
    texts = RowTable(store.path(prompts) / "prompts.arrow").table.to_pylist()
    for name in (model, causal):
        ids, _ = predicted(store, evaluate.run(spec(dtype="float64", strategy="reread"), store, name, prompts))
        plain, _ = predicted(store, evaluate.run(spec(dtype="float64"), store, name, prompts))
        assert ids != plain
        loaded = load_model(store.path(name), torch.float64)
        for row in texts[::7]:
            own = tokenizer.encode(row["prompt"])
            head, tail = own[:len(own) - row["tail_tokens"]], own[len(own) - row["tail_tokens"]:]
            whole = [tokenizer.end_of_text, *head, *head, *tail]
            layout = Layout.dense(1, len(whole)).with_prefix(len(whole) - len(tail))
            with torch.no_grad():
                token = int(loaded(torch.tensor([whole]), layout)[0, -1, :tokenizer.vocabulary_size].argmax())
            said = ids[row["id"], row["order"], row["control"]]
            stops = b"\n" in tokenizer.token_bytes(token) or token == tokenizer.end_of_text
            assert said[:1] == ([] if stops else [token])


def test_a_second_reading_that_does_not_fit_is_refused_before_any_answer(world):
    store, _, prompts = world
    tokenizer = load_tokenizer(store.path(world[1]) / "tokenizer")
    model = checkpoint(store, tokenizer, plan=("full",), positions="learned", max_length=150)
    evaluate.run(spec(), store, model, prompts)
    wanted = spec(strategy="reread")
    with pytest.raises(SpecError, match=r"\d+ of \d+ prompts do not fit: the longest has \d+ tokens .*twice.* can place 150"):
        evaluate.run(wanted, store, model, prompts)
    assert not (store.folder / "work" / evaluate.plan(wanted, store, model, prompts) / predictions.FOLDER).exists()


def test_strategies_and_settings_reach_the_model(world):
    store, model, prompts = world
    plain, _ = predicted(store, evaluate.run(spec(dtype="float64"), store, model, prompts))
    for settings in ({"keep_out": "none"}, {"prefix_tokens": 0}, {"strategy": "iterate"},
                     {"strategy": "left_pad_released", "prefix_tokens": 150}):
        other, _ = predicted(store, evaluate.run(spec(dtype="float64", **settings), store, model, prompts))
        assert other != plain, settings
    with pytest.raises(SpecError, match="set prefix_tokens"):
        evaluate.run(spec(strategy="left_pad_released"), store, model, prompts)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_model_runs_in_the_dtype_and_on_the_threads_asked_for(world, monkeypatch, dtype):
    store, model, prompts = world
    seen, before = [], torch.get_num_threads()

    def answer(asked, loaded, *rest):
        seen.append((loaded.norm.weight.dtype, torch.get_num_threads()))
        return {prompt.key: predictions.Answer((), "", 0.0) for prompt in asked}

    monkeypatch.setattr(evaluate, "answer", answer)
    evaluate.run(spec(dtype=dtype, threads=2, seed=11), store, model, prompts)
    assert seen == [(getattr(torch, dtype), 2)] and torch.get_num_threads() == before


def test_iterate_says_first_what_left_pad_says_first(world):
    store, model, prompts = world
    one, _ = predicted(store, evaluate.run(spec(dtype="float64", generation_tokens=1), store, model, prompts))
    two, _ = predicted(store, evaluate.run(spec(dtype="float64", generation_tokens=1, strategy="iterate"), store, model,
                                           prompts))
    assert one == two


def test_a_model_without_prefix_says_the_same_under_every_strategy(world):
    store, _, prompts = world
    tokenizer = load_tokenizer(store.path(world[1]) / "tokenizer")
    model = checkpoint(store, tokenizer, plan=("linear", "full"))
    said = [predicted(store, evaluate.run(spec(dtype="float64", **settings), store, model, prompts))[0]
            for settings in ({}, {"strategy": "iterate"}, {"keep_out": "none"}, {"strategy": "left_pad_released"})]
    assert said[0] == said[1] == said[2] == said[3]


@pytest.mark.parametrize("name, pad", [("gpt2", 220), ("bytes", 32)])
def test_released_pads_are_the_spaces_of_the_tokenizer(name, pad):
    asked = spec(strategy="left_pad_released", prefix_tokens=9)
    reader = SimpleNamespace(able=SimpleNamespace(prefix=True))
    assert predictions.pad_of(asked, reader, load_tokenizer(name)) == pad
    with pytest.raises(SpecError, match="ids:64 has no such token"):
        predictions.pad_of(asked, reader, load_tokenizer("ids:64"))


# ---------------------------------------------------------------------------------------------------------- resuming
DIES = """
import os, signal, sys
from storage.artifacts import Store
from tasks import evaluate, predictions
from tasks.specs import EvaluateSpec
real, kept = predictions.Kept.add, []
def add(self, results):
    real(self, results)
    kept.append(results)
    if len(kept) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
predictions.Kept.add = add
evaluate.run(EvaluateSpec.model_validate_json(sys.argv[2]), Store(sys.argv[1]), sys.argv[3], sys.argv[4])
"""


class Watched:
    """Counts the rows that models read and score."""

    def __init__(self, monkeypatch):
        self.read, self.scored = [], 0
        prefill, hidden = LanguageModel.prefill, LanguageModel.hidden

        def watched_prefill(model, ids_BL, layout, *rest):
            self.read += [tuple(row[:n]) for row, n in zip(ids_BL.tolist(), layout.lengths)]
            return prefill(model, ids_BL, layout, *rest)

        def watched_hidden(model, ids_BL, layout):
            self.scored += len(ids_BL)
            return hidden(model, ids_BL, layout)

        monkeypatch.setattr(LanguageModel, "prefill", watched_prefill)
        monkeypatch.setattr(LanguageModel, "hidden", watched_hidden)


def test_an_evaluation_killed_in_the_middle_answers_only_the_rest(world, monkeypatch):
    """kill -9 after three batches; the second run reads the prompts that have no answer, once each, and no other."""
    store, model, prompts = world
    wanted = spec(batch_rows=2, seed=3)
    ended = subprocess.run([sys.executable, "-c", DIES, store.root, wanted.model_dump_json(), model, prompts],
                           env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    identifier = evaluate.plan(wanted, store, model, prompts)
    assert not store.exists(identifier)
    kept = [json.loads(path.read_text()) for path in
            (store.folder / "work" / identifier / predictions.FOLDER).glob("*.json")]
    assert [len(each) for each in kept] == [2, 2, 2]
    watched = Watched(monkeypatch)
    made = evaluate.run(wanted, store, model, prompts)
    assert made == identifier
    assert len(watched.read) == len(set(watched.read)) == store.manifest(made).counts["prompts"] - 6
    assert predicted(store, made)[0] == predicted(store, evaluate.run(spec(batch_rows=2), store, model, prompts))[0]
    assert sorted(path.name for path in store.path(made).iterdir()) == [
        "manifest.json", "predictions.arrow", "scores.json"]


def test_prompts_that_read_the_same_are_answered_once(world, monkeypatch):
    store, model, prompts = world
    watched = Watched(monkeypatch)
    made = evaluate.run(spec(seed=4), store, model, prompts)
    _, table = predicted(store, made)
    assert len(watched.read) == len(set(table.column("prompt"))) < len(table)
    counts = store.manifest(made).counts
    assert counts["examples"] == len(table) and counts["prompts"] == len(watched.read)
    assert counts["examples_per_second"] > 0


# ------------------------------------------------------------------------------------------------------------- actors
@pytest.fixture
def ray_here():
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False, object_store_memory=100 << 20)
    yield ray
    ray.shutdown()


class DiesOnce(actors.Reader):
    """Takes its process with it when it is asked for the first time; `root` says where it notes that."""

    def answers(self, prompts):
        mark = Path(self.root) / "died"
        if not mark.exists():
            mark.touch()
            os._exit(1)
        return super().answers(prompts)


class Fails(actors.Reader):
    def answers(self, prompts):
        raise SpecError("this one fails")


class AlwaysDies(actors.Reader):
    def answers(self, prompts):
        os._exit(1)


@pytest.mark.services
def test_two_actors_answer_as_one_process_does_and_dead_ones_are_replaced(world, ray_here, tmp_path):
    store, model, prompts = world
    alone, table = predicted(store, evaluate.run(spec(dtype="float64", likelihood=True), store, model, prompts))
    made = evaluate.run(spec(dtype="float64", likelihood=True, actors=2, batch_rows=2), store, model, prompts)
    shared, other = predicted(store, made)
    assert shared == alone
    assert other.column("loglikelihood") == pytest.approx(table.column("loglikelihood"), abs=1e-9)
    asked = [predictions.Prompt(f"p{n}", tuple(range(1, n)), 0) for n in range(3, 15)]
    wanted = spec(actors=2, batch_rows=2)
    found = {}
    for name, reader in (("once", DiesOnce), ("never", actors.Reader)):
        with actors.Crew(store.root, model, wanted, NEW, reader) as crew:
            found[name] = crew.answer(asked, tmp_path / name)
            assert len(crew.all) == (3 if name == "once" else 2)
    assert {key: each.ids for key, each in found["once"].items()} == {
        key: each.ids for key, each in found["never"].items()} and len(found["once"]) == 12
    (store.folder / "died").unlink()
    with actors.Crew(store.root, model, wanted, NEW, Fails) as crew, pytest.raises(SpecError, match="^this one fails$"):
        crew.answer(asked, tmp_path / "fails")
    with actors.Crew(store.root, model, spec(actors=1), NEW, AlwaysDies) as crew, pytest.raises(
            StageFailed, match="3 actors died over one group"):
        crew.answer(asked, tmp_path / "dies")
    with pytest.raises(SpecError, match="more than the 0 GPUs"):
        evaluate.run(spec(gpus_per_actor=1), store, model, prompts)


def test_groups_are_shares_of_at_least_a_batch():
    sizes = [len(each) for each in actors.groups(range(100), spec(actors=2, batch_rows=4))]
    assert sum(sizes) == 100 and sizes == [13] * 7 + [9]
    assert [len(each) for each in actors.groups(range(10), spec(actors=4, batch_rows=8))] == [8, 2]
    assert max(len(each) for each in actors.groups(range(10_000), spec(actors=2, batch_rows=8))) == 64
    assert actors.groups([], spec(actors=2)) == []


# ------------------------------------------------------------------------------------------------------------- scores
def test_scores_are_those_of_the_predictions(world):
    store, model, prompts = world
    made = evaluate.run(spec(), store, model, prompts)
    _, table = predicted(store, made)
    scores = json.loads((store.path(made) / "scores.json").read_text())
    rows = table.table.to_pylist()
    assert len({(s["task"], s["column"], s["order"], s["control"], s["strategy"]) for s in scores}) == len(scores)
    for score in scores:
        natural = "natural" if score["column"] == "uncommon" else score["column"]
        members = [row for row in rows if (row["column"], row["order"], row["control"]) == (
            natural, score["order"], score["control"]) and (score["column"] != "uncommon" or row["uncommon"])]
        assert score["n"] == len(members) > 0
        assert score["value"] == pytest.approx(np.mean([row["correct"] for row in members]))
        assert all(row["correct"] == (row["answers"][0].lower() in row["prediction"].lower()) for row in members)
    assert {s["column"] for s in scores} == {"natural", "swap", "uncommon"}


def test_every_metric_stands_beside_and_errors_have_a_class(world):
    store, model, prompts = world
    made = evaluate.run(spec(), store, model, prompts)
    rows = RowTable(store.path(made) / "predictions.arrow").table.to_pylist()
    for row in rows:
        expected = scoring.every_metric(row["prediction"], row["answers"])
        assert {name: row[name] for name in scoring.METRICS} == pytest.approx(expected)
        assert (row["error"] == "") == row["correct"] and row["error"] in ("", *CLASSES)
        assert row["truncated"] == (len(row["ids"]) == NEW) and np.isnan(row["loglikelihood"])
    assert len({row["error"] for row in rows}) > 1
    for score in json.loads((store.path(made) / "scores.json").read_text()):
        assert score["also"]["contains"] == {name: score[name] for name in ("value", "low", "high")}
        assert set(score["also"]) == set(scoring.METRICS) and "likelihood" not in score
        assert sum(score["errors"].values()) == pytest.approx(1 - score["value"])
        assert list(score["errors"]) == list(CLASSES)


def test_any_metric_is_computed_again_without_a_model(world):
    store, model, prompts = world
    made = {metric: evaluate.run(spec(metric=metric), store, model, prompts) for metric in scoring.METRICS}
    found = {metric: json.loads((store.path(name) / "scores.json").read_text()) for metric, name in made.items()}
    for metric in scoring.METRICS:
        again = scores.rescore(store.path(made["contains"]), metric)
        for mine, theirs in zip(again, found[metric], strict=True):
            assert mine["metric"] == metric and mine["value"] == theirs["value"]
            skipped = ("examples_per_second",) + (("errors",) if metric != "contains" else ())
            assert {name: each for name, each in mine.items() if name not in skipped} == {
                name: each for name, each in theirs.items() if name not in skipped}
            assert ("errors" in mine) == (metric == "contains")
    graded = RowTable(store.path(made["f1"]) / "predictions.arrow").table
    assert str(graded.schema.field("correct").type) == "double"
    assert graded.column("correct").to_pylist() == pytest.approx(graded.column("f1").to_pylist())
    with pytest.raises(SpecError, match="unknown metric"):
        scores.rescore(store.path(made["f1"]), "rouge")
    with pytest.raises(ArtifactError, match="no scores.json"):
        scores.rescore(store.path(prompts), "f1")


def row(item, order, control, correct, column="natural", uncommon=False, document=None):
    return {"item": item, "document": document or item, "task": "t", "column": column, "uncommon": uncommon,
            "order": order, "control": control, "prompt": f"{item}{order}{control}", "correct": correct,
            "seconds": 0.5, "tokens": 3, "prediction": "", "answers": []}


def test_recall_is_what_is_left_above_both_controls():
    rows = []
    for k in range(40):
        rows += [row(f"i{k}", "default", control, correct, uncommon=k < 10)
                 for control, correct in (("none", k < 30), ("empty", k < 5), ("other", k >= 12))]
    scores = {(s["column"], s["control"]): s for s in evaluate.score_rows(rows, spec(bootstrap=500))}
    score = scores["natural", "none"]
    assert score["value"] == 0.75 and score["n"] == score["documents"] == 40
    assert score["controls"]["empty"]["value"] == 0.125 and score["controls"]["other"]["value"] == 0.7
    above = score["above_controls"]
    assert above["control"] == "other" and above["difference"] == pytest.approx(0.05)
    assert above["low"] < 0 < 0.05 < above["high"]
    assert above["against"]["empty"]["difference"] == pytest.approx(0.625) and above["against"]["empty"]["low"] > 0.4
    assert score["examples_per_second"] == 2.0
    assert scores["uncommon", "none"]["n"] == 10 and scores["uncommon", "none"]["value"] == 1.0
    assert scores["uncommon", "none"]["controls"]["empty"]["value"] == 0.5
    assert "above_controls" not in scores["natural", "empty"]


def test_a_paired_difference_is_narrower_than_two_apart():
    draw = np.random.default_rng(0)
    known = draw.random(200) < 0.5
    rows = [row(f"i{k}", "default", "none", bool(known[k] or k % 10 == 0)) for k in range(200)]
    rows += [row(f"i{k}", "default", "empty", bool(known[k])) for k in reversed(range(200))]
    scores = {s["control"]: s for s in evaluate.score_rows(rows, spec(bootstrap=500))}
    above = scores["none"]["above_controls"]
    assert above["high"] - above["low"] < 0.6 * (scores["none"]["high"] - scores["none"]["low"])


def test_items_of_one_document_do_not_count_as_many():
    rows = [row(f"i{k}", "default", "none", k < 20, document=f"d{k // 20}") for k in range(40)]
    [score] = evaluate.score_rows(rows, spec())
    assert score["documents"] == 2 and (score["low"], score["high"]) == (0, 1)
    assert score["controls"] == {} and score["above_controls"] is None


def test_one_document_has_a_score_and_no_interval():
    [score] = evaluate.score_rows([row("i", "default", "none", True)], spec())
    assert score["value"] == 1.0 and score["low"] is None and "one document" in score["reason"]


# ------------------------------------------------------------------------------------------------------- other tasks
def test_disjoint_is_one_token_and_exact(tmp_path):
    store = Store(tmp_path)
    tokenizer = load_tokenizer("ids:64")
    options = {"vocabulary": 64, "sizes": [[2, 4], [3, 8]]}
    prompts = cloze.run(ClozeSpec(task="disjoint", task_options=options, limit=20), store)
    made = evaluate.run(EvaluateSpec(bootstrap=100), store, checkpoint(store, tokenizer, plan=("conv", "prefix")),
                        prompts)
    ids, table = predicted(store, made)
    assert all(len(each) <= 1 for each in ids.values()) and len(table) == 20 * 2 * 2 * 3
    scores = json.loads((store.path(made) / "scores.json").read_text())
    assert {(s["column"], s["order"]) for s in scores} == {
        (column, order) for column in ("2|4", "3|8") for order in ("small_first", "large_first")}
    assert {s["metric"] for s in scores} == {"exact"}
    assert all(row["correct"] == (row["prediction"] in row["answers"]) for row in table.table.to_pylist())


# ------------------------------------------------------------------------------------------------ identity, mistakes
def test_the_id_is_known_before_and_follows_what_decides(world):
    store, model, prompts = world
    planned = evaluate.plan(spec(), store, model, prompts)
    assert evaluate.run(spec(), store, model, prompts) == planned
    assert evaluate.plan(spec(keep_out="one"), store, model, prompts) != planned
    assert evaluate.plan(spec(), store, "checkpoint-0", prompts) != planned
    assert evaluate.plan(spec(), store, model, prompts, mixers=["based"]) != evaluate.plan(
        spec(), store, model, prompts, mixers=["attention"])


def test_a_mixer_file_that_does_not_parse_stops_nobody(tmp_path, monkeypatch):
    for name, code in {"fine": "x = 1", "broken": "def (", "__init__": ""}.items():
        (tmp_path / "mixers").mkdir(exist_ok=True)
        (tmp_path / "mixers" / f"{name}.py").write_text(code)
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(evaluate.importlib.util, "find_spec", lambda name: spec)
    assert evaluate._kinds() == ["fine"]
    parse, read = evaluate.ast.parse, []
    monkeypatch.setattr(evaluate.ast, "parse", lambda text: read.append(text) or parse(text))
    assert evaluate._kinds() == ["fine"] and not read            # a plan asks for every checkpoint
    (tmp_path / "mixers" / "broken.py").write_text("y = 22")
    assert evaluate._kinds() == ["broken", "fine"] and len(read) == 1


def test_prompts_of_another_tokenizer_are_refused(world, tmp_path):
    store, _, prompts = world
    model = checkpoint(store, load_tokenizer("bytes"), plan=("linear",))
    with pytest.raises(ArtifactError, match="same shards artifact"):
        evaluate.run(spec(), store, model, prompts)


def test_damaged_weights_give_no_score(world, tmp_path):
    store, model, prompts = world
    copied = Store(tmp_path)
    shutil.copytree(store.folder, copied.folder, dirs_exist_ok=True)
    weights = copied.path(model) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ArtifactError, match="model.safetensors"):
        evaluate.run(spec(seed=99), copied, model, prompts)


def test_more_generation_than_the_prompts_left_room_for_is_refused(world):
    store, model, prompts = world
    with pytest.raises(SpecError, match="leave room for 48"):
        evaluate.run(spec(generation_tokens=49), store, model, prompts)
