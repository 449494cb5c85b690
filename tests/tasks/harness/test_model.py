"""The model `reread` says what lm_eval's own class says of the same weights, in any batches, and counts what it cuts."""

import functools
import random

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from models import Layout, greedy, load_model
from storage.errors import ArtifactError, LengthError, SpecError, TokenizerError, UnsupportedUse
from tasks.harness import stopping
from tasks.harness.model import RereadLM
from tests.tasks.documents import splits
from tests.tasks.documents import tokenizer as trained
from tests.tasks.harness.conftest import leading_bos

TOLERANCE = 1e-4        # float32, of a sum over some dozen tokens


def requests(kind, *arguments):
    return [Instance(request_type=kind, doc={}, arguments=each, idx=0) for each in arguments]


def pairs(longest):
    """Contexts and continuations of unequal lengths: none, with blanks at the end, shared ones, long ones."""
    draw = random.Random(5)
    texts = [document.text for document in splits("test")]
    found = [("", "Return the"), ("", "axis"), ("axis : ", "int, optional"), ("axis :  ", "x"), ("shape\n", "copy")]
    for text in texts[:14]:
        start, length, more = draw.randrange(20), draw.randrange(1, longest), draw.randrange(1, 40)
        found.append((text[start:start + length] or "a", text[start + length:start + length + more] or " b"))
    shared = texts[0][:longest]
    found += [(shared, each) for each in (" int", " bool", " int, optional", " i", " int")]
    encode = trained().encode                      # theirs fails where a continuation melts into the context's last token
    return [(a, b) for a, b in found if not a or len(encode(a + b)) > len(encode(a.rstrip()))]


@functools.cache
def theirs(folder):
    return HFLM(pretrained=folder, device="cpu", dtype="float32", trust_remote_code=True, batch_size=1)


@functools.cache
def expected(name, folder, kind, longest=0):
    """What theirs says, once for all batch sizes."""
    asked = requests(kind, *(pairs(longest) if longest else rolling()))
    return asked, getattr(theirs(folder), kind)(asked, disable_tqdm=True)


def rolling():
    return [(document.text,) for document in splits("test")[:5]] + [("x",), ("",)]


def ours(checkpoint, **settings):
    return RereadLM(checkpoint, device="cpu", **{"batch_size": 1, **settings})


@functools.cache
def kept(checkpoint, rows):
    """`ours`, loaded once."""
    return ours(checkpoint, batch_size=rows)


def same(found, other):
    assert len(found) == len(other)
    for (a, best), (b, wanted) in zip(found, other):
        assert a == pytest.approx(b, abs=TOLERANCE) and best == wanted


@pytest.mark.parametrize("name, longest", [("mixed", 300), ("limited", 400), ("gpt2", 600)])
@pytest.mark.parametrize("rows", [1, 3, 8, "auto"])
def test_likelihoods_are_those_of_their_class(places, name, longest, rows):
    checkpoint, folder = places[name]
    asked, wanted = expected(name, folder, "loglikelihood", longest)
    mine = ours(checkpoint, batch_size=rows)
    same(mine.loglikelihood(asked, disable_tqdm=True), wanted)
    assert (mine.limit.cuts["loglikelihood"].cut > 0) == (name != "mixed")


def test_a_continuation_that_melts_into_the_context_is_scored_apart(places, words):
    assert len(words.encode("axi" + "s")) == len(words.encode("axis")) <= len(words.encode("axi"))
    mine = ours(places["mixed"][0])
    [(said, _), (empty, sure)] = mine.loglikelihood(requests("loglikelihood", ("axi", "s"), ("axi", "")), disable_tqdm=True)
    ids = words.encode("axi") + words.encode("s")
    with torch.no_grad():
        logits = mine.model(torch.tensor([ids]), Layout.dense(1, len(ids)))[0].log_softmax(-1)
    assert said == pytest.approx(float(logits[-2, ids[-1]]), abs=TOLERANCE) and (empty, sure) == (0.0, True)


def test_a_likeliest_continuation_is_told(places, words):
    """What the model goes on with, and the same with another token at its end."""
    mine, context = ours(places["mixed"][0]), words.encode("Return the test thing")
    [said] = greedy(mine.model, [context], maximum_new=4)
    asked = [(("", ""), context, said), (("", ""), context, [*said[:-1], (said[-1] + 1) % words.vocabulary_size])]
    found = mine._loglikelihood_tokens(asked)
    same(found, theirs(places["mixed"][1])._loglikelihood_tokens(asked, disable_tqdm=True))
    assert [best for _, best in found] == [True, False]


