"""Losses document by document, slices that add up, the same after a kill, and clear refusals."""

import json
import math
import shutil

import numpy as np
import pytest
import torch

from models import Layout, load_model
from storage.artifacts import Store
from storage.errors import ArtifactError, CorpusError, LengthError, ShardError, SpecError
from storage.shards import RowTable, TokenShards
from tasks import bigrams, perplexity
from tasks.specs import BigramsSpec, PerplexitySpec
from tasks.statistics import bootstrap
from tasks.tokenizers import load_tokenizer
from tests.tasks import perplexity_artifacts as made


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("perplexity") / "home")
    shards = made.shards(store)
    return store, {"shards": shards, "corpus": made.corpus(store), "bigrams": bigrams.run(BigramsSpec(), store, shards),
                   "causal": made.checkpoint(store, "conv", "linear", "window"),
                   "prefix": made.checkpoint(store, "conv", "prefix", "window")}


def spec(**settings) -> PerplexitySpec:
    return PerplexitySpec(**{"bootstrap": 100, "minimum_distance": 8, "maximum_count": 100, "batch_rows": 3,
                             "frequency_edges": (0, 1, 10, 30), "distance_edges": (1, 8, 32)} | settings)


def columns(store, identifier) -> dict[str, np.ndarray]:
    table = RowTable(store.path(identifier) / perplexity.TOKENS)
    return {name: np.asarray(table.column(name)) for name in table.names}


def rows_of(store, identifier) -> list[dict]:
    return json.loads((store.path(identifier) / perplexity.SCORES).read_text())


@torch.no_grad()
def one_by_one(model, ids: list[int], prefix: int) -> list[float]:
    """Loss of every target of one text alone [nats], slot by slot from its logits."""
    layout = Layout.dense(1, len(ids) - 1)
    logits = model(torch.tensor([ids[:-1]]), layout.with_prefix(prefix) if prefix else layout)[0].double()
    return [float(torch.logsumexp(row, 0) - row[target]) for row, target in zip(logits, ids[1:])]


# ----------------------------------------------------------------------------------------------------------- losses
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("kind, both_ways", [("causal", False), ("prefix", True), ("prefix", False)])
def test_losses_are_those_of_each_document_alone(world, kind, both_ways, apart):
    store, ids = world
    asked = spec(documents_apart=apart, read_prefix=both_ways, sequences=9)
    found = columns(store, perplexity.run(asked, store, ids[kind], shards=ids["shards"]))
    model, shards = load_model(store.path(ids[kind])).eval(), TokenShards(store.path(ids["shards"]) / "test")
    wanted = {}
    for number in range(9):
        row, starts = shards.row(number).tolist(), shards.starts(number).tolist() if apart else []
        bounds = sorted({0, *starts, len(row)})
        for begin, end in zip(bounds, bounds[1:]):
            if end - begin < 2:
                continue
            prefix = min(max(32 - begin, 0), end - begin, 64 - begin) if both_ways else 0
            alone = row[begin:end]
            for k, loss in enumerate(one_by_one(model, alone, min(prefix, len(alone) - 1))):
                if begin + k >= 32:
                    wanted[number, begin + k + 1] = (alone[k + 1], loss)
    assert list(zip(found["sequence"].tolist(), found["position"].tolist())) == sorted(wanted)
    assert found["id"].tolist() == [wanted[key][0] for key in sorted(wanted)]
    assert np.allclose(found["nll"], [wanted[key][1] for key in sorted(wanted)], atol=2e-5)


def test_a_prefix_read_both_ways_is_something_else(world):
    store, ids = world
    both, causal = (columns(store, perplexity.run(spec(read_prefix=way), store, ids["prefix"], shards=ids["shards"]))["nll"]
                    for way in (True, False))
    assert np.abs(both - causal).max() > 0.01
    assert store.manifest(perplexity.plan(spec(), store, ids["prefix"], shards=ids["shards"])).counts["prefix"] == "both ways"


def test_documents_of_a_corpus(world):
    store, ids = world
    asked = spec(sequence_tokens=50, minimum_tokens=31, prefix_share=0.25)
    identifier = perplexity.run(asked, store, ids["causal"], corpus=ids["corpus"])
    found, model = columns(store, identifier), load_model(store.path(ids["causal"])).eval()
    tokenizer = load_tokenizer("bytes")
    documents = [tokenizer.encode(text) for split, text in made.texts() if split == "test"]
    kept = [[tokenizer.end_of_text, *each[:50]] for each in documents if len(each) >= 31]
    assert store.manifest(identifier).counts["left_out"] == {"too_short": len(documents) - len(kept)}
    assert len({len(each) for each in kept}) >= 3 and 32 in map(len, kept)                                  # lengths differ
    for number, each in enumerate(kept):
        own, first = found["sequence"] == number, int((len(each) - 1) * 0.25)
        assert found["position"][own].tolist() == list(range(first + 1, len(each)))
        assert np.allclose(found["nll"][own], one_by_one(model, each, 0)[first:], atol=2e-5)


