"""A time stands only beside the texts of lm_eval at its default; both engines read the same tokens."""

import json

import pytest
import torch

from storage.artifacts import Store
from storage.errors import SpecError
from tasks import cloze
from tasks.harness import throughput
from tasks.specs import ClozeSpec
from tests.tasks.documents import artifacts


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(home, prompts, model): a tiny random GPT-2 with GPT-2's tokenizer and prompts of a few documents."""
    root = tmp_path_factory.mktemp("throughput")
    store = Store(root / "home")
    corpus, _ = artifacts(store)
    spec = ClozeSpec(task="pydocs", limit=4, orders=("default",), generation_tokens=6, tokenizer="gpt2",
                     task_options={"columns": ["natural"]})
    prompts = cloze.run(spec, store, corpus=corpus)
    return root, prompts, throughput.model_folder(root / "model", layers=1, width=16, heads=2, positions=256)


def test_both_engines_say_the_same_and_are_timed(world, monkeypatch, capsys, tmp_path):
    root, prompts, model = world
    monkeypatch.setenv("REREAD_HOME", str(root / "home"))
    out = tmp_path / "rows.json"
    assert throughput.main(["--prompts", prompts, "--checkpoint", model, "--out", str(out), "--sizes", "1,3"]) == 0
    rows = json.loads(out.read_text())
    assert list(rows) == ["lm_eval 1", "lm_eval 3", "reread 32"]
    assert len(rows["lm_eval 1"]["texts"]) == 4 and len(set(rows["lm_eval 1"]["texts"])) > 1
    shown = throughput.compare(rows)
    assert all(row["differ"] == 0 and row["seconds"] > 0 for row in shown) and shown[0]["ratio"] == 1
    assert "times as fast as lm_eval at its default batch size" in capsys.readouterr().out
    before = rows["reread 32"]["seconds"]
    throughput.main(["--prompts", prompts, "--checkpoint", model, "--out", str(out), "--sizes", "1,3", "--engine", "reread"])
    assert json.loads(out.read_text())["reread 32"]["seconds"] == before
    throughput.main(["--prompts", prompts, "--checkpoint", model, "--out", str(out), "--engine", "reread", "--again"])
    assert json.loads(out.read_text())["reread 32"]["seconds"] != before
    with pytest.raises(SpecError, match="no prompts in the order 'twice'"):
        throughput.main(["--prompts", prompts, "--checkpoint", model, "--out", str(out), "--order", "twice"])


def row(seconds, *texts):
    return {"texts": list(texts), "seconds": seconds, "wall_seconds": seconds * 2}


def test_other_texts_have_no_time():
    rows = {"lm_eval 1": row(6.0, "a", "b"), "lm_eval 2": row(1.0, "a", "c"), "lm_eval 4": row(3.0, "a", "b"),
            "reread 32": row(1.5, "a", "b"), "reread 64": row(0.1, "x", "y")}
    shown = {each["engine"]: each for each in throughput.compare(rows)}
    assert shown["lm_eval 2"]["differ"] == 1 and shown["reread 64"]["differ"] == 2
    assert shown["lm_eval 2"]["seconds"] is shown["reread 64"]["ratio"] is shown["reread 64"]["wall_seconds"] is None
    assert shown["reread 32"]["ratio"] == 4.0
    said = throughput.told(list(shown.values()))
    assert "4.00 times as fast as lm_eval at its default batch size, 2.00 times as fast as at its best (4)" in said
    assert "| lm_eval 2 | 2 | 1 | – | – | – |" in said
    with pytest.raises(SpecError, match="default batch size"):
        throughput.compare({"reread 32": row(1.0, "a")})


def test_a_byte_model_has_one_tokenizer_in_both_forms(shared, tmp_path):
    from transformers import AutoTokenizer

    from tasks.external import tokenizer_of

    folder = shared / "data" / "checkpoints" / "tiny-rwkv4-660K-bytes-hf"
    if not folder.is_dir():
        pytest.skip(f"no checkpoint in {folder}")
    model = throughput.model_folder(tmp_path / "model", folder)
    ours, theirs = tokenizer_of(model), AutoTokenizer.from_pretrained(str(tmp_path / "model"))
    text = "Größe : 12 µm\n\tthe  end"
    assert ours.encode(text) == theirs.encode(text) == list(text.encode())
    assert ours.end_of_text == theirs.eos_token_id == 0 and theirs.decode(list(text.encode())) == text


def test_it_leaves_the_threads_as_they_were(world, tmp_path):
    root, prompts, model = world
    asked = throughput.requests(Store(root / "home"), prompts, "default", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        throughput.measure(asked, [("reread", "2")], model, tmp_path / "rows.json")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
