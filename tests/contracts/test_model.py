"""L18: the laws again for a whole language model with logits, and greedy text."""

import pytest
import torch

from kernels.errors import LayoutError, LengthError, StateError
from kernels.layout import Layout
from models.generate import greedy
from tests.contracts.batches import SIDES, T32, T64, compare_states, error, place, same_states
from tests.contracts.hybrid import VOCABULARY, hybrid

LENGTHS = [13, 1, 5, 9, 24, 7, 0]


def texts(lengths: list[int], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCABULARY, (n,), generator=generator) for n in lengths]


def alone(model, ids: torch.Tensor, M: int = 0) -> torch.Tensor:
    layout = Layout.dense(1, len(ids))
    return model.forward(ids[None], layout.with_prefix(M) if M else layout)[0]


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal"])
@pytest.mark.parametrize("M", [0, 3, 99])
def test_l18_padding_and_batch(M, positions):
    """Any integer may stand at pads; logits there are 0."""
    model, docs = hybrid(positions=positions), texts(LENGTHS)
    expected = [alone(model, doc, M) for doc in docs]
    for side, poison in zip(SIDES, (-100, 10**9, 0)):
        batch = place(docs, side, poison, M)
        logits_BLE = model.forward(batch.x_BLD, batch.layout)
        assert error(batch.collect(logits_BLE), expected) <= T64, side
        pads = ~batch.layout.real_BL
        assert torch.equal(logits_BLE[pads], torch.zeros_like(logits_BLE[pads]))


def test_l18_gradients_do_not_see_padding():
    model, docs = hybrid(), texts([9, 4])
    results = []
    for batches in ([place([doc], "right", 0, 3, spare=0) for doc in docs], [place(docs, "left", -1, 3)]):
        model.zero_grad(set_to_none=True)
        for batch in batches:
            (model.forward(batch.x_BLD, batch.layout).cos() * batch.layout.real_BL[..., None]).sum().backward()
        results.append([p.grad for p in model.parameters() if p.grad is not None])
    assert error(results[1], results[0]) <= T64


@pytest.mark.parametrize("positions", ["none", "learned"])
def test_l18_packing(positions):
    model, docs, own = hybrid(positions=positions), texts([5, 1, 9, 13]), [3, 1, 0, 99]
    layout = Layout.packed([[5, 1, 9], [13]], 16).with_prefix(own)
    ids_BL = torch.full((2, 16), -100)
    ids_BL[0, :15], ids_BL[1, :13] = torch.cat(docs[:3]), docs[3]
    logits_BLE = model.forward(ids_BL, layout)
    got = [*logits_BLE[0, :15].split([5, 1, 9]), logits_BLE[1, :13]]
    assert error(got, [alone(model, doc, M) for doc, M in zip(docs, own)]) <= T64


@torch.no_grad()
def test_l18_causality():
    model, (doc,) = hybrid(), texts([13])
    for M in (0, 4):
        expected = alone(model, doc, M)
        for t in range(max(1, M), 13):
            changed = doc.clone()
            changed[t:] = (changed[t:] + 1 + t) % VOCABULARY
            assert error([alone(model, changed, M)[:t]], [expected[:t]]) <= 1e-12, (M, t)
        changed = doc.clone()
        changed[0] = (changed[0] + 1) % VOCABULARY
        assert error([alone(model, changed, M)[-1:]], [expected[-1:]]) > 1e-6


