"""Shards: every token once, the same bytes whatever happened on the way, and accounts that add up."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from storage.artifacts import Store
from storage.errors import CorpusError, TokenizerError
from storage.shards import RowTable, ShardWriter, TokenShards
from tasks import corpus as corpora
from tasks import tokenise
from tasks.specs import TokeniseSpec
from tasks.tokenizers import load_tokenizer

TEXTS = [("train" if k % 5 else ("test" if k % 2 else "validation"), f"document {k} " + "word " * (k % 17) + "é\n" * (k % 3))
         for k in range(120)]


def write_documents(folder: Path, texts=TEXTS) -> RowTable:
    with ShardWriter(folder / corpora.FILE, corpora.SCHEMA) as writer:
        for k, (split, text) in enumerate(texts):
            writer.append({"id": f"{k:04d}", "split": split, "source": "x", "text": text})
    return RowTable(folder / corpora.FILE)


def spec(**changes) -> TokeniseSpec:
    return TokeniseSpec(**{"tokenizer": "bytes", "row_tokens": 32, "shard_rows": 10} | changes)


def file_hashes(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file() and tokenise.GROUPS not in path.parts}


@pytest.fixture
def documents(tmp_path):
    return write_documents(tmp_path)


def _stream(tokenizer, split):
    """The stream of a split, written out slowly, and where documents start in it."""
    stream, starts = [], []
    for other, text in TEXTS:
        if other == split:
            starts.append(len(stream))
            stream += [tokenizer.end_of_text, *tokenizer.encode(text)]
    return stream, starts


@pytest.mark.parametrize("name", ["bytes", "gpt2"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_rows_are_windows_of_the_stream_that_share_one_token(documents, tmp_path, name, split):
    counts = tokenise.build(spec(tokenizer=name), documents, tmp_path / "out")["splits"][split]
    stream, starts = _stream(load_tokenizer(name), split)
    shards = TokenShards(tmp_path / "out" / split)
    assert len(shards) == counts["rows"] == (len(stream) - 1) // 32
    for i in range(len(shards)):
        assert shards.row(i).tolist() == stream[32 * i : 32 * i + 33]
        assert shards.starts(i).tolist() == [start - 32 * i for start in starts if 0 <= start - 32 * i <= 32]
    assert shards.row(0).dtype == np.uint16


def test_accounts_add_up(documents, tmp_path):
    counts = tokenise.build(spec(), documents, tmp_path / "out")["splits"]
    assert sum(split["documents"] for split in counts.values()) == len(TEXTS)
    for split, found in counts.items():
        stream, _ = _stream(load_tokenizer("bytes"), split)
        assert found["tokens"] == len(stream) == found["rows"] * 32 + 1 + found["dropped"]
        assert 0 <= found["dropped"] < 32 and found["shards"] == -(-found["rows"] // 10)
        assert found["text_bytes"] == sum(len(text.encode()) for other, text in TEXTS if other == split)


@pytest.mark.parametrize("group", [1, 100, 10**6])
def test_group_size_changes_no_byte(documents, tmp_path, monkeypatch, group):
    tokenise.build(spec(), documents, tmp_path / "one")
    monkeypatch.setattr(tokenise, "GROUP_CHARACTERS", group)
    tokenise.build(spec(), documents, tmp_path / "other")
    assert file_hashes(tmp_path / "one") == file_hashes(tmp_path / "other")


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(documents, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenise, "GROUP_CHARACTERS", 300)
    tokenise.build(spec(tokenizer="bpe:270"), documents, tmp_path / "whole")
    real, seen = tokenise._tokenise_group, []

    def dies_at_the_fifth(group, **rest):
        if len(seen) == 4:
            raise KeyboardInterrupt
        seen.append(group[0])
        return real(group, **rest)

    monkeypatch.setattr(tokenise, "_tokenise_group", dies_at_the_fifth)
    with pytest.raises(KeyboardInterrupt):
        tokenise.build(spec(tokenizer="bpe:270"), documents, tmp_path / "killed")
    monkeypatch.setattr(tokenise, "_tokenise_group", real)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed").rglob("*.npy")}
    assert len(before) == 8
    tokenise.build(spec(tokenizer="bpe:270"), documents, tmp_path / "killed")
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())
    assert file_hashes(tmp_path / "killed") == file_hashes(tmp_path / "whole")


def test_a_trained_tokenizer_sees_the_train_split_only(documents, tmp_path):
    tokenise.build(spec(tokenizer="bpe:270"), documents, tmp_path / "one")
    other = [(split, text if split == "train" else "zqzqzqzq" * 200) for split, text in TEXTS]
    tokenise.build(spec(tokenizer="bpe:270"), write_documents(tmp_path / "b", other), tmp_path / "two")
    one, two = file_hashes(tmp_path / "one"), file_hashes(tmp_path / "two")
    assert one["tokenizer/tokenizer.json"] == two["tokenizer/tokenizer.json"]


def test_run_makes_an_artifact_once_and_plan_knows_its_name(tmp_path):
    store = Store(tmp_path / "home")
    corpus = store.produce("corpus", {}, {}, "c", lambda folder: {"documents": len(write_documents(folder))})
    planned = tokenise.plan(spec(), store, corpus)
    assert not store.exists(planned)
    assert tokenise.run(spec(), store, corpus) == planned and store.exists(planned)
    listed = {entry["path"] for entry in store.manifest(planned).files}
    assert "train/00000.arrow" in listed and "tokenizer/reread.json" in listed
    assert not any(tokenise.GROUPS in path for path in listed)
    created = store.manifest(planned).created
    assert tokenise.run(spec(), store, corpus) == planned and store.manifest(planned).created == created
    assert tokenise.plan(spec(row_tokens=64), store, corpus) != planned


def test_another_tokenizer_file_at_the_same_place_is_another_tokenizer(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text('{"one": 1}')
    one = tokenise.plan(spec(tokenizer=f"hf:{file}"), None, "corpus-0")
    assert tokenise.plan(spec(tokenizer=f"hf:{file}"), None, "corpus-0") == one
    file.write_text('{"two": 2}')
    assert tokenise.plan(spec(tokenizer=f"hf:{file}"), None, "corpus-0") != one


def test_datasets_reads_the_shards(documents, tmp_path):
    import datasets

    tokenise.build(spec(), documents, tmp_path / "out")
    theirs = datasets.Dataset.from_file(str(tmp_path / "out/train/00000.arrow"))
    assert theirs[3]["tokens"] == TokenShards(tmp_path / "out/train").row(3).tolist()


def test_mistakes_are_told_before_the_work(documents, tmp_path):
    with pytest.raises(CorpusError, match="less than one row of 100000"):
        tokenise.build(spec(row_tokens=100_000), documents, tmp_path / "out")
    with pytest.raises(TokenizerError, match="neither a file or folder"):
        tokenise.plan(spec(tokenizer="hf:/no/such/place"), None, "corpus-0000000000000000")
    with pytest.raises(TokenizerError, match="is unknown"):
        tokenise.run(spec(tokenizer="nonsense"), Store(tmp_path / "home"), "corpus-0000000000000000")