@pytest.mark.parametrize("name", ["mixed", "limited", "gpt2"])
def test_rolling_likelihoods_are_those_of_their_class(places, name):
    checkpoint, folder = places[name]
    asked, wanted = expected(name, folder, "loglikelihood_rolling")
    for rows in (1, 3, 8):
        found = kept(checkpoint, rows).loglikelihood_rolling(asked, disable_tqdm=True)
        assert found == pytest.approx(wanted, abs=1e-3)
    assert found[-1] == 0 and len(set(found)) == len(found)


@pytest.mark.parametrize("name", ["mixed", "gpt2"])
@pytest.mark.parametrize("until", [["\n"], ["ar", "in"], "e", ["of the", "int, op"], []])
def test_answers_are_those_of_their_class(places, name, until):
    checkpoint, folder = places[name]
    asked = requests("generate_until", *((document.text[:30 + 17 * k], {"until": until, "max_gen_toks": 12})
                                         for k, document in enumerate(splits("test")[:6])))
    wanted = theirs(folder).generate_until(asked, disable_tqdm=True)
    assert len(set(wanted)) > 3
    for rows in (1, 3, 8):
        assert kept(checkpoint, rows).generate_until(asked, disable_tqdm=True) == wanted


def test_a_tokenizer_that_begins_every_text_is_followed(places, tmp_path):
    """As Llama's: the token stands before contexts, before texts of rolling requests, and once."""
    import shutil

    shutil.copytree(places["gpt2"][1], tmp_path / "model")
    leading_bos(tmp_path / "model")
    mine, other = ours(f"hf:{tmp_path / 'model'}"), theirs(str(tmp_path / "model"))
    end = other.tokenizer.eos_token
    assert mine.tok_encode("axis") == other.tok_encode("axis") and mine.tok_encode("axis")[0] == other.eot_token_id
    assert mine.tok_encode(f"{end}axis") == mine.tok_encode("axis")
    asked = requests("loglikelihood", *pairs(120), (f"{end}axis", " :"))
    same(mine.loglikelihood(asked, disable_tqdm=True), other.loglikelihood(asked, disable_tqdm=True))
    asked = requests("generate_until", ("axis :", {"until": ["\n"], "max_gen_toks": 6}))
    assert mine.generate_until(asked) == other.generate_until(asked, disable_tqdm=True)
    bare = ours(places["gpt2"][0], add_bos_token=True)
    assert bare.tok_encode("axis") == mine.tok_encode("axis")
    assert ours(f"hf:{tmp_path / 'model'}", add_bos_token=False).tok_encode("axis") == mine.tok_encode("axis")[1:]


# -------------------------------------------------------------------------------------------------------- prefixes
def test_without_a_prefix_a_prefix_model_is_scored_as_its_export(places):
    checkpoint, folder = places["prefix"]
    asked = requests("loglikelihood", *pairs(200))
    same(ours(checkpoint, prefix_tokens=0, batch_size=3).loglikelihood(asked, disable_tqdm=True),
         theirs(folder).loglikelihood(asked, disable_tqdm=True))


@pytest.mark.parametrize("settings, prefix", [
    ({}, lambda n: n - 1), ({"keep_out": "none"}, lambda n: n), ({"prefix_tokens": 5}, lambda n: min(5, n - 1))])
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_the_prefix_is_the_context_and_never_the_continuation(places, words, settings, prefix, rows):
    checkpoint, _ = places["prefix"]
    asked = [(context, text) for context, text in pairs(150) if context.strip() == context and context]
    mine = ours(checkpoint, batch_size=rows, **settings)
    found = mine.loglikelihood(requests("loglikelihood", *asked), disable_tqdm=True)
    model = load_model(checkpoint)
    for (context, continuation), (said, _) in zip(asked, found):
        n = len(words.encode(context))
        ids = words.encode(context) + words.encode(context + continuation)[n:]
        with torch.no_grad():
            logits = model(torch.tensor([ids]), Layout.dense(1, len(ids)).with_prefix(prefix(n)))[0].log_softmax(-1)
        assert said == pytest.approx(sum(float(logits[k - 1, ids[k]]) for k in range(n, len(ids))), abs=TOLERANCE)


