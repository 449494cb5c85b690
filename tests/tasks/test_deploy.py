"""What serving costs, by length: figures of the call they name, nothing where the answer is wrong or cannot be."""

import json
import time

import pytest
import torch

from models import Layout, ModelConfig, build, load_model
from storage.artifacts import Store
from storage.errors import ArtifactError, ConfigError, SpecError
from tasks import deploy
from tasks.specs import DeploySpec
from tasks.tokenizers import load_tokenizer
from tests.tasks.test_evaluate import MIXERS, checkpoint
from tests.tasks.test_external import gpt2_folder

QUICK = {"generation_tokens": 3, "repeats": 2, "check_tokens": 24}


def spec(*lengths, **settings):
    return DeploySpec(lengths=lengths or (16, 40), **{**QUICK, **settings})


def tiny(*plan, **settings):
    return build(ModelConfig(width=16, vocabulary=50, mixers={name: MIXERS[name] for name in plan}, plan=plan, init_std=0.5,
                             tie=False, **settings)).eval()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("deploy") / "home")
    return store, checkpoint(store, load_tokenizer("bytes"), tuple(MIXERS)), gpt2_folder(tmp_path_factory.mktemp("gpt2"))


@pytest.mark.parametrize("which", ["ours", "gpt2"])
def test_every_length_has_its_figures(world, which):
    store, ours, gpt2 = world
    model = ours if which == "ours" else gpt2
    asked = spec(40, 16, 600) if which == "gpt2" else spec(40, 16)
    identifier = deploy.run(asked, store, model)
    assert identifier == deploy.plan(asked, store, model) == deploy.run(asked, store, model)
    rows = json.loads((store.path(identifier) / "deploy.json").read_text())
    assert [row["length"] for row in rows] == sorted(asked.lengths)
    for row in rows[:2]:
        assert row["ttft_ms"] > 0 and row["tokens_per_s"] > 0 and row["peak_bytes"] > 0 and row["reason"] is None
        assert 0 < row["error"] < row["tolerance"] == 1e-4 and row["contended"] in (True, False) and row["repetitions"] == 2
    assert rows[0]["state_bytes"] < rows[1]["state_bytes"]           # both hold keys and values
    manifest = store.manifest(identifier)
    assert manifest.kind == "deploy" and manifest.counts["rows"] == len(rows)
    if which == "gpt2":
        assert rows[2]["reason"] == "the model can place 512 tokens, not 600 tokens and 4 after them"
        assert rows[2]["ttft_ms"] is rows[2]["tokens_per_s"] is rows[2]["state_bytes"] is None
        assert manifest.counts["source"] == gpt2 and manifest.counts["without_figures"] == 1
        assert manifest.inputs["checkpoint"].startswith("hf:sha256-")


def test_state_bytes_are_those_of_the_live_cache_after_the_prompt():
    fixed, growing = tiny("conv", "linear"), tiny("full")
    for model in (fixed, growing):
        rows = deploy.measure(model, spec(16, 64, batch_rows=2))
        for row in rows:
            ids = torch.zeros(2, row["length"], dtype=torch.int64)
            assert row["state_bytes"] == model.prefill(ids, Layout.dense(2, row["length"]))[1].nbytes
        assert (rows[0]["state_bytes"] == rows[1]["state_bytes"]) == (model is fixed)


def test_the_times_are_those_of_the_calls_they_name(monkeypatch):
    """Calls that take a known while: four hundredths of a second a prefill, two a step of two rows."""
    model = tiny("linear")
    prefill, step = model.prefill, model.step

    def busy(call, seconds):
        def slow(*given):
            begun = time.thread_time()
            result = call(*given)
            while time.thread_time() - begun < seconds:
                pass
            return result
        return slow

    monkeypatch.setattr(model, "prefill", busy(prefill, 0.04))
    monkeypatch.setattr(model, "step", busy(step, 0.02))
    [row] = deploy.measure(model, spec(16, batch_rows=2, repeats=3, warm_up=0))
    assert 40 <= row["ttft_ms"] < 55 and 2 / 0.026 < row["tokens_per_s"] <= 2 / 0.02 and row["repetitions"] == 3