@pytest.mark.parametrize("positions", ["none", "learned"])
@torch.no_grad()
def test_l18_pieces_are_forward(positions):
    """Prefill returns the logits at each row's last real token; extend all of them, or the last."""
    model, docs = hybrid(positions=positions), texts([11, 3, 6, 24])
    for M in (0, 3, 99):
        first = [4, 1, 3, 20]
        own = [min(M, n) for n in first]
        expected = [alone(model, doc, m) for doc, m in zip(docs, own)]
        start = place([doc[:n] for doc, n in zip(docs, first)], "left", -100, M)
        logits_BE, state = model.prefill(start.x_BLD, start.layout)
        assert error(list(logits_BE), [e[n - 1] for e, n in zip(expected, first)]) <= T64
        more = [5, 0, 1, 2]
        batch = place([doc[n : n + k] for doc, n, k in zip(docs, first, more)], "right", 10**6)
        last_BE, other = model.extend(batch.x_BLD, batch.layout, state.clone())
        logits_BLE, state = model.extend(batch.x_BLD, batch.layout, state, all_logits=True)
        assert compare_states(other, state) == 0
        got = batch.collect(logits_BLE)
        assert error(got, [e[n : n + k] for e, n, k in zip(expected, first, more)]) <= T64
        for row, k in enumerate(more):
            assert error([last_BE[row]], [got[row][-1] if k else torch.zeros(len(last_BE[row]))]) <= T64
        for back in (2, 1):
            logits_BE, state = model.step(torch.stack([doc[-back] for doc in docs]), state)
            assert error(list(logits_BE), [e[-back] for e in expected]) <= T64


@torch.no_grad()
def test_l18_state():
    model, docs = hybrid(), texts([5, 13, 1])
    batch = place(docs, "left", -1, 4)
    _, state = model.prefill(batch.x_BLD, batch.layout)
    before = state.clone()
    # identity
    empty = Layout.right_padded([0, 0, 0], 2)
    logits_BE, state = model.extend(torch.full((3, 2), -5), empty, state)
    assert same_states(state, before) and not logits_BE.any()
    # select and step commute
    rows, ids_B = torch.tensor([2, 2, 0]), torch.tensor([3, 1, 2])
    y_all, after = model.step(ids_B, state.clone())
    y_some, some = model.step(ids_B[rows], state.select(rows))
    assert error([y_some], [y_all[rows]]) <= T64
    assert compare_states(some, after.select(rows)) <= T64
    # cat and tensors
    parts = [state.select(torch.tensor([row])) for row in range(3)]
    joined = type(state).cat(parts)
    assert compare_states(joined, before) == 0
    tensors = {name: tensor.clone() for name, tensor in before.tensors().items()}
    again = model.init_state(3).with_tensors(tensors)
    y_again, _ = model.step(ids_B, again)
    assert torch.equal(y_again, y_all)
    assert same_states(state, before), "steps on copies changed the original"
    # spent
    model.step(ids_B, state)
    with pytest.raises(StateError, match="clone"):
        model.step(ids_B, state)


@torch.no_grad()
def test_l18_bytes():
    model = hybrid(torch.float32)
    for n in (64, 300):
        _, state = model.prefill(torch.zeros(2, n, dtype=torch.int64), Layout.dense(2, n))
        assert state.nbytes == 2 * model.cost(n, torch.float32).state_bytes
    assert model.cost(64, torch.float32).parameters == sum(p.numel() for p in model.parameters())


def test_l18_refusals():
    model = hybrid()
    ids_BL = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(LayoutError):
        model.prefill(ids_BL, Layout.right_padded([3, 0], 3))
    with pytest.raises(LayoutError):
        model.prefill(ids_BL, Layout.packed([[1, 2], [3]], 3))
    with pytest.raises(LayoutError):
        model.forward(ids_BL, Layout.dense(2, 4))
    _, state = model.prefill(ids_BL, Layout.dense(2, 3))
    with pytest.raises(LayoutError):
        model.extend(ids_BL, Layout.dense(2, 3).with_prefix(2), state)
    with pytest.raises(StateError):
        model.step(torch.zeros(3, dtype=torch.int64), state)


@torch.no_grad()
def test_l18_no_position_beyond_the_table():
    """Learned positions never wrap: the model refuses, and says how long it may be."""
    model, limit = hybrid(positions="learned"), 512
    ids_BL = torch.zeros(1, limit + 1, dtype=torch.int64)
    with pytest.raises(LengthError, match="512"):
        model.forward(ids_BL, Layout.dense(1, limit + 1))
    _, state = model.prefill(ids_BL[:, :limit], Layout.dense(1, limit))
    with pytest.raises(LengthError, match="512"):
        model.extend(ids_BL[:, :1], Layout.dense(1, 1), state)
    with pytest.raises(LengthError, match="512"):
        model.step(ids_BL[:, 0], state)


