"""Bigram counts against a plain Counter over the documents, whatever the spans, merges, workers and kills."""

from collections import Counter

import numpy as np
import pytest

from storage.artifacts import Store
from storage.errors import ArtifactError
from storage.shards import ShardWriter, token_schema
from tasks import bigrams
from tasks.bigrams import Bigrams, merge
from tasks.specs import BigramsSpec
from tasks.tokenizers import load_tokenizer

END, SLOTS, ROWS = 256, 16, 23


def documents() -> list[list[int]]:
    """Documents of 0 to 30 tokens from a small alphabet, one of them ending where a row does."""
    rng = np.random.default_rng(3)
    return [rng.integers(97, 102, int(n)).tolist() for n in [15, 0, 14, *rng.integers(0, 31, 60)]]


def stream() -> tuple[list[int], list[int]]:
    tokens, begins = [], []
    for document in documents():
        begins.append(len(tokens))
        tokens += [END, *document]
    return tokens[:ROWS * SLOTS + 1], begins


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "home")


@pytest.fixture
def shards(store):
    tokens, begins = stream()

    def build(folder):
        load_tokenizer("bytes").save(folder / "tokenizer")
        for file, (first, last) in enumerate([(0, 9), (9, 18), (18, ROWS)]):
            with ShardWriter(folder / "train" / f"{file:05d}.arrow", token_schema(SLOTS + 1, 300)) as writer:
                for row in range(first, last):
                    at = row * SLOTS
                    writer.append({"tokens": tokens[at:at + SLOTS + 1],
                                   "starts": [b - at for b in begins if at <= b <= at + SLOTS]})

    return store.produce("shards", {}, {}, "test", build)


def expected(count: int | None = None, across: bool = False) -> Counter:
    """Counted document by document, over what fits into the rows."""
    tokens, begins = stream()
    found = Counter()
    bounds = [b for b in [*begins, len(tokens)] if b <= len(tokens)]
    for begin, end in list(zip(bounds, bounds[1:]))[:count]:
        found.update(zip(tokens[begin:end], tokens[begin + 1:end]))
    if across:
        last = len(tokens) if count is None else begins[count]
        found.update((tokens[b - 1], tokens[b]) for b in begins if 0 < b < last)
    return found


def read(store, identifier) -> Counter:
    found = Bigrams(store.path(identifier))
    assert (np.diff(found.keys.astype(object)) > 0).all() and (found.counts > 0).all()
    return Counter({(int(key) >> 32, int(key) & 0xFFFFFFFF): int(n) for key, n in zip(found.keys, found.counts)})


@pytest.mark.parametrize("spans, pairs, fan_in", [(10**6, 10**6, 128), (3 * SLOTS, 7, 2), (1, 1, 3)])
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("count", [None, 1, 2, 3, 7])
def test_as_a_plain_counter(store, shards, monkeypatch, spans, pairs, fan_in, across, count):
    for name, value in (("SPAN_TOKENS", spans), ("MERGE_PAIRS", pairs), ("FAN_IN", fan_in)):
        monkeypatch.setattr(bigrams, name, value)
    spec = BigramsSpec(cross_documents=across, documents=count)
    made = bigrams.run(spec, store, shards)
    assert made == bigrams.plan(spec, store, shards)
    wanted = expected(count, across)
    assert read(store, made) == wanted
    counts = store.manifest(made).counts
    assert counts["pairs"] == sum(wanted.values()) and counts["distinct"] == len(wanted)
    assert counts["documents"] == (count or sum(b < len(stream()[0]) for b in stream()[1]))
    assert not any(entry["path"].startswith(".") for entry in store.manifest(made).files)


def test_look_up(store, shards):
    found, wanted = Bigrams(store.path(bigrams.run(BigramsSpec(), store, shards))), expected()
    pairs = np.array([*wanted, (0, 0), (97, 300), (2**32 - 1, 2**32 - 1)])
    assert found.count(pairs[:, 0], pairs[:, 1]).tolist() == [wanted[tuple(pair)] for pair in pairs.tolist()]
    assert isinstance(found.keys, np.memmap) and found.counts.dtype == np.uint32


def test_merge_holds_little_and_adds_up(monkeypatch):
    """However unlike the runs are, no round is larger than allowed."""
    monkeypatch.setattr(bigrams, "MERGE_PAIRS", 100)
    rng = np.random.default_rng(0)
    runs = [np.unique(rng.integers(low, low + width, n), return_counts=True)
            for low, width, n in [*[(0, 10**6, 900)] * 6, (0, 50, 3000), (999_000, 3000, 2000), (5, 1, 4)]]
    runs = [(keys.astype(np.uint64), counts.astype(np.uint64)) for keys, counts in runs]
    blocks = list(merge([*runs, (np.zeros(0, np.uint64), np.zeros(0, np.uint64))]))
    assert len(blocks) > 10 and max(len(keys) for keys, _ in blocks) <= 100
    total = Counter()
    for keys, counts in runs:
        total.update(dict(zip(keys.tolist(), counts.tolist())))
    assert [(int(k), int(n)) for keys, counts in blocks for k, n in zip(keys, counts)] == sorted(total.items())


def test_a_killed_count_goes_on_with_its_finished_spans(store, shards, monkeypatch):
    monkeypatch.setattr(bigrams, "SPAN_TOKENS", 4 * (SLOTS + 1))
    real, seen = bigrams._count_span, []

    def dies_at_the_third(span, **rest):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(span[0])
        return real(span, **rest)

    monkeypatch.setattr(bigrams, "_count_span", dies_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        bigrams.run(BigramsSpec(), store, shards)
    monkeypatch.setattr(bigrams, "_count_span", real)
    opened = []
    monkeypatch.setattr(bigrams, "pair_keys", lambda a, b, real=bigrams.pair_keys: opened.append(1) or real(a, b))
    assert read(store, bigrams.run(BigramsSpec(), store, shards)) == expected()
    assert len(opened) == ROWS - 8                 # the rows of two spans were not read again


def test_nothing_to_count_and_nothing_there(tmp_path):
    with ShardWriter(tmp_path / "train" / "00000.arrow", token_schema(SLOTS + 1, 300)) as writer:
        writer.append({"tokens": [END] * (SLOTS + 1), "starts": list(range(SLOTS + 1))})
    counts = bigrams.build(BigramsSpec(), tmp_path / "train", tmp_path / "out")
    assert counts == {"pairs": 0, "distinct": 0, "documents": SLOTS + 1, "rows": 1}
    assert Bigrams(tmp_path / "out").count(np.array([1, 2]), np.array([3, 4])).tolist() == [0, 0]
    assert bigrams.build(BigramsSpec(documents=1), tmp_path / "train", tmp_path / "one")["pairs"] == 0
    with pytest.raises(ArtifactError, match="run the bigrams stage again"):
        Bigrams(tmp_path)


@pytest.mark.services
def test_on_ray_the_same_bytes(store, shards, monkeypatch, tmp_path):
    import ray

    bigrams.build(BigramsSpec(), store.path(shards) / "train", tmp_path / "here")
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        monkeypatch.setattr(bigrams, "SPAN_TOKENS", 4 * SLOTS)
        bigrams.build(BigramsSpec(), store.path(shards) / "train", tmp_path / "there")
    finally:
        ray.shutdown()
    for name in (bigrams.KEYS, bigrams.COUNTS):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
