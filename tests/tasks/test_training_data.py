"""Row order and masks are functions of the step alone: over workers, micro-batches, restarts and epochs."""

from collections import Counter

import numpy as np
import pytest
import torch

from storage.artifacts import Store
from storage.errors import ArtifactError, LayoutError, SpecError
from storage.shards import ShardWriter, TokenShards
from tasks.specs import ObjectiveSpec, TrainSpec
from tasks.training.data import Objective, RowBatches, ShardBatches, resolve_objective
from tests.tasks.training_artifacts import ROWS_SCHEMA, rows_artifact, shards_artifact, write_rows

ROWS, SLOTS = 40, 32


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def shards(store):
    return store.path(shards_artifact(store, ROWS, SLOTS))


@pytest.fixture(scope="module")
def rows(store):
    return store.path(rows_artifact(store))


def objective(kind, reads_prefix=True, seed=0, **fields):
    return Objective(kind, reads_prefix, 257, seed, ObjectiveSpec(**fields))


def open_shards(shards, worker=0, workers=1, micro=4, kind="prefix_lm", **options):
    return ShardBatches(shards, objective(kind, kind == "prefix_lm", **options), global_rows=8, micro_rows=micro,
                        worker=worker, workers=workers)


def pieces(batches):
    """Every row of some batches as (inputs, targets by term, prefix), in a form that can be counted."""
    found = []
    for batch in batches:
        B, L = batch.ids_BL.shape
        prefixes = [[] for _ in range(B)]
        for row, length, prefix in batch.layout.documents:
            prefixes[row].append((length, prefix))
        for row in range(B):
            terms = tuple((name, tuple((int(i) % L, int(t)) for i, t in zip(term.index_S, term.target_S)
                                       if int(i) // L == row)) for name, term in sorted(batch.terms.items()))
            found.append((tuple(batch.ids_BL[row].tolist()), terms, tuple(prefixes[row])))
    return found


# ------------------------------------------------------------------------------------------------------------ shards
@pytest.mark.parametrize("kind", ["prefix_lm", "next_token"])
def test_a_step_reads_the_same_rows_with_the_same_masks_for_every_world_size(shards, kind):
    for step in (0, 3, 4, 7):  # 40 rows are 5 steps: the second epoch has begun
        whole = pieces(open_shards(shards, kind=kind, micro=8).micro_batches(step))
        for workers, micro in ((1, 4), (1, 1), (2, 4), (2, 2), (4, 2), (8, 1)):
            shared = [piece for worker in range(workers)
                      for piece in pieces(open_shards(shards, worker, workers, micro, kind).micro_batches(step))]
            assert Counter(shared) == Counter(whole), (step, workers, micro)


@pytest.mark.parametrize("workers, micro", [(3, 1), (1, 3), (4, 4)])
def test_a_world_size_that_does_not_divide_is_refused(shards, workers, micro):
    with pytest.raises(SpecError, match=f"global_batch_rows 8 is not a multiple .* {micro} x {workers}"):
        open_shards(shards, workers=workers, micro=micro)


def test_no_row_repeats_before_an_epoch_ends_whatever_the_interruptions(shards):
    """The cursor is (steps × rows); every restart is a new object that goes on from a step."""
    rng, seen, step = np.random.default_rng(0), [], 0
    while step < 10:
        source = open_shards(shards)
        for _ in range(int(rng.integers(1, 4))):
            if step < 10:
                epochs, rows = source.rows_of(step)
                seen += zip(epochs.tolist(), rows.tolist())
                step += 1
                assert source.rows_before(step) == len(seen)
                assert source.tokens_before(step) == len(seen) * SLOTS
    assert sorted(seen) == [(epoch, row) for epoch in (0, 1) for row in range(ROWS)]
    assert [row for epoch, row in seen if epoch == 0] != [row for epoch, row in seen if epoch == 1]


def test_order_and_masks_follow_the_seed(shards):
    first, again, other = (open_shards(shards, seed=seed) for seed in (0, 0, 1))
    assert pieces(first.micro_batches(2)) == pieces(again.micro_batches(2)) != pieces(other.micro_batches(2))
    assert sorted(first.rows_of(0)[1]) != list(range(8))


def test_a_row_gets_other_masks_in_the_next_epoch(shards):
    source, inputs = open_shards(shards), {}
    for step in range(10):
        for epoch, row, piece in zip(*source.rows_of(step), pieces(source.micro_batches(step))):
            inputs[int(epoch), int(row)] = piece[0]
    assert sum(inputs[0, row] == inputs[1, row] for row in range(ROWS)) < ROWS / 4


def test_document_boundaries_reach_the_layout(shards):
    packed = open_shards(shards).micro_batches(0)[0]
    row = int(open_shards(shards).rows_of(0)[1][0])
    starts = TokenShards(shards / "train").starts(row)
    inside = [int(s) for s in starts if 0 < s < SLOTS]
    assert [n for b, n, _ in packed.layout.documents if b == 0] == np.diff([0, *inside, SLOTS]).tolist()
    dense = open_shards(shards, document_boundaries=False).micro_batches(0)[0]
    assert not dense.layout.packed and {m for _, _, m in dense.layout.documents} == {SLOTS // 2}


def test_validation_asks_every_model_for_the_same_targets(shards):
    prefix = open_shards(shards).validation(2)
    causal = open_shards(shards, kind="next_token").validation(2)
    assert [len(batch.ids_BL) for batch in prefix] == [4, 2] and len(open_shards(shards).validation(1)) == 1
    for a, b in zip(prefix, causal):
        assert list(a.terms) == list(b.terms) == ["next"]
        assert torch.equal(a.terms["next"].index_S, b.terms["next"].index_S)
        assert torch.equal(a.ids_BL, b.ids_BL) and a.layout.prefixed and not b.layout.prefixed
        assert int((a.terms["next"].index_S % SLOTS).min()) >= SLOTS // 2


# -------------------------------------------------------------------------------------------------------------- rows
def test_every_architecture_reads_the_same_rows_and_answers(rows):
    causal = RowBatches(rows, objective("answers", reads_prefix=False))
    prefix = RowBatches(rows, objective("answers"))
    for step in range(14):
        (a,), (b,) = causal.micro_batches(step), prefix.micro_batches(step)
        assert torch.equal(a.terms["answer"].index_S, b.terms["answer"].index_S)
        assert torch.equal(a.terms["answer"].target_S, b.terms["answer"].target_S)
        kept = b.ids_BL != 257
        assert torch.equal(a.ids_BL[kept], b.ids_BL[kept]) and a.tokens == b.tokens
        assert set(a.terms) == {"answer", "document"} and set(b.terms) == {"answer", "masked"}


def test_answers_are_the_value_bytes_of_the_row(rows):
    batch = RowBatches(rows, objective("answers", reads_prefix=False)).micro_batches(0)[0]
    text = bytes(batch.terms["answer"].target_S.tolist()).decode()
    assert all(len(line) == 3 and line.isdigit() for line in text.split("\n")[:-1])


def test_rows_cursor_and_epochs(rows):
    source = RowBatches(rows, objective("answers"))
    assert len(source) == 12
    seen = tokens = 0
    for step in range(30):
        assert (source.rows_before(step), source.tokens_before(step)) == (seen, tokens)
        assert sum(source.lengths_before(step).values()) == seen
        assert sum((n + 1) * rows for n, rows in source.lengths_before(step).items()) == tokens
        seen += len(source.rows_of(step))
        tokens += source.micro_batches(step)[0].tokens
    first, second = source.micro_batches(3)[0], source.micro_batches(15)[0]
    assert torch.equal(first.terms["answer"].index_S, second.terms["answer"].index_S)
    assert not torch.equal(first.ids_BL, second.ids_BL), "an epoch later the masks are others"


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_share_a_batch_of_rows(rows, workers):
    def content(batch):
        L = batch.ids_BL.shape[1]
        return Counter((tuple(batch.ids_BL[b, :n].tolist()), m, tuple(sorted(
            (name, int(i) % L, int(t)) for name, term in batch.terms.items()
            for i, t in zip(term.index_S, term.target_S) if int(i) // L == b)))
            for b, n, m in batch.layout.documents)

    whole = content(RowBatches(rows, objective("answers")).micro_batches(5)[0])
    shared = Counter()
    for worker in range(workers):
        shared += content(RowBatches(rows, objective("answers"), worker=worker, workers=workers).micro_batches(5)[0])
    assert shared == whole


def test_more_workers_than_rows_of_a_batch_are_refused(rows):
    with pytest.raises(SpecError, match="5 workers cannot share.* has only 4"):
        RowBatches(rows, objective("answers"), workers=5)


def test_validation_rows_have_no_masks_and_answers_only(rows):
    found = RowBatches(rows, objective("answers")).validation(2)
    assert len(found) == 2 and all(list(batch.terms) == ["answer"] for batch in found)
    assert all((batch.ids_BL != 257).all() for batch in found)


def test_tables_that_cannot_be_trained_on_are_refused(tmp_path):
    with ShardWriter(tmp_path / "train.arrow", ROWS_SCHEMA) as writer:
        for batch in (0, 1, 0):
            writer.append({"ids": [1, 2, 3], "prefix": 1, "answers": [1], "order": "", "form": "", "batch": batch,
                           "document": ""})
    with pytest.raises(ArtifactError, match="rows of one batch are not neighbours"):
        RowBatches(tmp_path, objective("answers"))
    with ShardWriter(tmp_path / "train.arrow", ROWS_SCHEMA) as writer:
        writer.append({"ids": [1, 2, 3, 4], "prefix": 4, "answers": [1], "order": "", "form": "", "batch": 0,
                       "document": ""})
    with pytest.raises(LayoutError, match="slot 1, but its prefix has 4"):
        RowBatches(tmp_path, objective("answers")).micro_batches(0)
    with ShardWriter(tmp_path / "train.arrow", ROWS_SCHEMA):
        pass
    with pytest.raises(ArtifactError, match="holds no rows"):
        RowBatches(tmp_path, objective("answers"))


def test_no_validation_table_is_no_validation(tmp_path):
    write_rows(tmp_path / "train.arrow", 2, seed=0)
    assert RowBatches(tmp_path, objective("answers")).validation(5) == []


# --------------------------------------------------------------------------------------------------------- objective
@pytest.mark.parametrize("data, kind, reads_prefix, expected", [
    ("rows", "auto", True, "answers"), ("rows", "auto", False, "answers"), ("shards", "auto", True, "prefix_lm"),
    ("shards", "auto", False, "next_token"), ("shards", "next_token", True, "next_token")])
def test_auto_objective(data, kind, reads_prefix, expected):
    train = TrainSpec(data=data, steps=1, objective={"kind": kind}, micro_batch_rows=1)
    assert resolve_objective(train, reads_prefix, 1, 0).kind == expected


@pytest.mark.parametrize("data, kind, message", [
    ("rows", "next_token", "does not fit data 'rows'; use answers"),
    ("shards", "answers", "does not fit data 'shards'; use prefix_lm or next_token"),
    ("shards", "prefix_lm", "needs a model with a prefix mixer")])
def test_objectives_that_do_not_fit(data, kind, message):
    with pytest.raises(SpecError, match=message):
        resolve_objective(TrainSpec(data=data, steps=1, objective={"kind": kind}), False, 1, 0)