def test_batches_and_pieces_of_the_head_change_nothing(world, monkeypatch):
    store, ids = world
    one = columns(store, perplexity.run(spec(batch_rows=1), store, ids["causal"], shards=ids["shards"]))
    monkeypatch.setattr("tasks.perplexity_models.LOGITS", 7 * 264)
    many = columns(store, perplexity.run(spec(batch_rows=5), store, ids["causal"], shards=ids["shards"]))
    assert np.allclose(one["nll"], many["nll"], atol=2e-5)
    assert all((one[name] == many[name]).all() for name in one if name != "nll")


# ----------------------------------------------------------------------------------------------------------- slices
def test_slices_add_up_and_are_recomputed_from_the_table(world):
    store, ids = world
    identifier = perplexity.run(spec(), store, ids["causal"], shards=ids["shards"], bigrams=ids["bigrams"])
    table, rows = columns(store, identifier), rows_of(store, identifier)
    nll = table["nll"].astype(np.float64)
    def pick(name, kind):
        return [row for row in rows if row["slice"] == name and row["kind"] == kind]
    [whole], [ar], [other] = pick("all", "all"), pick("kind", "ar"), pick("kind", "other")
    assert whole["perplexity"] == pytest.approx(math.exp(nll.mean()), rel=1e-12) and whole["n"] == len(nll)
    assert ar["n"] + other["n"] == whole["n"] and min(ar["n"], other["n"]) > 50
    assert (ar["n"] * ar["nll"] + other["n"] * other["nll"]) / whole["n"] == pytest.approx(whole["nll"], rel=1e-12)
    parts = pick("frequency", "other")
    assert sum(row["n"] for row in parts) == other["n"] and sum(row["n"] > 0 for row in parts) >= 2
    assert sum(row["n"] * row["nll"] for row in parts if row["n"]) == pytest.approx(other["n"] * other["nll"], rel=1e-12)
    near = (table["distance"] > 0) & (table["distance"] < 8) & (table["count"] < 100)
    assert near.sum() > 5 and (table["count"] >= 100).any()
    [nearest] = [row for row in pick("distance", "ar") if row["from"] == 1]
    assert nearest["perplexity"] == pytest.approx(math.exp(nll[near].mean()), rel=1e-12) and nearest["to"] == 8
    assert ((table["distance"] > 0) == table["is_ar"]).all()
    counts = bigrams.Bigrams(store.path(ids["bigrams"]))
    shards = TokenShards(store.path(ids["shards"]) / "test")
    previous = [int(shards.row(s)[p - 1]) for s, p in zip(table["sequence"], table["position"])]
    assert table["count"].tolist() == counts.count(np.array(previous), table["id"]).tolist()


def test_intervals_are_those_of_the_bootstrap_over_sequences(world):
    store, ids = world
    identifier = perplexity.run(spec(), store, ids["causal"], shards=ids["shards"])
    table, rows = columns(store, identifier), rows_of(store, identifier)
    for row, mask in ((rows[0], slice(None)), (rows[1], table["is_ar"])):
        found = bootstrap(table["nll"][mask].astype(np.float64), table["sequence"][mask], resamples=100, seed=0)
        assert (row["nll"], row["nll_low"], row["nll_high"]) == (found.value, found.low, found.high)
        assert (row["low"], row["high"]) == (math.exp(found.low), math.exp(found.high))
        assert row["sequences"] == found.documents
    text = table["id"] < 256                                                        # every byte counts one, special ids none
    assert rows[0]["bits_per_byte"] == pytest.approx(table["nll"].astype(float).sum() / math.log(2) / text.sum(), rel=1e-9)
    assert rows[0]["bits_low"] < rows[0]["bits_per_byte"] < rows[0]["bits_high"]


def test_a_slice_without_targets_says_so(world):
    store, ids = world
    identifier = perplexity.run(spec(minimum_distance=1000), store, ids["causal"], shards=ids["shards"],
                                bigrams=ids["bigrams"])
    empty = [row for row in rows_of(store, identifier) if row["slice"] == "frequency" and row["kind"] == "ar"]
    assert [(row["n"], row["perplexity"], row["bits_per_byte"], row["reason"]) for row in empty] == [
        (0, None, None, "no items")] * 4