@pytest.mark.parametrize("M", [None, 0, 5, 300])
def test_a_prefix_is_part_of_the_gate_and_of_the_prompt(M):
    model = tiny("prefix", "full")
    seen = []
    prefill = model.prefill
    model.prefill = lambda ids, layout, **named: (seen.append((layout.shape[1], layout.prefix_B.tolist())),
                                                  prefill(ids, layout, **named))[1]
    [row] = deploy.measure(model, spec(40, prefix_tokens=M))
    assert row["error"] < 1e-4 and row["reason"] is None
    assert {n for n, _ in seen} == {16, 40} and all(prefix == [n if M is None else min(M, n)] for n, prefix in seen)


def test_a_wrong_step_has_no_time(monkeypatch):
    model = tiny("conv", "linear")
    step = model.step

    def wrong(factor):
        def called(*given):
            logits, state = step(*given)
            return logits * factor, state
        return called

    monkeypatch.setattr(model, "step", wrong(1.01))
    row = deploy.measure(model, spec(40))[0]
    assert row["error"] > 1e-3 and "differ from the forward" in row["reason"]
    assert row["ttft_ms"] is row["tokens_per_s"] is row["state_bytes"] is row["contended"] is None
    monkeypatch.setattr(model, "step", wrong(float("nan")))
    row = deploy.measure(model, spec(40))[0]
    assert row["error"] is None and row["reason"] and row["ttft_ms"] is None


def test_one_length_that_fails_takes_no_other_with_it(monkeypatch):
    model = tiny("linear")
    prefill = model.prefill

    def short(ids, layout, **named):
        if ids.shape[1] > 100:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return prefill(ids, layout, **named)

    monkeypatch.setattr(model, "prefill", short)
    first, second = deploy.measure(model, spec(120, 40))
    assert first["ttft_ms"] > 0 and second["ttft_ms"] is None and "out of memory" in second["reason"]
    assert second["error"] < 1e-4, "the gate ran on its first tokens"


def test_a_learned_position_table_ends_where_the_answer_would(world):
    model = tiny("full", positions="learned", max_length=64)
    rows = deploy.measure(model, spec(60, 61, generation_tokens=3))
    assert rows[0]["ttft_ms"] > 0 and rows[1]["error"] is None
    assert rows[1]["reason"] == "the model can place 64 tokens, not 61 tokens and 4 after them"


def test_what_is_measured_is_part_of_the_identity(world):
    store, ours, gpt2 = world
    ids = {deploy.plan(each, store, model) for model in (ours, gpt2)
           for each in (spec(), spec(64), spec(repeats=3), spec(threads=2), spec(machine="another"), spec(dtype="bfloat16"))}
    assert len(ids) == 12 and deploy.plan(spec(), store, ours, mixers=["based"]) not in ids
    assert deploy.plan(spec(), store, ours) == deploy.plan(deploy.placed(spec()), store, ours)


def test_mistakes(world, tmp_path):
    store, ours, _ = world
    with pytest.raises(ArtifactError):
        deploy.run(spec(), store, "checkpoint-0000000000000000")
    with pytest.raises(ConfigError, match="no such folder"):
        deploy.plan(spec(), store, f"hf:{tmp_path / 'none'}")
    if not torch.cuda.is_available():
        with pytest.raises(SpecError, match="no CUDA device"):
            deploy.run(spec(device="cuda"), store, ours)
    for wrong in ({"lengths": ()}, {"lengths": (1,)}, {"generation_tokens": 1}, {"repeats": 0}):
        with pytest.raises(ValueError):
            DeploySpec(**wrong)
    assert DeploySpec(lengths="16, 32").lengths == (16, 32) and DeploySpec(lengths=64).lengths == (64,)


def test_the_loaded_model_is_of_the_asked_type(world):
    store, ours, gpt2 = world
    for model in (ours, gpt2):
        assert deploy._load(model, store, spec(dtype="bfloat16")).embedding.weight.dtype == torch.bfloat16
    assert load_model(store.path(ours)).embedding.weight.dtype == torch.float32