@torch.no_grad()
def slow_greedy(model, prompt: list[int], m: int, new: int) -> list[int]:
    """No state at all: a forward over everything so far for each token."""
    ids = list(prompt)
    for _ in range(new):
        ids.append(int(alone(model, torch.tensor(ids), m)[-1, :VOCABULARY].argmax()))
    return ids[len(prompt) :]


PROMPTS = [text.tolist() for text in texts([7, 1, 13, 2, 24, 5, 9, 3, 11, 6], seed=4)]
NEW = 8


def test_l18_greedy_text_is_that_of_full_forwards():
    model = hybrid()
    prefix = [min(len(prompt), 4 + row) for row, prompt in enumerate(PROMPTS)]
    expected = [slow_greedy(model, prompt, m, NEW) for prompt, m in zip(PROMPTS, prefix)]
    assert greedy(model, PROMPTS, prefix=prefix, maximum_new=NEW, stop=frozenset()) == expected
    assert len({tuple(text) for text in expected}) > 3, "the model repeats itself: nothing is tested"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
def test_l18_greedy_text_is_the_same_in_any_batch_and_order(dtype):
    """Batch 1, 3 and 8; shuffled prompts; rows that stop early leave the batch."""
    model = hybrid(dtype)
    expected = greedy(model, PROMPTS, prefix=None, maximum_new=NEW, stop=frozenset(), batch_rows=1)
    stops = frozenset({text[len(text) // 2] for text in expected[:3]})
    stopped = [next((text[:i] for i, token in enumerate(text) if token in stops), text) for text in expected]
    assert any(len(a) < len(b) for a, b in zip(stopped, expected))
    order = torch.randperm(len(PROMPTS), generator=torch.Generator().manual_seed(0)).tolist()
    for batch_rows in (1, 3, 8):
        assert greedy(model, PROMPTS, prefix=None, maximum_new=NEW, stop=frozenset(), batch_rows=batch_rows) == expected
        shuffled = greedy(model, [PROMPTS[i] for i in order], prefix=None, maximum_new=NEW, stop=stops, batch_rows=batch_rows)
        assert shuffled == [stopped[i] for i in order], batch_rows
    assert greedy(model, PROMPTS, prefix=None, maximum_new=NEW, stop=lambda token: token in stops) == stopped


def test_l18_iterate_starts_like_left_pad_and_differs_later():
    """Its prefix grows with the text until M; past M it is stepping."""
    model = hybrid(prefixed=True)
    M = 10

    def slow_iterate(prompt):
        ids = list(prompt)
        for _ in range(NEW):
            ids.append(int(alone(model, torch.tensor(ids), M)[-1, :VOCABULARY].argmax()))
        return ids[len(prompt) :]

    options = dict(prefix=[M] * len(PROMPTS), maximum_new=NEW, stop=frozenset())
    left = greedy(model, PROMPTS, strategy="left_pad", **options)
    iterate = greedy(model, PROMPTS, strategy="iterate", **options)
    assert iterate == [slow_iterate(prompt) for prompt in PROMPTS]
    assert [text[0] for text in iterate] == [text[0] for text in left]
    assert iterate != left
    for prompt, one, other in zip(PROMPTS, iterate, left):
        if len(prompt) >= M:
            assert one == other


@torch.no_grad()
def test_l18_float32_is_near_float64():
    docs = texts([40, 7])
    batch = place(docs, "left", -1, 5)
    expected = hybrid().forward(batch.x_BLD, batch.layout)
    got = hybrid(torch.float32).forward(batch.x_BLD, batch.layout)
    assert got.dtype == torch.float32
    assert error([got], [expected]) <= 10 * T32
