"""`reread export` and `reread import`: a real small checkpoint out, cards, and others' checkpoints in."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, MambaConfig, MambaForCausalLM

from models import Layout, load_model
from storage.artifacts import Store
from tasks import cloze, evaluate, pretrain, rows
from tasks.specs import ClozeSpec, DisjointRowsSpec, EvaluateSpec, PretrainSpec, TrainSpec
from tasks.tokenizers import load_tokenizer
from tasks.training import sweep

ASKED = {"limit": 3, "orders": ("small_first",), "task_options": {"sizes": [[4, 8]]}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(store, checkpoint, scores) of a prefix model after three steps on disjoint rows."""
    store = Store(tmp_path_factory.mktemp("weights") / "home")
    drawn = rows.run(DisjointRowsSpec(batches=3), store)
    checkpoint = pretrain.run(PretrainSpec(architecture="jrt", model="jrt-mini", train=TrainSpec(steps=3)), store, rows=drawn)
    prompts = cloze.run(ClozeSpec(task="disjoint", **ASKED), store)
    scores = evaluate.run(EvaluateSpec(generation_tokens=1, bootstrap=100), store, checkpoint, prompts)
    return store, checkpoint, scores


@pytest.fixture
def trained(home, made):
    """The same in a home of the test's own."""
    store, checkpoint, scores = made
    shutil.copytree(store.folder, home)
    return Store(), checkpoint, scores


@torch.no_grad()
def test_out_and_back(reread, trained, tmp_path):
    store, checkpoint, scores = trained
    out, back = tmp_path / "exported", tmp_path / "back"
    told = reread("export", checkpoint[:-3], str(out), "--json")
    assert told.code == 0, told.err
    assert told.json["checkpoint"] == checkpoint and told.json["scores"] == 1
    assert {file["path"] for file in told.json["files"]} >= {
        "README.md", "config.json", "model.safetensors", "modeling_reread.py", "tokenizer.json", "generation_config.json"}
    ours = load_model(store.path(checkpoint))
    theirs = AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True)
    ids = AutoTokenizer.from_pretrained(out, trust_remote_code=True)("7 9 200 31", return_tensors="pt").input_ids
    assert ids.tolist() == [[7, 9, 200, 31]]
    assert torch.equal(theirs(ids).logits, ours(ids, Layout.dense(1, 4)))

    told = reread("import", str(out), str(back))
    assert told.code == 0 and "reread export" in told.out
    again = load_model(back)
    assert again.config == ours.config
    assert torch.equal(again(ids, Layout.dense(1, 4)), ours(ids, Layout.dense(1, 4)))
    assert load_tokenizer(back / "tokenizer").name == "ids:256"


def test_the_card_says_where_the_weights_come_from(reread, trained, tmp_path):
    store, checkpoint, scores = trained
    assert reread("export", checkpoint, str(tmp_path / "out")).code == 0
    card = (tmp_path / "out" / "README.md").read_text()
    manifest = store.manifest(checkpoint)
    [row] = [row for row in json.loads((store.path(scores) / "scores.json").read_text()) if row["control"] == "none"]
    assert row["n"] == 3
    for said in (checkpoint, f"commit `{manifest.git_commit}`", f"{manifest.counts['parameters']:,} parameters",
                 f"rows `{manifest.inputs['rows']}`: {store.manifest(manifest.inputs['rows']).counts['rows']:,} disjoint rows",
                 f"| Tokens read | {manifest.counts['tokens']:,} |", f"| Training FLOPs | {manifest.counts['training_flops']:,} |",
                 "| Steps | 3 |", "4: conv, prefix, conv, prefix", f"`{scores}`, prompts `{store.manifest(scores).inputs['prompts']}`",
                 f"| {row['task']} | 4\\|8 | small_first | left_pad | {row['keep_out']} | 3 | 3 | {row['value']:.3f} [",
                 "Licence\n\nNot stated", "Install reread first", "This is a prefix model", "prefix_length", "- base_conv\n- prefix\n"):
        assert said in card, said
    assert "\n\n\n" not in card and "None" not in card.split("## Data")[0].split("Mixers:")[0]


def test_the_card_has_what_a_sweep_chose_and_no_trial_among_its_data(tmp_path):
    from flows.commands.lineage import provenance

    store = Store(tmp_path)
    def write(summary):
        return lambda folder: (folder / "summary.json").write_text(json.dumps(summary)) and {}
    trials = {sweep.role(value): store.produce("trial", {"value": value}, {}, "code", write({})) for value in (0.005, 0.02)}
    drawn = store.produce("rows", {"kind": "recall"}, {}, "code", lambda folder: {"rows": 3, "tokens": 5})
    spec = {"train": TrainSpec(optimiser={"kind": "muon", "matrix_learning_rate": 0.01, "learning_rate": 0.003}).model_dump()}
    found = {"sweep": {"field": "optimiser.matrix_learning_rate", "chosen": 0.02, "trials": [{"value": 0.005}, {"value": 0.02}]}}
    made = store.produce("checkpoint", spec, {"rows": drawn, **trials}, "code", write(found))
    known = provenance(made, store.path(made), store.manifest(made), store, None)
    assert known.settings["learning rate of matrices"] == 0.02 and known.settings["learning rate"] == 0.003
    assert known.settings["chosen on validation rows"] == "optimiser.matrix_learning_rate 0.02 among 0.005, 0.02"
    assert [source.identifier for source in known.sources] == [drawn]