def test_an_answer_of_a_prefix_model_reads_its_prompt_both_ways(places, words):
    mine, causal = (ours(places["prefix"][0], prefix_tokens=M) for M in (None, 0))
    asked = requests("generate_until", *((document.text[:60], {"until": [], "max_gen_toks": 6})
                                         for document in splits("test")[:6]))
    model = load_model(places["prefix"][0])
    for request, text in zip(asked, mine.generate_until(asked)):
        prompt = words.encode(request.args[0])
        ids = list(prompt)
        for _ in range(6):
            with torch.no_grad():
                layout = Layout.dense(1, len(ids)).with_prefix(len(prompt) - 1)
                ids.append(int(model(torch.tensor([ids]), layout)[0, -1].argmax()))
            if ids[-1] == words.end_of_text:
                break
        assert text == words.decode(ids[len(prompt):])
    assert causal.generate_until(asked) != mine.generate_until(asked)


# ------------------------------------------------------------------------------------------------------- what is cut
def test_what_does_not_fit_is_cut_on_the_named_side_and_counted(places, words):
    text, settings = splits("test")[0].text, {"until": [], "max_gen_toks": 8}
    ids = words.encode(text)
    assert len(ids) > 48
    whole, part = requests("generate_until", (text, settings)), requests("generate_until", ("Return", settings))
    for side, left in (("left", ids[-40:]), ("right", ids[:40])):
        mine = ours(places["limited"][0], truncate=side)
        found = mine.generate_until(whole + part)
        plain = ours(places["limited"][0])
        assert found == [plain.generate_until(requests("generate_until", (words.decode(left), settings)))[0],
                         plain.generate_until(part)[0]]
        cuts = mine.get_model_info()["cut"]["generate_until"]
        assert cuts == {"requests": 2, "cut": 1, "tokens": len(ids) - 40}
        assert plain.limit.cuts["generate_until"].cut == 0
        scored = mine.loglikelihood(requests("loglikelihood", (text, " int")), disable_tqdm=True)
        more = len(words.encode(text + " int")) - len(ids)
        room = 48 - (more - 1)
        head = words.decode(ids[-room:] if side == "left" else ids[:room])
        same(scored, plain.loglikelihood(requests("loglikelihood", (head, " int")), disable_tqdm=True))
    refused = ours(places["limited"][0], truncate="error")
    for call, asked in ((refused.generate_until, whole),
                        (refused.loglikelihood, requests("loglikelihood", (text, " int")))):
        with pytest.raises(LengthError, match="raise max_length"):
            call(asked)


def test_cuts_are_told_once_a_call(places, told):
    mine = ours(places["limited"][0])
    mine.loglikelihood(requests("loglikelihood", *((each.text, " a") for each in splits("test")[:5])), disable_tqdm=True)
    assert sum("5 of 5 contexts were cut on the left" in message for message in told) == 1


@pytest.mark.parametrize("until", [("Q:", "\n"), ("\n", "Q:"), ("", "\n")])
def test_the_stop_string_that_comes_first_ends_an_answer_in_whatever_order_they_are_named(until):
    assert stopping.cut_text("42 g\nof Q: what\n", until) == "42 g"
    assert stopping.cut_text("42 g", until) == "42 g" and stopping.cut_text("\n42", until) == ""


@pytest.mark.parametrize("settings, error, words_of_it", [
    ({"max_length": 100}, SpecError, "expected 2 to 48 tokens"), ({"truncate": "middle"}, SpecError, "truncate"),
    ({"batch_size": "many"}, SpecError, "batch_size"), ({"keep_out": "question"}, SpecError, "keep_out"),
    ({"dtype": "int8"}, SpecError, "dtype"), ({"pretrained": "x"}, SpecError, "does not know pretrained"),
])
def test_mistakes_in_the_arguments(places, settings, error, words_of_it):
    with pytest.raises(error, match=words_of_it):
        ours(places["limited"][0], **settings)


def test_mistakes_in_what_is_asked(places, home, tmp_path):
    mine = ours(places["limited"][0])
    for given, error in (({"do_sample": True}, UnsupportedUse), ({"temperature": 0.7}, UnsupportedUse),
                         ({"num_beams": 4}, UnsupportedUse), ({"max_gen_toks": 48}, LengthError)):
        with pytest.raises(error, match="generate_until"):
            mine.generate_until(requests("generate_until", ("axis", {"until": ["\n"], **given})))
    with pytest.raises(LengthError, match="no room"):
        mine.loglikelihood(requests("loglikelihood", ("a", "axis " * 60)), disable_tqdm=True)
    with pytest.raises(UnsupportedUse, match="chat template"):
        mine.apply_chat_template([])
    with pytest.raises(ArtifactError, match="no checkpoint artifact checkpoint-none"):
        ours("checkpoint-none")
    (tmp_path / "bare").mkdir()
    with pytest.raises(TokenizerError, match="no tokenizer"):
        ours(str(tmp_path / "bare"))
