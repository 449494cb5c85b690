"""The pretrain stage: what it writes, what its id depends on, what it refuses and how it fails."""

import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from models import load_model
from storage.artifacts import Store
from storage.errors import ConfigError, SpecError, StageFailed, TokenizerError
from storage.identity import code_hash, reached
from storage.shards import ShardWriter
from tasks import pretrain
from tasks.specs import ObjectiveSpec
from tasks.tokenizers import load_tokenizer
from tasks.training.data import Objective, RowBatches, ShardBatches
from tests.tasks.training_artifacts import ROWS_SCHEMA, pretrain_spec, rows_artifact, shards_artifact

SHARDS = {"data": "shards", "steps": 12, "global_batch_rows": 8, "micro_batch_rows": 4}


class Kept:
    """Tracking that keeps what it is told."""

    def __init__(self):
        self.points, self.flushed = [], 0

    def metrics(self, run_id, values, step, tokens=None):
        self.points.append((run_id, step, tokens, dict(values)))

    def flush(self):
        self.flushed += 1


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def rows(store):
    return rows_artifact(store)


@pytest.fixture(scope="module")
def shards(store):
    return shards_artifact(store)


@pytest.fixture(scope="module")
def trained(store, rows):
    """(id, tracking) of the plain run that most tests look at."""
    tracking = Kept()
    return pretrain.run(pretrain_spec(), store, rows=rows, tracking=tracking, run_id="r1"), tracking


def curve(folder):
    return [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]


# ------------------------------------------------------------------------------------------------------ what it makes
def test_files_and_counts(store, rows, trained):
    folder = store.path(trained[0])
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json", "curve.jsonl", "manifest.json", "model.safetensors", "summary.json", "tokenizer"]
    assert load_tokenizer(folder / "tokenizer").name == "bytes"
    assert load_model(folder).config.width == 32
    summary, counts = json.loads((folder / "summary.json").read_text()), store.manifest(trained[0]).counts
    assert summary["steps"] == counts["steps"] == 12 and summary["rows"] == 48  # all batches once
    assert summary["tokens"] == int(RowBatches(store.path(rows), objective())._tokens[-1])
    assert summary["seconds"] > 0 and summary["tokens_per_second"] > 0 and summary["training_flops"] > 0
    assert summary["parameters"] == sum(p.numel() for p in load_model(folder).parameters())
    assert summary["objective"] == "answers" and summary["supervised"] == curve(folder)[-1]["supervised"]


def objective(reads_prefix=True):
    return Objective("answers", reads_prefix, 257, 0, ObjectiveSpec())


def test_curve(store, trained):
    points = curve(store.path(trained[0]))
    assert [point["step"] for point in points] == [2, 4, 6, 8, 10, 12]
    assert all({"tokens", "supervised", "loss", "loss/answer", "loss/masked", "learning_rate", "learning_rate/matrix",
                "gradient_norm", "tokens_per_second", "memory_bytes"} <= point.keys() for point in points)
    assert [("validation/loss" in point, "validation/bits_per_byte" in point) for point in points] == [
        (step % 4 == 0,) * 2 for step in (2, 4, 6, 8, 10, 12)]
    for point in points:
        assert point["loss"] == pytest.approx((point["loss/answer"] + 0.25 * point["loss/masked"]) / 1.25, abs=1e-6)
    assert points[-1]["loss"] < points[0]["loss"] - 1
    assert points[-1]["learning_rate"] == pytest.approx(1e-3)


def test_tracking_gets_the_same_points(store, trained):
    identifier, tracking = trained
    points = curve(store.path(identifier))
    assert [(run, step, tokens) for run, step, tokens, _ in tracking.points] == [
        ("r1", point["step"], point["tokens"]) for point in points]
    assert all(values == {k: v for k, v in point.items() if k not in ("step", "tokens")}
               for (*_, values), point in zip(tracking.points, points))
    assert tracking.flushed


