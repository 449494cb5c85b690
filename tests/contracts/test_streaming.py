"""L7 split, L8 identity, L9 state: prefill, extend and step are forward in pieces, and a state is a value."""

import pytest
import torch

from kernels.errors import LayoutError, StateError
from kernels.layout import Layout
from tests.contracts.batches import (
    POISONS,
    SIDES,
    T64,
    compare_states,
    cotangents,
    documents,
    error,
    place,
    same_states,
    sizes,
    tolerance,
)
from tests.contracts.cases import WIDTH, build, streaming


def pieces(case, n: int, first: int, seed: int) -> list[int]:
    """Cuts of a row of n tokens: the prefill's size, then sizes around 0, 1, the window and the chunk."""
    generator = torch.Generator().manual_seed(seed)
    around = [0, 1, 3, case.window - 1, case.window + 1, case.chunk - 1, case.chunk + 1]
    cut, left = [first], n - first
    while left > 0:
        size = min(left, around[int(torch.randint(len(around), (1,), generator=generator))])
        cut.append(size)
        left -= size
    return cut


def first_cuts(lengths: list[int], M: int, round: int) -> list[int]:
    """How many tokens each row prefills; over the rounds: 0 or 1, at m, m + 1, n - 1, n, and different per row."""
    cuts = []
    for row, n in enumerate(lengths):
        choice = (round + row) % 5
        m = min(M, n)
        cuts.append([min(1, n), m, min(m + 1, n), max(n - 1, 0), 0 if M == 0 else n][choice])
    return cuts


def stream(mixer, case, docs, M, cuts, seed):
    """Prefill and ragged extends over poisoned batches. Returns outputs per document and the state."""
    plans = [pieces(case, len(doc), first, seed + row) for row, (doc, first) in enumerate(zip(docs, cuts))]
    parts: list[list[torch.Tensor]] = [[] for _ in docs]
    done, state = [0] * len(docs), None
    for round in range(max(map(len, plans))):
        chosen = []
        for row, (plan, doc) in enumerate(zip(plans, docs)):
            size = plan[round] if round < len(plan) else 0
            chosen.append(doc[done[row] : done[row] + size])
            done[row] += size
        side, poison = SIDES[(round + seed) % 3], list(POISONS.values())[(round + seed) % 3]
        batch = place(chosen, side, poison, M if round == 0 else 0, spare=round % 2)
        if round == 0:
            y_BLD, state = mixer.prefill(batch.x_BLD, batch.layout)
        else:
            y_BLD, state = mixer.extend(batch.x_BLD, batch.layout, state)
        pads = ~batch.layout.real_BL
        assert not y_BLD[pads].any()
        for row, part in enumerate(batch.collect(y_BLD)):
            parts[row].append(part)
    return [torch.cat(row) for row in parts], state


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@streaming
@torch.no_grad()
def test_l7_any_split_is_forward(case, dtype):
    mixer = build(case, dtype)
    docs = documents(sizes(case) + [11, 24], dtype)
    lengths = [len(doc) for doc in docs]
    for M in case.prefixes:
        for round in range(5 if dtype == torch.float64 else 2):
            cuts = first_cuts(lengths, M, round)
            own = [min(M, cut) for cut in cuts]  # a split before M closes the prefix there
            whole = place(docs, "right", 0.0, own)
            expected = whole.collect(mixer.forward(whole.x_BLD, whole.layout))
            y_BLD, complete = mixer.prefill(whole.x_BLD, whole.layout)
            assert error(whole.collect(y_BLD), expected) <= tolerance(dtype)
            got, state = stream(mixer, case, docs, M, cuts, seed=round)
            assert error(got, expected) <= tolerance(dtype), (M, cuts)
            assert compare_states(state, complete) <= tolerance(dtype), (M, cuts)


@streaming
@torch.no_grad()
def test_l7_steps_are_forward(case):
    """One token at a time; finished rows are dropped with select."""
    mixer = build(case)
    docs = documents([5, 9, 13, 2 * case.chunk + 1, case.window + 1, 26])
    for M in case.prefixes:
        for first in (0, 1, 3, 5):
            own = [min(M, first)] * len(docs)
            whole = place(docs, "left", 0.0, own)
            expected = whole.collect(mixer.forward(whole.x_BLD, whole.layout))
            start = place([doc[:first] for doc in docs], "left", POISONS["nan"], M)
            y_BLD, state = mixer.prefill(start.x_BLD, start.layout)
            parts = [[y] for y in start.collect(y_BLD)]
            live = list(range(len(docs)))
            for position in range(first, 26):
                keep = [i for i, row in enumerate(live) if len(docs[row]) > position]
                if len(keep) < len(live):
                    live, state = [live[i] for i in keep], state.select(torch.tensor(keep))
                y_BD, state = mixer.step(torch.stack([docs[row][position] for row in live]), state)
                for row, y in zip(live, y_BD):
                    parts[row].append(y[None])
            assert error([torch.cat(row) for row in parts], expected) <= T64, (M, first)


