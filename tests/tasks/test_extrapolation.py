"""Long texts in pieces as in one forward, in constant memory; blocks and positions by hand; what cannot be read says why."""

import gzip
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from models import Layout, build, load_model
from storage.artifacts import Store
from storage.errors import CorpusError, SpecError, UnsupportedUse
from storage.shards import RowTable
from tasks import extrapolation, extrapolation_stream
from tasks.extrapolation_stream import Reading
from tasks.extrapolation_windows import with_window
from tasks.specs import ExtrapolationSpec
from tasks.tokenizers import load_tokenizer
from tests.tasks import perplexity_artifacts as made


def spec(**settings) -> ExtrapolationSpec:
    return ExtrapolationSpec(**{"lengths": (24, 48, 96), "bootstrap": 100, "piece_tokens": 40, "batch_rows": 3} | settings)


def tiny(*plan, **settings):
    return build(made.config(*plan, **settings)).eval()


def ids_of(length: int, rows: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(97, 123, (rows, length + 1))


@torch.no_grad()
def one_forward(model, ids_BN: np.ndarray) -> np.ndarray:
    """Losses [nats] from the logits of whole rows."""
    ids = torch.from_numpy(ids_BN)
    logits = model(ids[:, :-1], Layout.dense(len(ids), ids.shape[1] - 1)).double()
    return (torch.logsumexp(logits, -1) - logits.gather(-1, ids[:, 1:, None])[..., 0]).numpy()


# ------------------------------------------------------------------------------------------------------------ streaming
@pytest.mark.parametrize("plan", [("conv", "linear"), ("window", "linear"), ("lavo",), ("full",), ("conv", "prefix")])
@pytest.mark.parametrize("length, piece", [(63, 20), (100, 2), (101, 34), (128, 1000)])
def test_pieces_read_what_one_forward_reads(plan, length, piece):
    model, ids_BN = tiny(*plan), ids_of(length)
    read = np.concatenate(list(Reading.of(model, spec(piece_tokens=piece)).losses(ids_BN)), axis=1)
    assert read.shape == (2, length) and np.abs(read - one_forward(model, ids_BN)).max() < 1e-4


def test_pieces_and_logits_are_as_small_as_asked(monkeypatch):
    model = tiny("linear")
    sizes = [piece.size for piece in Reading.of(model, spec(piece_tokens=64)).losses(ids_of(200))]
    assert max(sizes) == 64
    monkeypatch.setattr(extrapolation_stream, "LOGITS", 10 * 264)
    assert max(piece.size for piece in Reading.of(model, spec(piece_tokens=64)).losses(ids_of(200))) == 10


def test_a_long_text_takes_the_memory_of_a_short_one():
    """32 times the text: not a byte more of state, and less than six more MB of the process at its fullest, of which the ids
    are one. Least of three: a process that has run other tests lays hands on memory for reasons of its own."""
    reading = Reading.of(tiny("conv", "linear", "lavo"), spec(piece_tokens=1024))

    def read(length: int) -> tuple[int, int]:
        ids_BN = ids_of(length, rows=1)
        Path("/proc/self/clear_refs").write_text("5")                # the fullest from here on
        assert math.isfinite(sum(piece.sum() for piece in reading.losses(ids_BN)))
        return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]), reading.state_bytes

    read(4096)
    grown = []
    for _ in range(3):
        (short, state), (long, same) = read(4096), read(131_072)
        assert state == same
        grown.append(long - short)
    assert min(grown) < 6144, f"{grown} KB"                  # logits would be 138 MB, what goes into them 8


def test_a_cache_grows_and_is_said_to():
    reading, states = Reading.of(tiny("full"), spec()), []
    for length in (64, 256):
        list(reading.losses(ids_of(length)))
        states.append(reading.state_bytes)
    assert states[1] > 3 * states[0] and "whole cache" in reading.note