def test_validation_bits_per_byte_by_hand(store, rows, trained):
    """Over the answers of the validation rows, prefix without masks: from the saved weights, one logit at a time."""
    folder = store.path(trained[0])
    model, nats, size = load_model(folder), 0.0, 0
    for batch in RowBatches(store.path(rows), objective()).validation(2):
        with torch.no_grad():
            logits_BLE = model(batch.ids_BL, batch.layout)
        term = batch.terms["answer"]
        nats += F.cross_entropy(logits_BLE.flatten(0, 1)[term.index_S], term.target_S, reduction="sum").item()
        size += len(term.target_S)  # every token is a byte
    assert curve(folder)[-1]["validation/bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)


def test_the_same_spec_twice_trains_once_and_elsewhere_gives_the_same_bits(store, rows, trained, tmp_path):
    tracking = Kept()
    assert pretrain.run(pretrain_spec(), store, rows=rows, tracking=tracking) == trained[0] and not tracking.points
    other = Store(tmp_path)
    again = pretrain.run(pretrain_spec(), other, rows=rows_artifact(other))
    assert again == trained[0]
    weights = [(place.path(again) / "model.safetensors").read_bytes() for place in (store, other)]
    assert weights[0] == weights[1]


def test_shards_with_any_micro_batch_give_the_same_losses(store, shards):
    found = []
    for micro in (8, 2):
        spec = pretrain_spec(validation_batches=3, **SHARDS | {"micro_batch_rows": micro})
        folder = store.path(pretrain.run(spec, store, shards=shards))
        found.append(curve(folder))
        summary = json.loads((folder / "summary.json").read_text())
        assert (summary["boundary"], summary["normalisation"]) == ("released", "paper")
        assert summary["silent_documents"] == sum(ShardBatches(
            store.path(shards), replace(objective(), kind="prefix_lm"), global_rows=8, micro_rows=8,
        ).micro_batches(step)[0].silent for step in range(12)) > 0
    for a, b in zip(*found, strict=True):
        for name in ("loss", "loss/next", "loss/masked", "gradient_norm", "validation/bits_per_byte"):
            assert a.get(name, 0) == pytest.approx(b.get(name, 0), rel=1e-4), (a["step"], name)
        assert (a["tokens"], a["supervised"]) == (b["tokens"], b["supervised"])


def test_causal_models_train_on_shards_by_next_token_in_bfloat16(store, shards):
    identifier = pretrain.run(pretrain_spec("transformer-mini", **SHARDS | {"precision": "bfloat16"}), store,
                              shards=shards)
    points = curve(store.path(identifier))
    assert "loss/next" in points[0] and "loss/masked" not in points[0]
    assert points[-1]["loss"] < points[0]["loss"]
    assert next(load_model(store.path(identifier)).parameters()).dtype == torch.float32


def test_set_intersection_rows_bring_their_own_vocabulary(store):
    """Rows of kind disjoint: ids as they are, the answer predicted by the last prefix slot, no masks wanted."""
    def build(folder):
        load_tokenizer("ids:64").save(folder / "tokenizer")
        for name in ("train", "validation"):
            with ShardWriter(folder / f"{name}.arrow", ROWS_SCHEMA) as writer:
                for batch in range(4):
                    for row in range(4):
                        writer.append({"ids": [1, 5 + row, 9, 2, 9, 20 + batch, 3, 9], "prefix": 7, "answers": [6],
                                       "order": "small_first", "form": "disjoint", "batch": batch, "document": ""})

    made = store.produce("rows", {"kind": "disjoint", "vocabulary": 64}, {}, "test", build)
    spec = pretrain_spec(steps=8, objective={"mask_share": 0.0})
    folder = store.path(pretrain.run(spec, store, rows=made))
    points = curve(folder)
    assert load_tokenizer(folder / "tokenizer").name == "ids:64"
    assert "loss/masked" not in points[0] and points[-1]["supervised"] == 32
    assert points[-1]["loss"] < points[0]["loss"]  # the batches repeat after 4 steps


# ----------------------------------------------------------------------------------------------------------- identity
def test_the_id_follows_everything_that_matters(store, rows, shards):
    base = pretrain_spec()
    ids = {pretrain.plan(spec, store, **inputs) for spec, inputs in [
        (base, {"rows": rows}), (base, {"rows": "rows-0123456789abcdef"}),
        (base.model_copy(update={"seed": 1}), {"rows": rows}),
        (base.model_copy(update={"model": "based-mini"}), {"rows": rows}),
        (base.model_copy(update={"model_overrides": {**base.model_overrides, "mixers.prefix.feature_dim": 4}}),
         {"rows": rows}),
        (pretrain_spec(steps=3), {"rows": rows})]}
    assert len(ids) == 6
    assert pretrain.plan(base, store, rows=rows, shards=shards) in ids  # shards that rows were made from do not count


def test_code_of_the_mixers_used_counts_and_of_others_does_not():
    _, _, code = pretrain._identity(pretrain_spec("transformer-mini"), "rows-0123456789abcdef", None)
    assert code == code_hash(["tasks.pretrain", "models.mixers.attention"])
    modules = reached(["tasks.pretrain", "models.mixers.attention"])
    assert {"tasks.training.loop", "tasks.training.optimiser", "tasks.training.deepspeed_engine", "models.objectives",
            "models.mixers.attention", "kernels.layout"} <= modules.keys()
    assert "models.mixers.prefix" not in modules


def test_overrides_reach_inside_and_the_seed_draws_the_weights():
    spec = pretrain_spec().model_copy(update={"seed": 7, "model_overrides": {
        "width": 32, "mixers.prefix.feature_dim": 4, "plan": ["prefix*2"]}})
    config = pretrain.resolve_config(spec)
    assert (config.width, config.mixers["prefix"].feature_dim, config.plan, config.seed) == (
        32, 4, ("prefix", "prefix"), 7)


# ----------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize("overrides, message", [
    ({"widht": 3}, "'widht' names no field"), ({"mixers.nothing.heads": 3}, "names no field"),
    ({"width": 0}, "width"), ({"mixers.prefix.heads": "many"}, "heads")])