@streaming
@torch.no_grad()
def test_l7_long_rows(case):
    """Pieces of any size against one long forward."""
    mixer = build(case)
    docs = documents([611, 340])
    M = 100 if case.abilities.prefix else 0
    whole = place(docs, "right", 0.0, M)
    expected = whole.collect(mixer.forward(whole.x_BLD, whole.layout))
    _, complete = mixer.prefill(whole.x_BLD, whole.layout)
    start = place([docs[0][:350], docs[1][:111]], "left", POISONS["inf"], M)
    y_BLD, state = mixer.prefill(start.x_BLD, start.layout)
    parts = [[y] for y in start.collect(y_BLD)]
    for (a, b), (c, d) in (((350, 351), (111, 330)), ((351, 611), (330, 340))):
        more = place([docs[0][a:b], docs[1][c:d]], "left", POISONS["nan"])
        y_BLD, state = mixer.extend(more.x_BLD, more.layout, state)
        for row, y in zip(parts, more.collect(y_BLD)):
            row.append(y)
    assert error([torch.cat(row) for row in parts], expected) <= T64
    assert compare_states(state, complete) <= T64


@streaming
def test_l7_gradients_flow_through_the_pieces(case):
    mixer = build(case)
    docs = documents([9, 13])
    g = cotangents(docs)
    M = 3 if case.abilities.prefix else 0
    results = []
    for cut in (None, (4, 7)):
        mixer.zero_grad(set_to_none=True)
        leaves = [doc.clone().requires_grad_() for doc in docs]
        if cut is None:
            whole = place(leaves, "right", 0.0, M)
            outputs = whole.collect(mixer.forward(whole.x_BLD, whole.layout))
        else:
            start = place([doc[:s] for doc, s in zip(leaves, cut)], "left", 0.0, M)
            y_BLD, state = mixer.prefill(start.x_BLD, start.layout)
            more = place([doc[s:-1] for doc, s in zip(leaves, cut)], "left", 0.0)
            z_BLD, state = mixer.extend(more.x_BLD, more.layout, state)
            last_BD, state = mixer.step(torch.stack([doc[-1] for doc in leaves]), state)
            outputs = [torch.cat([*pair, last[None]]) for *pair, last in zip(start.collect(y_BLD), more.collect(z_BLD), last_BD)]
        sum((y * c).sum() for y, c in zip(outputs, g)).backward()
        parameters = [p.grad if p.grad is not None else torch.zeros_like(p) for p in mixer.parameters()]
        results.append([leaf.grad for leaf in leaves] + parameters)
    assert error(results[1], results[0]) <= T64


@streaming
def test_l7_a_prefix_is_not_read_in_pieces(case):
    mixer = build(case)
    (doc,) = documents([6])
    _, state = mixer.prefill(doc[None, :3], Layout.dense(1, 3).with_prefix(3))
    with pytest.raises(LayoutError):
        mixer.extend(doc[None, 3:], Layout.dense(1, 3).with_prefix(2), state)


def prefilled(mixer, case, lengths, M=0, seed=0, dtype=torch.float64):
    batch = place(documents(lengths, dtype, seed), "left", 0.0, M)
    return mixer.prefill(batch.x_BLD, batch.layout)[1]


@streaming
@torch.no_grad()
def test_l8_no_tokens_change_nothing(case):
    mixer = build(case)
    lengths = sizes(case)
    B = len(lengths)
    for M in case.prefixes:
        state = prefilled(mixer, case, lengths, M)
        before = state.clone()
        y_BLD, state = mixer.extend(torch.zeros(B, 0, WIDTH, dtype=torch.float64), Layout.dense(B, 0), state)
        assert y_BLD.shape == (B, 0, WIDTH)
        assert same_states(state, before)
        for poison in POISONS.values():
            x_BLD = torch.full((B, 3, WIDTH), poison, dtype=torch.float64)
            y_BLD, state = mixer.extend(x_BLD, Layout.right_padded([0] * B, 3), state)
            assert not y_BLD.any()
            assert same_states(state, before)


@streaming
@torch.no_grad()
def test_l8_a_row_that_must_not_advance_keeps_its_state(case):
    mixer = build(case)
    lengths = sizes(case)
    state = prefilled(mixer, case, lengths)
    before = state.clone()
    new = documents([2 * (row % 2) for row in range(len(lengths))], seed=4)
    batch = place(new, "left", POISONS["nan"])
    _, state = mixer.extend(batch.x_BLD, batch.layout, state)
    still = torch.arange(0, len(lengths), 2)
    kept, expected = state.select(still).tensors(), before.select(still).tensors()
    for name in expected:
        # an append cache may have grown for the other rows
        common = kept[name][tuple(slice(size) for size in expected[name].shape)]
        assert torch.equal(common, expected[name]), name


@streaming
@torch.no_grad()
def test_l8_step_is_extend_by_one(case):
    mixer = build(case)
    lengths = sizes(case)
    for M in case.prefixes:
        state = prefilled(mixer, case, lengths, M)
        other = state.clone()
        for token in range(3):
            x_BD = torch.stack(documents([len(lengths)], seed=token))[0]
            y_BD, state = mixer.step(x_BD, state)
            y_BLD, other = mixer.extend(x_BD[:, None], Layout.dense(len(lengths), 1), other)
            assert error([y_BD], [y_BLD[:, 0]]) <= T64
            assert compare_states(state, other) <= T64


