"""`reread ask`: the answer is the evaluation's own, as it comes; what cannot be asked is said before a model is loaded."""

import io
import json
import sys

import pytest

from flows.commands import ask as command
from models import Layout, ModelConfig, build, load_model, save_model
from storage.artifacts import Store
from storage.errors import SpecError
from tasks import asking, prompts
from tasks.predictions import generate
from tasks.specs import EvaluateSpec
from tasks.tokenizers import load_tokenizer

LIMIT = 200
DOCUMENT = "Return the first thing.\n\naxis : int, optional\n    The axis of it.\ndtype : float or None\n    Its kind.\n"
LONG = "\n".join(f"name{k} : value of {k}" for k in range(40))
MIXERS = {"prefix": {"kind": "prefix", "heads": 2, "feature_dim": 4}, "full": {"kind": "attention", "heads": 2}}


def model_of(seed=0, **changes):
    tokenizer = load_tokenizer("bytes")
    return build(ModelConfig.model_validate({
        "width": 16, "vocabulary": tokenizer.vocabulary_size, "mixers": MIXERS, "plan": ["prefix", "full"], "seed": seed,
        "init_std": 0.5, "tie": False, "positions": "learned", "max_length": LIMIT} | changes))


@pytest.fixture
def folder(tmp_path):
    """A model that reads prefixes, saved with its tokenizer."""
    save_model(model_of(), tmp_path / "model")
    load_tokenizer("bytes").save(tmp_path / "model" / "tokenizer")
    return tmp_path / "model"


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text(DOCUMENT, encoding="utf-8")
    return path


def asked(reread, *arguments):
    answer = reread("ask", *map(str, arguments))
    assert answer.code == 0, answer.err
    return answer


# ------------------------------------------------------------------------------------------------------- the prompt
@pytest.mark.parametrize("order", asking.ORDERS)
def test_the_prompt_is_that_of_the_cloze_stage(order):
    tokenizer = load_tokenizer("bytes")
    question = asking.write(DOCUMENT, "dtype :", "dtype :", order, tokenizer, None, 8)
    assert question.text == prompts.compose(order, DOCUMENT.strip(), "dtype :", "dtype :").text
    assert question.prompt.ids == (tokenizer.end_of_text, *question.text.encode())
    assert question.prompt.keep_out == len("dtype :") and not question.truncated
    assert question.document_tokens == question.shown_tokens == len(DOCUMENT.strip())


def test_question_and_line_to_complete_may_differ():
    question = asking.write(DOCUMENT, "Which kind?", "dtype :", "question_first", load_tokenizer("bytes"), None, 8)
    assert question.text == f"Which kind?\n{DOCUMENT.strip()}\n\ndtype :"


@pytest.mark.parametrize("order", asking.ORDERS)
@pytest.mark.parametrize("limit", [80, 133, LIMIT])
def test_prompt_and_answer_never_exceed_the_limit_and_the_question_survives(order, limit):
    question = asking.write(LONG, "name3 :", "name3 :", order, load_tokenizer("bytes"), limit, 10)
    assert len(question.prompt.ids) + 10 <= limit
    assert question.truncated and question.text.endswith("\n\nname3 :")
    copies = prompts.PARTS[order].count("D")
    shown = LONG.encode()[:question.shown_tokens].decode()
    assert LONG.startswith(shown + "\n") and question.text.count(shown) >= copies          # full lines, in every place
    more = LONG[:LONG.index("\n", len(shown) + 1)]
    assert 1 + len(prompts.compose(order, more, "name3 :", "name3 :").text) + 10 > limit   # not a line less


def test_every_limit_is_kept_to_the_token():
    tokenizer, fullest = load_tokenizer("bytes"), 0
    for limit in range(100, 150):
        question = asking.write(LONG, "name3 :", "name3 :", "default", tokenizer, limit, 10)
        assert len(question.prompt.ids) + 10 <= limit
        fullest += len(question.prompt.ids) + 10 == limit
    assert fullest >= 2                                        # some cuts leave no room at all


