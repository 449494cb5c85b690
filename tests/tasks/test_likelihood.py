"""The log-likelihood of an answer: equal to a loop over whole texts, whatever shares the batch."""

import json
import math

import pytest
import torch

from models import LanguageModel, Layout, ModelConfig
from models.adapters.huggingface import HuggingFaceModel
from models.initialise import seeded
from storage.artifacts import Store
from storage.errors import SpecError
from storage.shards import RowTable
from tasks import cloze, evaluate, likelihood
from tasks.likelihood import Pair, pairs, sum_nats
from tasks.predictions import Prompt, key_of
from tasks.specs import ClozeSpec, EvaluateSpec
from tasks.tokenizers import load_tokenizer
from tests.models.adapters.families import VOCABULARY, build
from tests.tasks.test_evaluate import MIXERS, checkpoint

M = 20
LENGTHS = (3, 30, 17, 1, 21, 8, 33, 5, 19)


def model_of(plan=tuple(MIXERS)) -> LanguageModel:
    return LanguageModel(ModelConfig(width=16, vocabulary=64, init_std=0.5, plan=plan, prefix_tokens=M,
                                     mixers={name: MIXERS[name] for name in plan})).double()


def asked_of(vocabulary=64, keep_out=2, lengths=LENGTHS) -> list[Pair]:
    found = []
    for k, n in enumerate(lengths):
        ids = torch.randint(0, vocabulary, (n + 1 + k % 4,), generator=seeded("pair", k)).tolist()
        found.append(Pair(f"k{k}", Prompt(f"p{k}", tuple(ids[:n]), min(keep_out, n), 0, min(2, n)), tuple(ids[n:])))
    return found


def slow(model, pair: Pair, strategy: str, limit, pad=5) -> float:
    """One whole pass for each token of the answer."""
    ids, total = list(pair.prompt.ids), 0.0
    if strategy == "reread":
        head, tail = ids[:len(ids) - pair.prompt.tail], ids[len(ids) - pair.prompt.tail:]
        ids = head + head + tail
    muted = max(0, M - len(ids)) if strategy == "left_pad_released" else 0
    ids = [pad] * muted + ids
    fixed = max(0, len(ids) - pair.prompt.keep_out)
    for token in pair.answer:
        m = max(0, len(ids) - pair.prompt.keep_out) if strategy == "iterate" else fixed
        layout = Layout.dense(1, len(ids)).with_prefix(m if limit is None else min(m, limit))
        if muted:
            layout = layout.with_muted(torch.arange(len(ids))[None] < muted)
        with torch.no_grad():
            logits = model(torch.tensor([ids]), layout)[0, -1]
        total += float(logits.log_softmax(-1)[token])
        ids.append(token)
    return total


@pytest.mark.parametrize("strategy", ["left_pad", "reread", "iterate", "left_pad_released"])
def test_equals_a_pass_for_each_token_in_any_batch_and_order(strategy, monkeypatch):
    model, asked = model_of(), asked_of()
    monkeypatch.setattr(likelihood, "pad_of", lambda *given: 5)
    expected = [slow(model, pair, strategy, M) for pair in asked]
    for rows in (1, 3, 8):
        spec = EvaluateSpec(strategy=strategy, batch_rows=rows)
        assert sum_nats(asked, model, None, spec) == pytest.approx(expected, abs=1e-9)
    assert sum_nats(asked[::-1], model, None, spec) == pytest.approx(expected[::-1], abs=1e-9)
    assert len(set(map(round, expected))) > 3


def test_the_prefix_is_that_of_the_prompt_and_never_holds_the_answer():
    """With the answer inside the prefix its tokens would be read both ways: another, better figure."""
    model, asked = model_of(), asked_of(keep_out=0)
    found = sum_nats(asked, model, None, EvaluateSpec(prefix_tokens=200, batch_rows=4))
    assert found == pytest.approx([slow(model, pair, "left_pad", 200) for pair in asked], abs=1e-9)
    for pair, right in list(zip(asked, found))[1::4]:
        ids, n = [*pair.prompt.ids, *pair.answer], len(pair.prompt.ids)
        with torch.no_grad():
            logits = model(torch.tensor([ids[:-1]]), Layout.dense(1, len(ids) - 1).with_prefix(len(ids) - 1))[0].log_softmax(-1)
        cheating = sum(float(logits[n - 1 + k, token]) for k, token in enumerate(pair.answer))
        assert (len(pair.answer) == 1) == (abs(cheating - right) < 1e-9)


