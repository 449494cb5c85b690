"""A model of transformers is evaluated as a checkpoint is, and its identity is what it is."""

import json
import shutil

import pytest

from storage.artifacts import Store
from storage.errors import ConfigError, SpecError, TokenizerError
from storage.shards import RowTable
from tasks import cloze, evaluate, external, loading
from tasks.specs import ClozeSpec, EvaluateSpec
from tasks.tokenizers import load_tokenizer


def gpt2_folder(path, seed=0, vocabulary=256):
    """A tiny random GPT-2 over bytes, saved as transformers saves it, with a tokenizer of ours."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, n_positions=512, n_embd=16, n_layer=1, n_head=2,
                               bos_token_id=0, eos_token_id=0, initializer_range=0.3)).save_pretrained(path)
    load_tokenizer("bytes").save(path)
    return f"hf:{path}"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(store, prompts, model): prompts of documents in bytes."""
    from tests.tasks.documents import artifacts

    store = Store(tmp_path_factory.mktemp("external") / "home")
    corpus, _ = artifacts(store)
    shards = store.produce("shards", {"of": "bytes"}, {}, "0",
                           lambda folder: load_tokenizer("bytes").save(folder / "tokenizer"))
    asked = ClozeSpec(task="pydocs", limit=2, document_tokens=120, orders=("default", "twice"), generation_tokens=4,
                      task_options={"columns": ["natural"]})
    prompts = cloze.run(asked, store, corpus=corpus, shards=shards)
    return store, prompts, gpt2_folder(tmp_path_factory.mktemp("gpt2") / "model")


def spec(**settings):
    return EvaluateSpec(**{"generation_tokens": 4, "bootstrap": 100, **settings})


def test_answers_are_those_of_transformers(world):
    """The tokens that a loop over transformers' own whole pass picks, whatever shared the batch."""
    import torch
    from transformers import AutoModelForCausalLM

    store, prompts, model = world
    scores = evaluate.run(spec(), store, model, prompts)
    table = RowTable(store.path(scores) / "predictions.arrow").table.to_pylist()
    own = AutoModelForCausalLM.from_pretrained(model.removeprefix("hf:")).eval()
    asked = RowTable(store.path(prompts) / "prompts.arrow").table.to_pylist()
    assert table and len(table) == len(asked)
    for row, prompt in zip(table, asked):
        tokens, expected = [0, *prompt["prompt"].encode()], []         # 0: the model's own end of text
        for _ in range(4):
            with torch.no_grad():
                best = int(own(torch.tensor([tokens])).logits[0, -1].argmax())
            if best == ord("\n"):
                break
            expected.append(best)
            tokens.append(best)
        assert row["ids"] == expected
    assert store.manifest(scores).counts["source"] == model
    assert evaluate.run(spec(batch_rows=1), store, model, prompts) != scores


def test_it_is_planned_where_a_checkpoint_is(world):
    from flows.forms.requests import EvaluateRequest

    store, prompts, model = world
    planned = EvaluateRequest(checkpoint=model, prompts=prompts, generation_tokens=4, bootstrap=100).plan(store)
    assert planned.goal.artifact == evaluate.plan(spec(), store, model, prompts)
    assert planned.goal.inputs["checkpoint"] == model and planned.goal.tags["architecture"] == "model"
    with pytest.raises(ConfigError, match="no such folder"):
        EvaluateRequest(checkpoint=f"{model}-not", prompts=prompts).plan(store)