def test_one_long_line_is_cut_at_a_blank():
    words = " ".join(f"word{k}" for k in range(100))
    question = asking.write(words, "word5", "word5", "default", load_tokenizer("bytes"), 100, 10)
    shown = words[:question.shown_tokens]
    assert words.startswith(shown + " ") and 40 < len(shown) and len(question.prompt.ids) <= 90
    asking.write("x" * 1000, "word5", "word5", "default", load_tokenizer("bytes"), 100, 10)      # no blank at all


def test_a_question_that_leaves_no_room_is_refused():
    with pytest.raises(SpecError, match="leave no room"):
        asking.write(DOCUMENT, "q" * 70, "q" * 70, "default", load_tokenizer("bytes"), 80, 10)


# ------------------------------------------------------------------------------------------------------- the answer
@pytest.mark.parametrize("strategy", ["left_pad", "left_pad_released", "iterate"])
def test_the_answer_is_that_of_an_evaluation(reread, folder, text, strategy):
    tokenizer, model = load_tokenizer("bytes"), load_model(folder)
    extra = {} if strategy != "left_pad_released" else {"prefix_tokens": 32}
    spec = EvaluateSpec(strategy=strategy, **extra)
    question = asking.write(DOCUMENT, "dtype :", "dtype :", "twice", tokenizer, LIMIT, 12)
    stops = frozenset({*tokenizer.newline_ids, tokenizer.end_of_text})
    expected = generate(question.prompt, model, tokenizer, spec, 12, stops.__contains__)
    pieces = []
    reply = asking.ask(question, model, tokenizer, spec, 12, pieces.append)
    assert list(reply.ids) == expected and "".join(pieces).split("\n")[0] == reply.text == tokenizer.decode(expected)
    if strategy != "left_pad_released":
        found = asked(reread, folder, "--document", text, "--question", "dtype :", "--order", "twice", "--max-tokens", 12,
                      "--strategy", strategy, "--json").json
        assert found["answer"] == reply.text.strip() and found["generated_tokens"] == len(expected)


def test_json_is_one_document_and_its_figures_are_measured(reread, folder, text):
    answer = asked(reread, folder, "--document", text, "--question", "dtype :", "--max-tokens", 5, "--json")
    found = answer.json
    assert set(found) == {"answer", "checkpoint", "order", "strategy", "prompt_tokens", "generated_tokens",
                          "document_tokens", "shown_tokens", "truncated", "state_bytes", "seconds", "tokens_per_second"}
    assert found["prompt_tokens"] == 1 + len(DOCUMENT.strip()) + len("\n\ndtype :")
    assert found["order"] == "default" and found["truncated"] is False and found["checkpoint"] == "model"
    model = load_model(folder)
    assert found["state_bytes"] == model.cost(found["prompt_tokens"]).state_bytes
    assert set(found["seconds"]) == {"load", "prefill", "decode"} and found["seconds"]["prefill"] > 0
    assert found["tokens_per_second"]["prefill"] > 0


class Letters:
    """Says given bytes, one after another, whatever it is asked."""

    def __init__(self, said):
        self.said = list(said)

    def __call__(self, question, model, tokenizer, spec, maximum_new, stop):
        ids = []
        for token in self.said:
            if stop(token):
                break
            ids.append(token)
        return ids


def test_no_half_character_is_ever_written(monkeypatch):
    tokenizer = load_tokenizer("bytes")
    monkeypatch.setattr(asking, "generate", Letters("naïve — 東京 🙂".encode() + b"\n"))
    pieces = []
    question = asking.write(DOCUMENT, "q", "q", "default", tokenizer, None, 40)
    reply = asking.ask(question, None, tokenizer, EvaluateSpec(), 40, pieces.append)
    assert "".join(pieces) == reply.text == "naïve — 東京 🙂"
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces) and "東" in pieces
    monkeypatch.setattr(asking, "generate", Letters("東".encode()[:2] + b"\n"))
    pieces = []
    asking.ask(question, None, tokenizer, EvaluateSpec(), 40, pieces.append)
    assert "".join(pieces) == "\N{REPLACEMENT CHARACTER}"               # the model itself broke off


