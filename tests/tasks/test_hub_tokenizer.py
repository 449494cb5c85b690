"""Tokenizers in Hugging Face form: the same ids for the same text, the same text for the same ids, special ids in place."""

import pytest
from transformers import AutoTokenizer

from models.adapters.export import HubTokenizer, _write_tokenizer
from storage.errors import ConfigError, TokenizerError
from tasks.hub_tokenizer import hub_form
from tasks.tokenizers import load_tokenizer, train_bpe
from tests.conftest import ROOT

TEXTS = ["Hello wörld, it's   a\n\ntest 12345 <eot> <pad> <|endoftext|> ünïcode ✓ 日本\t\x00x  ", "", " a  b ", "\n",
         "def f(x):\n    return  x+1\n", "don't we'll\r\n", (ROOT / "README.md").read_text()]
NUMBERS = ["1 2 3 0 63", "", "63"]


def made(name: str):
    return train_bpe(TEXTS, 400) if name == "bpe" else load_tokenizer(name)


@pytest.mark.parametrize("name", ["gpt2", "bytes", "bpe", "ids:64"])
def test_the_same_ids_and_the_same_text(name, tmp_path):
    tokenizer = made(name)
    tokenizer.save(tmp_path / "ours")
    ours, form = hub_form(tmp_path / "ours")
    ids = _write_tokenizer(form, tmp_path / "hub", 128)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "hub")
    for text in NUMBERS if name.startswith("ids") else TEXTS:
        wanted = tokenizer.encode(text)
        assert theirs(text)["input_ids"] == wanted == ours.encode(text)
        assert theirs.decode(wanted) == tokenizer.decode(wanted)
    assert len(theirs) == tokenizer.vocabulary_size
    assert ids["eos_token_id"] == ids["bos_token_id"] == theirs.eos_token_id == tokenizer.end_of_text
    assert theirs.mask_token_id == (None if name == "gpt2" else tokenizer.mask)
    assert theirs.pad_token_id == ids["pad_token_id"] == {"gpt2": 50256, "bytes": 256, "bpe": 0, "ids:64": 0}[name]
    special = {"gpt2": {50256}, "bytes": {256, 257, 258}, "bpe": {0, 1, 2}, "ids:64": {0}}[name]
    assert set(theirs.added_tokens_decoder) == special and set(theirs.all_special_ids) == special
    assert theirs.padding_side == "left" and theirs.model_max_length == 128
    assert theirs.decode([tokenizer.end_of_text], skip_special_tokens=True) == ""


def test_a_tokenizer_that_came_from_hugging_face_goes_back(tmp_path):
    train_bpe(TEXTS, 400).save(tmp_path / "first")
    load_tokenizer(f"hf:{tmp_path / 'first'}").save(tmp_path / "ours")
    ours, form = hub_form(tmp_path / "ours")
    assert (form.end_of_text, form.pad, form.mask) == ("<eot>", "<pad>", "<mask>")
    _write_tokenizer(form, tmp_path / "hub", None)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "hub")
    assert [theirs(text)["input_ids"] for text in TEXTS] == [ours.encode(text) for text in TEXTS]


def test_entries_that_are_not_there(tmp_path):
    load_tokenizer("bytes").save(tmp_path)
    _, form = hub_form(tmp_path)
    with pytest.raises(ConfigError, match="pad_token '<none>' is not among its 259 entries"):
        _write_tokenizer(HubTokenizer(form.text, form.end_of_text, "<none>"), tmp_path, None)
    with pytest.raises(TokenizerError):
        hub_form(tmp_path / "absent")