def test_wrong_overrides(store, rows, overrides, message):
    with pytest.raises(ConfigError, match=message):
        pretrain.plan(pretrain_spec().model_copy(update={"model_overrides": overrides}), store, rows=rows)


@pytest.mark.parametrize("train, inputs, message", [
    ({}, {}, "'rows' needs the id of a rows artifact, got None"),
    ({}, {"rows": "shards-0123456789abcdef"}, "a rows artifact, got 'shards-"),
    (SHARDS, {"rows": "rows-0123456789abcdef"}, "'shards' needs the id of a shards artifact, got None")])
def test_wrong_inputs_are_refused_when_planning(store, train, inputs, message):
    with pytest.raises(SpecError, match=message):
        pretrain.plan(pretrain_spec(**train), store, **inputs)


@pytest.mark.parametrize("overrides, train, message", [
    ({"vocabulary": 256}, {}, "embedding has 256 rows, but tokenizer 'bytes' needs 25[0-9]"),
    ({}, {"objective": {"kind": "next_token"}}, "does not fit data 'rows'"),
    ({}, {"trainer": "deepspeed", "workers": 5}, "5 workers cannot share"),
    ({}, {"gpus_per_worker": 1}, "no CUDA device")])
def test_a_job_that_cannot_work_is_refused_before_anything_is_built(store, rows, overrides, train, message,
                                                                    monkeypatch):
    if "gpus_per_worker" in train and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    monkeypatch.setattr(pretrain, "_train", lambda job: pytest.fail("training began"))
    spec = pretrain_spec(**train)
    spec = spec.model_copy(update={"model_overrides": {**spec.model_overrides, **overrides}})
    with pytest.raises(SpecError, match=message):
        pretrain.run(spec, store, rows=rows)


@pytest.mark.parametrize("optimiser, what", [
    ({"kind": "adamw", "learning_rate": 1e25, "warmup_steps": 0}, "loss is (nan|inf)"),
])
def test_a_broken_loss_ends_the_stage_with_step_and_remedy(store, rows, optimiser, what):
    spec = pretrain_spec(optimiser=optimiser)
    with pytest.raises(StageFailed, match=rf"step \d+ of 12: {what}.*lower learning_rate \(now 1e\+25\).*warmup_steps"):
        pretrain.run(spec, store, rows=rows)
    assert not store.exists(pretrain.plan(spec, store, rows=rows))


def test_rows_without_a_tokenizer_are_refused(store):
    made = store.produce("rows", {"kind": "recall", "bare": True}, {}, "test",
                         lambda folder: (folder / "train.arrow").write_text("") and None)
    with pytest.raises(TokenizerError):
        pretrain.run(pretrain_spec(), store, rows=made)