def test_identity_is_the_content_not_the_place(world, tmp_path):
    store, prompts, model = world
    folder = tmp_path / "elsewhere"
    shutil.copytree(model.removeprefix("hf:"), folder)
    planned = evaluate.plan(spec(), store, model, prompts)
    assert evaluate.plan(spec(), store, f"hf:{folder}", prompts) == planned
    assert evaluate.run(spec(), store, model, prompts) == planned
    assert store.manifest(planned).inputs["checkpoint"] == external.identity(model)
    raw = bytearray((folder / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (folder / "model.safetensors").write_bytes(raw)
    assert evaluate.plan(spec(), store, f"hf:{folder}", prompts) != planned
    config = json.loads((folder / "config.json").read_text())
    other = gpt2_folder(tmp_path / "other", seed=1)
    assert external.identity(other) != external.identity(model)
    (folder / "config.json").write_text(json.dumps(config | {"layer_norm_epsilon": 1e-3}))
    assert external.identity(f"hf:{folder}") not in (external.identity(model), external.identity(other))


def test_the_adapter_is_part_of_the_identity_of_its_scores_alone(world):
    """Scores of our own checkpoints do not go stale when the adapter is edited."""
    from storage.identity import reached

    own = reached(["tasks.evaluate", "models.checkpoint", "models.generate"])
    assert not any(name.startswith(("models.adapters", "tasks.external")) for name in own)
    assert any(name.startswith("models.adapters.hf_check")
               for name in reached(["tasks.evaluate", "models.generate", "tasks.external"]))


def test_mistakes_are_named(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        external.identity(f"hf:{tmp_path / 'nothing'}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no config\.json"):
        external.identity(f"hf:{tmp_path / 'empty'}")
    with pytest.raises(ConfigError, match="hub cannot be reached"):
        external.identity("hf:nobody/there-is-no-such-model")
    folder = gpt2_folder(tmp_path / "mute").removeprefix("hf:")
    (tmp_path / "mute" / "reread.json").unlink()
    with pytest.raises(TokenizerError, match=r"has no tokenizer\.json"):
        external.tokenizer_of(f"hf:{folder}")


def test_the_tokenizer_is_of_the_commit_that_was_named(tmp_path, monkeypatch):
    """Two commits of one hub repository in the cache, whose tokenizers differ: no network is asked."""
    import huggingface_hub.constants as hub
    import transformers.utils.hub as cached

    from tasks.tokenizers import train_bpe

    texts, commits = ("aaaa bbbb " * 20, "abab cdcd " * 20), ("1" * 40, "2" * 40)
    for text, commit in zip(texts, commits):
        folder = tmp_path / "models--owner--model" / "snapshots" / commit
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
        train_bpe([text], 264).save(folder)
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    for module, name in ((hub, "HF_HUB_CACHE"), (cached, "HF_HUB_CACHE")):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, str(tmp_path))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    first, second = (external.tokenizer_of(f"hf:owner/model@{commit}") for commit in commits)
    assert first.name == second.name == "hf:owner/model"
    ids = [each.encode_batch(["aaaa abab"])[0] for each in (first, second)]
    assert ids[0] != ids[1] and [each.decode(found) for each, found in zip((first, second), ids)] == ["aaaa abab"] * 2
    with pytest.raises(TokenizerError, match="its tokenizer at 333333333333 cannot be loaded"):
        external.tokenizer_of(f"hf:owner/model@{'3' * 40}")


def test_names_of_places(tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    assert external.place(f"hf:owner/model@{commit}") == (None, "owner/model", commit)
    assert external.identity(f"hf:owner/model@{commit}") == f"hf:owner/model@{commit}"
    assert external.label("hf:owner/model@main") == "model"
    folder = gpt2_folder(tmp_path / "here")
    assert external.label(folder) == "here"
    assert external.is_external(folder) and not external.is_external("checkpoint-0123456789abcdef")


def test_a_model_without_a_tokenizer_takes_the_one_that_is_named(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(vocab_size=256, n_embd=8, n_layer=1, n_head=1, n_positions=32, bos_token_id=0,
                               eos_token_id=0)).save_pretrained(tmp_path / "model")
    with pytest.raises(TokenizerError, match="tokenizer=bytes"):
        external.tokenizer_of(f"hf:{tmp_path / 'model'}")
    named = external.tokenizer_of(f"hf:{tmp_path / 'model'}", "bytes")
    assert named.encode("ab") == [97, 98] and named.end_of_text == 0
    with pytest.raises(SpecError, match="brings its own"):
        loading.tokenizer_of("checkpoint-0123456789abcdef", Store(tmp_path / "home"), "bytes")