# ---------------------------------------------------------------------------------------------- stage, kills, refusals
def test_plan_names_what_run_makes_and_inputs_change_it(world):
    store, ids = world
    planned = perplexity.plan(spec(), store, ids["causal"], shards=ids["shards"], mixers=("base_conv", "based"))
    assert perplexity.run(spec(), store, ids["causal"], shards=ids["shards"], mixers=("base_conv", "based")) == planned
    others = {perplexity.plan(spec(), store, ids["causal"], shards=ids["shards"]),
              perplexity.plan(spec(), store, ids["causal"], shards=ids["shards"], bigrams=ids["bigrams"]),
              perplexity.plan(spec(), store, ids["prefix"], shards=ids["shards"]),
              perplexity.plan(spec(prefix_share=0.25), store, ids["causal"], shards=ids["shards"])}
    assert len(others) == 4 and planned not in others


def test_a_killed_reading_goes_on_and_ends_the_same(world, monkeypatch):
    store, ids = world
    asked = spec(batch_rows=1, seed=5)
    wanted = columns(store, perplexity.run(spec(batch_rows=1, seed=6), store, ids["causal"], shards=ids["shards"]))
    real, calls = perplexity._losses, []

    def dies(model, batch):
        if len(calls) == 12:
            raise KeyboardInterrupt
        calls.append(1)
        return real(model, batch)

    monkeypatch.setattr(perplexity, "_losses", dies)
    with pytest.raises(KeyboardInterrupt):
        perplexity.run(asked, store, ids["causal"], shards=ids["shards"])
    rest = []
    monkeypatch.setattr(perplexity, "_losses", lambda model, batch: rest.append(1) or real(model, batch))
    found = columns(store, perplexity.run(asked, store, ids["causal"], shards=ids["shards"]))
    assert all((found[name] == wanted[name]).all() for name in wanted)
    assert len(rest) == len(TokenShards(store.path(ids["shards"]) / "test")) - perplexity.KEPT


def test_a_model_of_transformers_reads_text_and_rows(world, shared, tmp_path):
    """A byte model of 256 rows: the shards' end of text, id 258, is its own, and both ways read the same words alike."""
    lies = shared / "data" / "checkpoints" / "tiny-rwkv4-660K-bytes-hf"
    if not lies.is_dir():
        pytest.skip(f"no sample checkpoint at {lies}")
    folder = shutil.copytree(lies, tmp_path / "rwkv")
    load_tokenizer("bytes").save(folder)
    store, ids = world
    asked = spec(sequences=3, prefix_share=0.0, sequence_tokens=32, minimum_tokens=16)
    read = columns(store, perplexity.run(asked, store, f"hf:{folder}", corpus=ids["corpus"], bigrams=ids["bigrams"]))
    rows = columns(store, perplexity.run(asked, store, f"hf:{folder}", shards=ids["shards"], bigrams=ids["bigrams"]))
    first = [{p: (i, n, c) for s, p, i, n, c in zip(*(each[k].tolist() for k in ("sequence", "position", "id", "nll", "count")))
              if s == 0 and p <= 16} for each in (read, rows)]
    assert len(first[0]) == 16 and first[0].keys() == first[1].keys()
    for position, (token, loss, count) in first[0].items():
        assert first[1][position][::2] == (token, count) and first[1][position][1] == pytest.approx(loss, abs=1e-4)
    assert first[0][1][2] > 0                     # the pair (end of text, first byte) is known under the model's own id


def test_mistakes(world):
    store, ids = world
    with pytest.raises(SpecError, match="give one of them"):
        perplexity.plan(spec(), store, ids["causal"])
    with pytest.raises(SpecError, match="give one of them"):
        perplexity.run(spec(), store, ids["causal"], shards=ids["shards"], corpus=ids["corpus"])
    with pytest.raises(CorpusError, match="none of 20 documents has 10000 tokens"):
        perplexity.run(spec(minimum_tokens=10_000), store, ids["causal"], corpus=ids["corpus"])
    with pytest.raises(ShardError, match="no .arrow files"):
        perplexity.run(spec(split="held_out"), store, ids["causal"], shards=ids["shards"])
    short = made.checkpoint(store, "full", positions="learned", max_length=20)
    with pytest.raises(LengthError):
        perplexity.run(spec(documents_apart=False), store, short, shards=ids["shards"])


def test_ids_of_another_tokenizer_are_refused(world):
    from tasks import tokenise
    from tasks.specs import TokeniseSpec

    store, ids = world
    other = tokenise.run(TokeniseSpec(tokenizer="bpe:270", row_tokens=32), store, ids["corpus"])
    with pytest.raises(ArtifactError, match="tokenised with bpe:270, the checkpoint reads bytes"):
        perplexity.run(spec(), store, ids["causal"], shards=other)
    counted = bigrams.run(BigramsSpec(), store, other)
    with pytest.raises(ArtifactError, match="the text behind bigrams-"):
        perplexity.run(spec(), store, ids["causal"], shards=ids["shards"], bigrams=counted)