# ---------------------------------------------------------------------------------------------------------------- stage
@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(store, checkpoints, folder of three books of 400, 150 and 60 bytes, gzipped)."""
    folder = tmp_path_factory.mktemp("extrapolation")
    rng = np.random.default_rng(0)
    for name, size in (("a", 400), ("b", 150), ("c", 60)):
        with gzip.open(folder / f"{name}.txt.gz", "wb") as file:
            file.write(bytes(rng.integers(97, 100, size).tolist()))
    store = Store(folder / "home")
    return store, {"linear": made.checkpoint(store, "conv", "linear"), "window": made.checkpoint(store, "window", "lavo"),
                   "full": made.checkpoint(store, "full"), "places": made.checkpoint(store, "full", positions="learned",
                                                                                      max_length=30)}, folder


def read(world, kind, **settings):
    """(rows, parts, manifest) of a run."""
    store, ids, folder = world
    identifier = extrapolation.run(spec(paths=(str(folder / "*.txt.gz"),), **settings), store, ids[kind])
    rows = json.loads((store.path(identifier) / extrapolation.SCORES).read_text())
    return rows, RowTable(store.path(identifier) / extrapolation.PARTS).table.to_pylist(), store.manifest(identifier)


def streams(folder) -> list[list[int]]:
    end = load_tokenizer("bytes").end_of_text
    return [[end, *gzip.open(path).read()] for path in sorted(folder.glob("*.txt.gz"))]


def test_blocks_are_read_from_nothing_and_cover_the_same_text(world):
    store, ids, folder = world
    rows, parts, manifest = read(world, "linear", protocols=("blocks",))
    model = load_model(store.path(ids["linear"])).eval()
    stream = np.array(sum(streams(folder), []))
    targets = (len(stream) - 1) // 96 * 96                                            # whole stretches of 96
    assert manifest.counts["block_tokens"] == targets == 576 and [row["length"] for row in rows] == [24, 48, 96]
    for row in rows:
        L = row["length"]
        blocks = np.stack([stream[k:k + L + 1] for k in range(0, targets, L)])
        losses = one_forward(model, blocks)
        assert row["nll"] == pytest.approx(losses.mean(), abs=1e-5) and row["n"] == losses.size == targets
        assert row["perplexity"] == pytest.approx(math.exp(losses.mean()), rel=1e-5)
        assert row["sequences"] == targets // 96 and row["low"] < row["perplexity"] < row["high"]
        own = [part for part in parts if part["length"] == L]
        assert np.allclose([part["nll"] for part in own], losses.sum(1), atol=1e-3)
        assert [part["unit"] for part in own] == [f"stretch {k // 96}" for k in range(0, targets, L)]
        text = (blocks[:, 1:] < 256).sum()
        assert row["bits_per_byte"] == pytest.approx(losses.sum() / math.log(2) / text, rel=1e-5)
        assert row["cannot"] is None and row["tokens_per_second"] > 0 and "constant size" in row["note"]
    assert len({row["state_bytes"] for row in rows}) == 1
    limited = read(world, "linear", protocols=("blocks",), tokens=200)[2].counts
    assert limited["block_tokens"] == 192


def test_positions_are_read_once_and_only_books_that_reach_count(world):
    store, ids, folder = world
    rows, parts, _ = read(world, "linear", protocols=("positions",))
    model = load_model(store.path(ids["linear"])).eval()
    losses = {name: one_forward(model, np.array([ids]))[0] for name, ids in zip("abc", streams(folder))}
    for row, low, names in zip(rows, (0, 24, 48), ("abc", "abc", "ab")):
        wanted = np.mean([losses[name][low:row["length"]] for name in names])
        assert (row["from"], row["to"], row["sequences"]) == (low, row["length"], len(names))
        assert row["nll"] == pytest.approx(wanted, abs=1e-5) and row["n"] == len(names) * (row["length"] - low)
    assert {part["unit"] for part in parts} == {"a.txt.gz", "b.txt.gz", "c.txt.gz"}
    rows, _, _ = read(world, "linear", protocols=("positions",), lengths=(60, 61, 5000))
    assert [row["sequences"] for row in rows] == [3, 2, 0] and rows[2]["cannot"] == "no book is that long"


def test_what_cannot_be_read_is_a_row_with_its_reason(world):
    rows, _, manifest = read(world, "places")
    assert [(row["protocol"], row["length"], row["cannot"]) for row in rows] == [
        (protocol, length, None if length == 24 else "its positions end at 30")
        for protocol in ("blocks", "positions") for length in (24, 48, 96)]
    assert all((row["perplexity"] is None) == (row["cannot"] is not None) for row in rows)
    assert manifest.counts["cannot"] == 4
    rows, _, _ = read(world, "full", growing_limit=48, protocols=("blocks",))
    assert [row["cannot"] for row in rows] == [None, None, "its state grows with the text, and growing_limit is 48"]
    assert all(row["cannot"] is None for row in read(world, "full", growing_limit=None, protocols=("blocks",))[0])


def test_window_sweep(world):
    store, ids, folder = world
    rows, parts, _ = read(world, "window", protocols=("blocks",), windows=(2, 5, 9), lengths=(48, 96))
    assert [(row["window"], row["length"]) for row in rows] == [(w, n) for w in (None, 2, 5, 9) for n in (48, 96)]
    assert rows[2]["overridden"] == "window: window 5 -> 2; lavo: window 6 -> 2; scores of further offsets cut"
    assert "offsets never learned score 0" in rows[6]["overridden"] and rows[0]["overridden"] == ""
    assert len({round(row["nll"], 6) for row in rows if row["length"] == 48}) == 4
    assert {part["window"] for part in parts} == {0, 2, 5, 9}
    refused = read(world, "linear", protocols=("blocks",), windows=(8,))[0][3:]
    assert {row["cannot"] for row in refused} == {"none of its mixers (conv, linear) has a window"}


def test_a_window_of_its_own_width_changes_nothing_and_a_table_keeps_its_middle():
    model, ids_BN = tiny("lavo"), ids_of(60)
    same, _ = with_window(model, 6)
    assert np.array_equal(one_forward(same, ids_BN), one_forward(model, ids_BN))
    table = model.blocks[0].mixer.table[0].tolist()                  # offsets -5 .. 5
    assert with_window(model, 3)[0].blocks[0].mixer.table[0].tolist() == table[3:8]
    assert with_window(model, 8)[0].blocks[0].mixer.table[0].tolist() == [0, 0, *table, 0, 0]
    narrow = with_window(model, 3)[0]
    assert narrow.blocks[0].mixer.config.window == 3 and model.blocks[0].mixer.config.window == 6
    with pytest.raises(UnsupportedUse, match="only in a model of this project"):
        with_window(type("Theirs", (), {"config": None})(), 4)


def test_a_killed_reading_goes_on(world, monkeypatch):
    store, ids, folder = world
    asked = spec(paths=(str(folder / "*.txt.gz"),), seed=3)
    real, done = extrapolation._sums, []

    def dies(*given):
        if len(done) == 10:
            raise KeyboardInterrupt
        done.append(1)
        return real(*given)

    monkeypatch.setattr(extrapolation, "_sums", dies)
    with pytest.raises(KeyboardInterrupt):
        extrapolation.run(asked, store, ids["linear"])
    rest = []
    monkeypatch.setattr(extrapolation, "_sums", lambda *given: rest.append(1) or real(*given))
    resumed = extrapolation.run(asked, store, ids["linear"])
    assert len(rest) == 8 + 4 + 2 + 3 - 10                    # 24, 12 and 6 blocks three at a time, and three books
    found, whole = json.loads((store.path(resumed) / extrapolation.SCORES).read_text()), read(world, "linear")[0]
    assert [row["nll"] for row in found] == [row["nll"] for row in whole]
    assert not any(entry["path"].startswith(".") for entry in store.manifest(resumed).files)


def test_names_of_files_are_nothing_and_their_text_is(world, tmp_path):
    store, ids, folder = world
    one = extrapolation.plan(spec(paths=(str(folder / "*.txt.gz"),)), store, ids["linear"])
    for path in folder.glob("*.txt.gz"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    there = spec(paths=(str(tmp_path / "*.txt.gz"),))
    assert extrapolation.plan(there, store, ids["linear"]) == one
    (tmp_path / "c.txt.gz").write_bytes((tmp_path / "b.txt.gz").read_bytes())
    assert extrapolation.plan(there, store, ids["linear"]) != one


def test_documents_of_a_corpus_are_books_too(world):
    store, ids, folder = world
    identifier = extrapolation.run(spec(lengths=(16, 32), books=7), store, ids["linear"], corpus=made.corpus(store))
    assert store.manifest(identifier).counts["books"] == 7


def test_mistakes(world):
    store, ids, folder = world
    with pytest.raises(SpecError, match="give one of them"):
        extrapolation.plan(spec(), store, ids["linear"])
    with pytest.raises(CorpusError, match="no file matches"):
        extrapolation.plan(spec(paths=(str(folder / "none*.txt"),)), store, ids["linear"])
    with pytest.raises(CorpusError, match="need 1000 tokens, their least common multiple; there are 612"):
        read(world, "linear", lengths=(8, 1000))
    with pytest.raises(CorpusError, match="more `tokens`"):
        read(world, "linear", tokens=50)