def test_the_answer_comes_token_by_token(reread, folder, text, monkeypatch):
    """What was written before a later token is chosen is on stdout by then."""
    seen = []

    class Spy(Letters):
        def __call__(self, *given):
            stop = given[-1]
            return super().__call__(*given[:-1], lambda token: (stop(token), seen.append(sys.stdout.getvalue()))[0])

    monkeypatch.setattr(asking, "generate", Spy(b" abc\n"))
    answer = asked(reread, folder, "--document", text, "--question", "dtype :")
    assert seen == ["", "a", "ab", "abc", "abc"] and answer.out == "abc\n"
    assert "prompt tokens, state" in answer.err and "tokens/s prefill" in answer.err


def test_an_empty_answer_is_said(reread, folder, text, monkeypatch):
    monkeypatch.setattr(asking, "generate", Letters(b"\n"))
    answer = asked(reread, folder, "--document", text, "--question", "dtype :")
    assert answer.out == "" and "before the first token" in answer.err and "no further step" in answer.err


def test_an_interruption_ends_the_line(reread, folder, text, monkeypatch):
    def interrupted(*given):
        given[-1](ord("a"))
        raise KeyboardInterrupt

    monkeypatch.setattr(asking, "generate", interrupted)
    answer = reread("ask", str(folder), "--document", str(text), "--question", "dtype :")
    assert answer.code == 130 and answer.out == "a\n" and "Traceback" not in answer.err


def test_a_cut_is_told(reread, folder, tmp_path):
    (tmp_path / "long.txt").write_text(LONG)
    arguments = (folder, "--document", tmp_path / "long.txt", "--question", "name3 :", "--max-tokens", 4)
    answer = asked(reread, *arguments)
    assert f"the document was cut from {len(LONG):,} to " in answer.err and f"may hold {LIMIT:,}" in answer.err
    assert asked(reread, *arguments, "--json").json["truncated"] is True


# ------------------------------------------------------------------------------------------------- what can be asked
def test_an_artifact_by_its_first_letters_and_stdin(reread, home, folder, monkeypatch):
    def make(where):
        save_model(load_model(folder), where)
        load_tokenizer("bytes").save(where / "tokenizer")

    made = Store().produce("checkpoint", {"of": "test"}, {}, "0", make)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(DOCUMENT.encode())))
    found = asked(reread, made[:14], "--document", "-", "--question", "dtype :", "--max-tokens", 3, "--json").json
    assert found["checkpoint"] == made and found["shown_tokens"] == len(DOCUMENT.strip())


def test_a_model_of_transformers(reread, text, tmp_path):
    from tests.models.adapters.families import build as family

    family("llama", vocab_size=259, max_position_embeddings=LIMIT).save_pretrained(tmp_path / "llama")
    arguments = ("ask", f"hf:{tmp_path / 'llama'}", "--document", str(text), "--question", "dtype :", "--max-tokens", "4")
    answer = reread(*arguments)
    assert answer.code == 2 and "has no tokenizer.json" in answer.err
    found = reread(*arguments, "--tokenizer", "bytes", "--json").json
    assert found["prompt_tokens"] == 1 + len(DOCUMENT.strip()) + len("\n\ndtype :") and found["state_bytes"] > 0
    load_tokenizer("bytes").save(tmp_path / "llama")
    assert reread(*arguments, "--json").json["answer"] == found["answer"]


def test_a_real_checkpoint_answers(reread, text, shared):
    place = shared / "data" / "checkpoints" / "tiny-rwkv4-660K-bytes-hf"
    if not place.is_dir():
        pytest.skip(f"the real RWKV-4 checkpoint is not here: {place}")
    arguments = (f"hf:{place}", "--document", text, "--tokenizer", "bytes", "--max-tokens", 16, "--json", "--question",
                 "Once upon a time there was a little")
    found = asked(reread, *arguments).json
    assert len(found["answer"]) > 3 and found["state_bytes"] == 5 * 4 * 128 * 4 + 8       # five vectors of four layers
    longer = asked(reread, *arguments, "--order", "twice").json
    assert longer["state_bytes"] == found["state_bytes"] and longer["prompt_tokens"] > found["prompt_tokens"]