@pytest.mark.parametrize("family", ["gpt2", "llama", "mamba", "rwkv"])
def test_models_of_transformers_in_any_batch(family, monkeypatch):
    model = HuggingFaceModel(build(family).double())
    asked = asked_of(VOCABULARY)
    expected = []
    for pair in asked:
        with torch.no_grad():
            logits = model.model(input_ids=torch.tensor([[*pair.prompt.ids, *pair.answer]]), use_cache=False).logits[0]
        n = len(pair.prompt.ids)
        expected.append(sum(float(logits[n - 1 + k].double().log_softmax(-1)[token])
                            for k, token in enumerate(pair.answer)))
    close = 1e-9 if logits.dtype == torch.float64 else 1e-5        # Mamba and RWKV compute parts in float32 always
    for rows in (1, 3, 8):
        assert sum_nats(asked, model, None, EvaluateSpec(batch_rows=rows)) == pytest.approx(expected, abs=close)
    sizes, real = [], model.hidden
    monkeypatch.setattr(likelihood, "CELLS", 40 * VOCABULARY)
    monkeypatch.setattr(model, "hidden", lambda ids, layout: sizes.append(ids.numel()) or real(ids, layout))
    assert sum_nats(asked, model, None, EvaluateSpec(batch_rows=8)) == pytest.approx(expected, abs=close)
    assert max(sizes) <= 40 and len(sizes) < len(asked)


def test_what_cannot_be_scored_is_counted_with_its_reason():
    tokenizer = load_tokenizer("gpt2")
    texts = ["The dtype is", "The dtype of", "x"]
    prompts = {key_of(text): Prompt(key_of(text), (tokenizer.end_of_text, *tokenizer.encode(text)), 0, 1) for text in texts}
    changed = key_of(texts[1])          # as a tokenizer would that joins the blank with what follows
    prompts[changed] = Prompt(changed, (tokenizer.end_of_text, *tokenizer.encode("The dog")), 0, 1)
    keyed = [(key_of(text), text, answers) for text, answers in zip(
        [texts[0], texts[0], texts[1], texts[2], texts[2], texts[0]],
        [["int", "integer"], ["float"], ["int"], [], [" "], ["int"]])]
    found, names, missing = pairs(prompts, keyed, tokenizer)
    assert [pair.answer for pair in found] == [tuple(tokenizer.encode(" int")), tuple(tokenizer.encode(" float"))]
    assert names == [found[0].key, found[1].key, None, None, None, found[0].key]
    assert missing == {"tokens_change_at_answer": 1, "no_answer": 2}


def test_an_evaluation_keeps_likelihoods_and_sums_them_up(tmp_path):
    store = Store(tmp_path)
    prompts = cloze.run(ClozeSpec(task="disjoint", task_options={"vocabulary": 64, "sizes": [[2, 4]]}, limit=6), store)
    model = checkpoint(store, load_tokenizer("ids:64"), plan=("conv", "prefix"))
    made = evaluate.run(EvaluateSpec(bootstrap=100, likelihood=True, dtype="float64"), store, model, prompts)
    rows = RowTable(store.path(made) / "predictions.arrow").table.to_pylist()
    assert all(row["loglikelihood"] < 0 and row["answer_tokens"] == 1 for row in rows)
    # the answer that is said is the likeliest of all single tokens
    assert all(row["loglikelihood"] >= -math.log(64 + 8) for row in rows if row["ids"] and row["correct"])
    for score in json.loads((store.path(made) / "scores.json").read_text()):
        mine = [row["loglikelihood"] for row in rows if all(row[name] == score[name] for name in ("column", "order",
                                                                                                  "control"))]
        assert score["likelihood"]["value"] == pytest.approx(sum(mine) / len(mine)) == score["likelihood"]["per_token"]
        assert score["likelihood"]["low"] <= score["likelihood"]["value"] and score["likelihood"]["n"] == len(mine)
    assert store.manifest(made).counts["without_likelihood"] == {}
    small = checkpoint(store, load_tokenizer("ids:64"), plan=("full",), positions="learned", max_length=4)
    with pytest.raises(SpecError, match="can place 4"):
        evaluate.run(EvaluateSpec(bootstrap=100, likelihood=True), store, small, prompts)