def test_a_folder_without_records_says_so(reread, trained, tmp_path):
    store, checkpoint, _ = trained
    assert reread("export", checkpoint, str(tmp_path / "one")).code == 0
    assert reread("import", str(tmp_path / "one"), str(tmp_path / "two"), "--tokenizer", "none").code == 0
    told = reread("export", str(tmp_path / "two"), str(tmp_path / "three"))
    assert told.code == 0, told.err
    card = (tmp_path / "three" / "README.md").read_text()
    assert "the commit it was trained at is unknown" in card and "No tokenizer came with these weights" in card
    assert card.count("Not recorded with these weights") == 2 and "has not been evaluated" in card
    assert not (tmp_path / "three" / "tokenizer.json").exists()


def test_mistakes(reread, trained, tmp_path):
    store, checkpoint, scores = trained
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years")
    folder = store.path(checkpoint)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text(json.dumps({"model_type": "reread"}))
    for arguments, said in (
            (("export", checkpoint, str(tmp_path / "full")), "is not empty"),
            (("export", checkpoint, str(tmp_path / "full"), "--force"), "no model folder"),
            (("export", scores, str(tmp_path / "x")), "is a scores artifact, expected a checkpoint"),
            (("export", "checkpoint-none", str(tmp_path / "x")), "no artifact checkpoint-none"),
            (("import", str(tmp_path / "full"), str(tmp_path / "x")), "config.json: cannot be read"),
            (("import", str(tmp_path / "absent")), "is no folder"),
            (("export", str(folder), str(folder), "--force"), "would replace it"),
            (("export", str(tmp_path / "theirs"), str(tmp_path / "x")), "is an export of reread"),
            (("import", str(tmp_path / "theirs"), str(tmp_path / "theirs"), "--force"), "would replace it"),
            (("import", str(tmp_path / "full"), str(tmp_path / "x"), "--preset", "jrt-tiny"), "no released Based or JRT"),
    ):
        told = reread(*arguments)
        assert told.code == 2 and said in told.err and len(told.err.strip().splitlines()) == 1, told.err
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("home", "full", "theirs")] == []
    weights = store.path(checkpoint) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\7")
    told = reread("export", checkpoint, str(tmp_path / "x"))
    assert told.code == 2 and "sha256" in told.err


@pytest.fixture
def mamba(tmp_path):
    """A folder of transformers' Mamba over 264 ids."""
    model = MambaForCausalLM(MambaConfig(vocab_size=264, hidden_size=16, num_hidden_layers=2)).eval()
    model.save_pretrained(tmp_path / "mamba")
    return model, tmp_path / "mamba"


@torch.no_grad()
def test_an_import_is_a_checkpoint_that_evaluate_takes(reread, home, mamba):
    theirs, folder = mamba
    told = reread("import", str(folder), "--tokenizer", "ids:256", "--json")
    assert told.code == 0, told.err
    checkpoint = told.json["checkpoint"]
    assert reread("import", str(folder), "--tokenizer", "ids:256", "--json").json["checkpoint"] == checkpoint
    store, ids = Store(), torch.arange(20)[None]
    torch.testing.assert_close(load_model(store.path(checkpoint))(ids, Layout.dense(1, 20)), theirs(ids).logits,
                               rtol=0, atol=5e-6)
    prompts = cloze.run(ClozeSpec(task="disjoint", **ASKED), store)
    planned = reread("evaluate", "--checkpoint", checkpoint, "--prompts", prompts, "--dry-run")
    assert planned.code == 0 and "transformers mamba" in planned.out, planned.err
    scores = evaluate.run(EvaluateSpec(generation_tokens=1, bootstrap=100), store, checkpoint, prompts)
    rows = json.loads((store.path(scores) / "scores.json").read_text())
    assert rows[0]["n"] == 3


def test_a_tokenizer_of_another_model_is_refused(reread, home, mamba, tmp_path):
    told = reread("import", str(mamba[1]), str(tmp_path / "out"), "--tokenizer", "gpt2")
    assert told.code == 2 and "50257 ids, the model 264 rows" in told.err and not (tmp_path / "out").exists()


def test_a_tokenizer_that_cannot_be_read_may_be_left_out(reread, home, mamba, tmp_path):
    (mamba[1] / "tokenizer").mkdir()                                          # some keep tokenizer.json in there
    told = reread("import", str(mamba[1]), str(tmp_path / "one"))
    assert told.code == 0 and "no tokenizer lies beside these weights" in told.err
    (mamba[1] / "tokenizer.json").write_bytes(b"\xff\xfe")
    told = reread("import", str(mamba[1]), str(tmp_path / "two"))
    assert told.code == 2 and "tokenizer.json: 'utf-8'" in told.err and "--tokenizer none" in told.err
    told = reread("import", str(mamba[1]), str(tmp_path / "two"), "--tokenizer", "none")
    assert told.code == 0 and told.err == ""


def test_notes_are_told_and_kept(reread, home, mamba, tmp_path):
    config = json.loads((mamba[1] / "config.json").read_text())
    (mamba[1] / "config.json").write_text(json.dumps(config | {"residual_in_fp32": False}))
    told = reread("import", str(mamba[1]), str(tmp_path / "out"), "--json")
    assert told.code == 0 and "residual_in_fp32" in told.json["notes"][0] and "residual_in_fp32" in told.err
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["notes"] == told.json["notes"]