@streaming
@torch.no_grad()
def test_l8_the_initial_state_is_an_empty_prefill(case):
    mixer = build(case)
    initial = mixer.init_state(2, torch.float64, torch.device("cpu"))
    assert initial.count_B.tolist() == [0, 0] and initial.count_B.dtype == torch.int64
    _, empty = mixer.prefill(torch.zeros(2, 0, WIDTH, dtype=torch.float64), Layout.dense(2, 0))
    assert compare_states(empty, initial) == 0
    docs = documents([7, 7])
    y_BLD, state = mixer.extend(torch.stack(docs), Layout.dense(2, 7), initial)
    expected, complete = mixer.prefill(torch.stack(docs), Layout.dense(2, 7))
    assert error([y_BLD], [expected]) <= T64
    assert compare_states(state, complete) <= T64


@streaming
@torch.no_grad()
def test_l9_select_and_step_commute(case):
    mixer = build(case)
    lengths = sizes(case)
    rows = torch.tensor([3, 0, 3, len(lengths) - 1, 1])
    x_BD = documents([len(lengths)], seed=9)[0]
    M = case.prefixes[-1]
    a = prefilled(mixer, case, lengths, M)
    b = a.clone().select(rows)
    assert b.count_B.tolist() == [lengths[row] for row in rows]
    for _ in range(case.window + 1):
        y_all, a = mixer.step(x_BD, a)
        y_chosen, b = mixer.step(x_BD[rows], b)
        assert error([y_chosen], [y_all[rows]]) <= T64
    assert compare_states(b, a.select(rows)) <= T64


@streaming
@torch.no_grad()
def test_l9_cat_puts_rows_together(case):
    mixer = build(case)
    a, b = prefilled(mixer, case, [5, 9]), prefilled(mixer, case, [1, 24, 0], seed=1)
    x_BD = documents([5], seed=9)[0]
    joined = type(a).cat([a.clone(), b.clone()])
    assert joined.count_B.tolist() == [5, 9, 1, 24, 0]
    for _ in range(3):
        y_a, a = mixer.step(x_BD[:2], a)
        y_b, b = mixer.step(x_BD[2:], b)
        y, joined = mixer.step(x_BD, joined)
        assert error([y], [torch.cat([y_a, y_b])]) <= T64


@streaming
@torch.no_grad()
def test_l9_a_clone_is_independent(case):
    mixer = build(case)
    state = prefilled(mixer, case, [5, 9])
    untouched = {name: tensor.clone() for name, tensor in state.tensors().items()}

    def unchanged() -> bool:
        return all(torch.equal(tensor, untouched[name]) for name, tensor in state.tensors().items())

    x_BD = documents([2], seed=9)[0]
    copies = (state.clone(), state.detach(), state.to(torch.device("cpu")), state.select([0, 1]), type(state).cat([state]))
    for copied in copies:
        for _ in range(case.window + 1):
            _, copied = mixer.step(x_BD, copied)
        assert unchanged(), "a copy shares memory with the original"


@streaming
@torch.no_grad()
def test_l9_a_spent_state_raises(case):
    mixer = build(case)
    state = prefilled(mixer, case, [5, 9])
    x_BD = documents([2], seed=9)[0]
    mixer.step(x_BD, state)
    with pytest.raises(StateError, match="clone"):
        mixer.step(x_BD, state)
    with pytest.raises(StateError, match="clone"):
        mixer.extend(x_BD[:, None], Layout.dense(2, 1), state)
    state = prefilled(mixer, case, [5, 9])
    mixer.extend(x_BD[:, None], Layout.dense(2, 1), state)
    with pytest.raises(StateError, match="clone"):
        mixer.step(x_BD, state)


@streaming
@torch.no_grad()
def test_l9_a_state_of_another_batch_or_dtype_raises(case):
    mixer = build(case)
    with pytest.raises(StateError):
        mixer.step(documents([3])[0], prefilled(mixer, case, [5, 9]))
    with pytest.raises(StateError):
        build(case, torch.float32).step(documents([2], torch.float32)[0], prefilled(mixer, case, [5, 9]))


@streaming
@torch.no_grad()
def test_l9_round_trip_through_tensors(case):
    mixer = build(case)
    state = prefilled(mixer, case, [5, 9], case.prefixes[-1])
    tensors = {name: tensor.clone() for name, tensor in state.tensors().items()}
    assert all(isinstance(name, str) for name in tensors)
    again = mixer.init_state(2, torch.float64, torch.device("cpu")).with_tensors(tensors)
    assert same_states(again, state)
    x_BD = documents([2], seed=9)[0]
    for _ in range(2):
        y, state = mixer.step(x_BD, state)
        z, again = mixer.step(x_BD, again)
        assert torch.equal(y, z)