def test_mistakes_are_one_message_before_a_model_is_loaded(reread, folder, text, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "load", lambda *_: pytest.fail("the model was loaded"))
    (tmp_path / "empty.txt").write_text(" \n\n")
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "bare").mkdir()
    save_model(model_of(), tmp_path / "mute")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "config.json").write_text(json.dumps({"model_type": "reread"}))
    (tmp_path / "latin").mkdir()
    (tmp_path / "latin" / "config.json").write_bytes("café".encode("latin-1"))
    good = {"checkpoint": folder, "--document": text, "--question": "dtype :"}
    for change, words in (
            ({"--document": tmp_path / "nothing.txt"}, "there is no such file"),
            ({"--document": tmp_path}, "cannot be read"),
            ({"--document": tmp_path / "empty.txt"}, "it is empty"),
            ({"--document": tmp_path / "latin.txt"}, "not UTF-8 text (byte 0xe9 at 3)"),
            ({"--order": "qestion_first"}, "did you mean question_first?"),
            ({"--order": "filler"}, "expected one of default, question_first, twice, repeat, alternate"),
            ({"--strategy": "iterated"}, "did you mean iterate"),
            ({"--max-tokens": 0}, "expected 1 or more"),
            ({"checkpoint": tmp_path / "mute"}, "no tokenizer/reread.json there"),
            ({"checkpoint": tmp_path / "bare"}, "no config.json there"),
            ({"checkpoint": tmp_path / "theirs"}, f"ask it as hf:{tmp_path / 'theirs'}"),
            ({"checkpoint": f"hf:{tmp_path / 'theirs'}"}, "or name it, for example --tokenizer bytes"),
            ({"checkpoint": tmp_path / "exported"}, f"`reread import {tmp_path / 'exported'}`"),
            ({"checkpoint": f"hf:{tmp_path / 'exported'}"}, f"`reread import {tmp_path / 'exported'}`"),
            ({"checkpoint": tmp_path / "latin"}, "config.json: is no JSON"),
            ({"checkpoint": f"hf:{tmp_path / 'latin'}"}, "config.json: is no JSON"),
            ({"checkpoint": "checkpoint-feedfeedfeedfeed"}, "no artifact checkpoint-feedfeedfeedfeed"),
            ({"checkpoint": f"hf:{tmp_path / 'absent'}"}, "there is no such folder"),
            ({"--tokenizer": "gpt3"}, "gpt3")):
        given = good | change
        answer = reread("ask", str(given.pop("checkpoint")), *(str(part) for pair in given.items() for part in pair))
        assert answer.code == 2 and answer.out == "", (change, answer)
        assert answer.err.startswith("error: ") and words in answer.err and answer.err.count("\n") == 1, (change, answer.err)


def test_an_empty_question_and_another_models_tokenizer(reread, folder, text):
    answer = reread("ask", str(folder), "--document", str(text), "--question", "  ")
    assert answer.code == 2 and "the question is empty" in answer.err
    answer = reread("ask", str(folder), "--document", str(text), "--question", "q", "--tokenizer", "gpt2")
    assert answer.code == 2 and "gives ids up to 50256" in answer.err


def test_the_state_that_is_told_is_the_one_after_the_prompt():
    import torch

    model = model_of()
    watched = asking.Watched(model)
    _, state = watched.prefill(torch.tensor([[1, 2, 3]]), Layout.dense(1, 3))
    assert watched.state_bytes == state.nbytes == model.cost(3).state_bytes
    watched.prefill(torch.tensor([[1] * 9]), Layout.dense(1, 9))
    assert watched.state_bytes == model.cost(3).state_bytes and watched.config is model.config


def test_a_long_document_is_cut_so_that_it_can_be_read_twice(reread, folder, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text(LONG, encoding="utf-8")
    told = {}
    for strategy in ("left_pad", "reread"):
        answer = reread("ask", str(folder), "--document", str(path), "--question", "name3 :", "--strategy", strategy,
                        "--max-tokens", "8", "--json")
        assert answer.code == 0, answer.err
        told[strategy] = answer.json
    assert told["left_pad"]["shown_tokens"] > told["reread"]["shown_tokens"] > LIMIT // 4
