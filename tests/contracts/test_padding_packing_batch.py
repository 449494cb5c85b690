"""L1 padding, L2 packing, L3 batch: a document's result depends on the document alone."""

import pytest
import torch

from tests.contracts.batches import (
    POISONS,
    SIDES,
    alone,
    cotangents,
    documents,
    error,
    pack,
    place,
    run,
    run_alone,
    sizes,
    tolerance,
)
from tests.contracts.cases import build, every, streaming

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


@DTYPES
@every
def test_l1_padding_does_not_exist(case, dtype):
    mixer = build(case, dtype)
    docs = documents(sizes(case), dtype)
    g = cotangents(docs)
    for M in case.prefixes:
        expected = run_alone(mixer, docs, [M] * len(docs), g)
        for number, side in enumerate(SIDES):
            poisons = list(POISONS) if dtype == torch.float64 and M == case.prefixes[-1] else [list(POISONS)[number]]
            for poison in poisons:
                batch = place(docs, side, POISONS[poison], M)
                got = run(mixer, batch, g)
                assert got.error(expected) <= tolerance(dtype, case), (side, poison, M)
                pads = ~batch.layout.real_BL
                assert torch.equal(got.y_BLD[pads], torch.zeros_like(got.y_BLD[pads])), (side, poison, M)
                assert torch.equal(got.dx_BLD[pads], torch.zeros_like(got.dx_BLD[pads])), (side, poison, M)


@DTYPES
@streaming
@torch.no_grad()
def test_l1_the_state_has_seen_no_pad(case, dtype):
    """Aligned rows hide unmasked pads from y: only the following steps show them."""
    mixer = build(case, dtype)
    docs = documents(sizes(case), dtype)
    following = torch.stack(documents([len(docs)] * 2, dtype, seed=3))
    for M in case.prefixes:
        expected_y, expected_steps = [], []
        for row, doc in enumerate(docs):
            one = alone(doc, M)
            y_BLD, state = mixer.prefill(one.x_BLD, one.layout)
            expected_y.append(y_BLD[0])
            for x_BD in following:
                y_BD, state = mixer.step(x_BD[row : row + 1], state)
                expected_steps.append(y_BD[0])
        for side, poison in zip(SIDES, POISONS.values()):
            batch = place(docs, side, poison, M)
            y_BLD, state = mixer.prefill(batch.x_BLD, batch.layout)
            assert state.count_B.tolist() == [len(doc) for doc in docs]
            assert error(batch.collect(y_BLD), expected_y) <= tolerance(dtype, case), (side, M)
            steps = []
            for x_BD in following:
                y_BD, state = mixer.step(x_BD, state)
                steps.append(y_BD)
            assert error(list(torch.stack(steps, 1).flatten(0, 1)), expected_steps) <= tolerance(dtype, case), (side, M)


@every
def test_l1_long_rows(case):
    """The same for rows long enough for a fast path."""
    mixer = build(case)
    docs = documents([611, 17, 330])
    g = cotangents(docs)
    M = 350 if case.abilities.prefix else 0
    expected = run_alone(mixer, docs, [M] * 3, g)
    assert run(mixer, place(docs, "left", POISONS["nan"], M), g).error(expected) <= tolerance(torch.float64, case)


@every
def test_l2_packed_documents_do_not_meet(case):
    mixer = build(case)
    lengths = [[5, 1, 9], [13], [2 * case.chunk + 1, case.window, 3, case.window + 1], []]
    flat = documents([n for row in lengths for n in row])
    g = cotangents(flat)
    remaining, rows = iter(flat), []
    for row in lengths:
        rows.append([next(remaining) for _ in row])
    own = [3, 99, 2, 5, 0, 99, 1, 4] if case.abilities.prefix else [0] * len(flat)
    expected = run_alone(mixer, flat, own, g)
    for interior in (False, True):
        for poison in POISONS.values():
            batch = pack(rows, own, interior, poison)
            got = run(mixer, batch, g)
            assert got.error(expected) <= tolerance(torch.float64, case), interior
            pads = ~batch.layout.real_BL
            assert not got.y_BLD[pads].any() and not got.dx_BLD[pads].any()


@every
def test_l2_long_packed_rows(case):
    mixer = build(case)
    flat = documents([390, 2, 220])
    g = cotangents(flat)
    own = [100, 1, 400] if case.abilities.prefix else [0] * 3
    assert run(mixer, pack([flat], own), g).error(run_alone(mixer, flat, own, g)) <= tolerance(torch.float64, case)


@DTYPES
@every
def test_l3_a_row_does_not_see_its_batch(case, dtype):
    """Other rows are 100 times larger, of other lengths, and the order is shuffled."""
    mixer = build(case, dtype)
    docs = documents([9, 1, 2 * case.chunk + 1], dtype)
    loud = documents([13, case.window + 1, 7, 24], dtype, seed=2, scale=100.0)
    order = [3, 0, 5, 1, 6, 4, 2]
    for M in case.prefixes:
        g = cotangents(docs)
        expected = run_alone(mixer, docs, [M] * len(docs), g)
        batch = place([(docs + loud)[i] for i in order], "right", 0.0, M)
        everything = run(mixer, batch, [(g + cotangents(loud))[i] for i in order])
        own = [order.index(i) for i in range(len(docs))]
        assert error([everything.y[i] for i in own], expected.y) <= tolerance(dtype, case), M
        assert error([everything.dx[i] for i in own], expected.dx) <= tolerance(dtype, case), M
