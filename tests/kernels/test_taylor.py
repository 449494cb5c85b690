"""Taylor attention: the quadratic form and the chunk loop against the token-by-token truth."""

import pytest
import torch

from kernels.errors import LayoutError, UnsupportedUse
from kernels.taylor import TaylorState, empty_state, expanded_width, feature_map, forward, taylor, taylor_step
from kernels.taylor.chunked import short
from kernels.taylor.features import augmented, expand
from tests.kernels.agreement import LENGTHS, TOLERANCE, draw, error, with_gradients

B, H, K, V = 2, 3, 5, 4
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


def row(L, dtype=torch.float64, gradient=True):
    return tuple(draw(B, L, H, width, dtype=dtype, seed=seed, gradient=gradient)
                 for seed, width in enumerate((K, K, V)))


def some_state(dtype=torch.float64) -> TaylorState:
    """Sums over a few real tokens: arbitrary numbers would not keep the normaliser positive."""
    _, state = taylor(*row(6, dtype, gradient=False), backend="naive", return_state=True)
    return TaylorState(*(tensor.requires_grad_() for tensor in state))


def test_the_map_gives_the_second_order_kernel():
    q, k = draw(7, K, gradient=False), draw(9, K, seed=1, gradient=False)
    s = 0.3 * q @ k.T
    assert error([feature_map(q, 0.3) @ feature_map(k, 0.3).T], [1 + s + s * s / 2]) <= 1e-12
    assert feature_map(q, 0.3).shape[-1] == expanded_width(K) == 1 + K + K * (K + 1) // 2


def test_one_hot_products_build_the_same_features():
    x = draw(2, 5, 3, K, gradient=False)
    assert error([expand(augmented(x, 0.7))], [feature_map(x, 0.49).transpose(1, 2).flatten(0, 1)]) <= 1e-12


@DTYPES
@pytest.mark.parametrize("L", LENGTHS)
def test_without_a_state(L, dtype):
    leaves = row(L, dtype)
    truth = row(L)
    weights = [draw(B, L, H, V, gradient=False)]
    expected = with_gradients(lambda: [taylor(*truth, backend="naive")], truth, weights)
    for chunk in (None, 16, 128):
        got = with_gradients(lambda chunk=chunk: [taylor(*leaves, chunk=chunk)], leaves, weights)
        assert error(got, expected) <= TOLERANCE[dtype], chunk
    assert short(63, K) and not short(257, K), "both forms are meant to be covered"


@pytest.mark.parametrize("decay", [None, (0.9, 1.0, 0.5)], ids=["plain", "decayed"])
@DTYPES
@pytest.mark.parametrize("L", LENGTHS)
def test_state_in_and_out(L, dtype, decay):
    decay_H = None if decay is None else torch.tensor(decay, dtype=torch.float64)
    lengths_B = torch.tensor([L, L // 2])
    real = (torch.arange(L) < lengths_B[:, None])[..., None, None]
    weights = [draw(B, L, H, V, gradient=False) * real, draw(B, H, 21, V, gradient=False), draw(B, H, 21, gradient=False)]
    results = []
    for kind, chunk, precision in (("naive", None, torch.float64), ("auto", None, dtype), ("auto", 16, dtype)):
        leaves, state = row(L, precision), some_state(precision)

        def call(leaves=leaves, state=state, kind=kind, chunk=chunk):
            y, after = taylor(*leaves, state=state, lengths_B=lengths_B, decay_H=decay_H, chunk=chunk, backend=kind,
                              return_state=True)
            return y * real, *after

        results.append(with_gradients(call, (*leaves, *state), weights))
    for got in results[1:]:
        assert error(got, results[0]) <= TOLERANCE[dtype]


@pytest.mark.parametrize("chunk", [1, 3, 16, 64, 105])
def test_the_chunk_changes_nothing(chunk):
    leaves, state = row(100), some_state()
    results = []
    for size in (100, chunk):
        y, after = taylor(*leaves, state=state, chunk=size, return_state=True)
        results.append([y, *after, *torch.autograd.grad(y.square().sum() + after.z_BHF.sum(), (*leaves, *state))])
    assert error(results[1], results[0]) <= 1e-10


@pytest.mark.parametrize("decay", [None, 0.9], ids=["plain", "decayed"])
@pytest.mark.parametrize("chunk", [None, 2])
def test_gradcheck(chunk, decay):
    decay_H = None if decay is None else torch.tensor([decay], dtype=torch.float64)
    leaves = [draw(2, 5, 1, 2, seed=seed) for seed in range(3)]
    _, before = taylor(*(draw(2, 4, 1, 2, seed=seed, gradient=False) for seed in range(3)), return_state=True)
    lengths_B = torch.tensor([5, 3])

    def flat(q, k, v, kv, z):
        y, after = taylor(q, k, v, state=TaylorState(kv, z), lengths_B=lengths_B, chunk=chunk, decay_H=decay_H,
                          return_state=True)
        return y[:, :3], *after

    assert torch.autograd.gradcheck(flat, (*leaves, *(tensor.requires_grad_() for tensor in before)))
    assert torch.autograd.gradcheck(lambda q, k, v: taylor(q, k, v, chunk=chunk, decay_H=decay_H), leaves)


def test_pads_never_enter_the_state():
    """Masked after the map: a key of zero would still count, since phi(0) is not zero."""
    q, k, v = row(9, gradient=False)
    alone = taylor(q[:, :5], k[:, :5], v[:, :5], return_state=True)[1]
    for filling in (0.0, 1e3):
        padded = [torch.cat((x[:, :5], torch.full_like(x[:, 5:], filling)), 1) for x in (q, k, v)]
        for backend in ("naive", "chunked"):
            _, state = taylor(*padded, lengths_B=torch.tensor([5, 5]), backend=backend, return_state=True)
            assert error(state, alone) <= 1e-12, (filling, backend)
        _, none = taylor(*padded, lengths_B=torch.tensor([0, 0]), return_state=True)
        assert not none.kv_BHFV.any() and not none.z_BHF.any()


@pytest.mark.parametrize("decay", [None, (0.9, 1.0, 0.5)], ids=["plain", "decayed"])
def test_steps_are_the_row(decay):
    decay_H = None if decay is None else torch.tensor(decay, dtype=torch.float64)
    q, k, v = row(7, gradient=False)
    expected, last = taylor(q, k, v, decay_H=decay_H, backend="naive", return_state=True)
    for gradients in (True, False):
        state = empty_state(B, H, K, V, torch.float64)
        first = state.z_BHF
        outputs = []
        with torch.set_grad_enabled(gradients):
            for t in range(7):
                y, state = taylor_step(q[:, t], k[:, t], v[:, t], state, decay_H=decay_H)
                outputs.append(y)
        assert error([torch.stack(outputs, 1), *state], [expected, *last]) <= 1e-12
        assert (state.z_BHF is first) == (not gradients), "in place when gradients are off, and only then"


def test_a_step_has_gradients():
    q, k, v = row(1)
    state = some_state()

    def flat(q, k, v, kv, z):
        y, after = taylor_step(q, k, v, TaylorState(kv, z))
        return y, *after

    assert torch.autograd.gradcheck(flat, (q[:, 0], k[:, 0], v[:, 0], *state))


def test_bfloat16_keeps_float32_sums():
    q, k, v = row(300, torch.bfloat16, gradient=False)
    y, state = taylor(q, k, v, return_state=True)
    assert y.dtype == torch.bfloat16 and state.kv_BHFV.dtype == state.z_BHF.dtype == torch.float32
    expected, truth = taylor(q.double(), k.double(), v.double(), backend="naive", return_state=True)
    assert error([y], [expected]) <= TOLERANCE[torch.bfloat16]
    assert error(state, truth) <= 2e-5


def test_autocast_does_not_round_the_sums():
    q, k, v = row(200, torch.float32, gradient=False)
    expected = taylor(q.double(), k.double(), v.double(), backend="naive")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert error([taylor(q, k, v)], [expected]) <= 2e-5
        assert error([taylor(q, k, v, chunk=64)], [expected]) <= 2e-5


def test_the_scale_is_a_setting():
    q, k, v = row(70, gradient=False)
    halved = taylor(q, k, v, scale=0.5)
    assert error([halved], [taylor(q, k, v, scale=0.5, backend="naive")]) <= 1e-12
    assert error([halved], [taylor(q, k, v)]) > 1e-3


def test_nothing_to_read_gives_nothing():
    q, k, v = row(0, gradient=False)
    y, state = taylor(q, k, v, return_state=True)
    assert y.shape == (B, 0, H, V) and not state.z_BHF.any()
    first, _ = taylor(*row(1, gradient=False), lengths_B=torch.tensor([0, 1]), return_state=True, backend="naive")
    assert not first[0].any()


def test_refusals():
    q, k, v = row(3, gradient=False)
    with pytest.raises(UnsupportedUse, match="taylor: .*backend 'triton'"):
        taylor(q, k, v, backend="triton")
    with pytest.raises(UnsupportedUse, match="unknown backend"):
        taylor(q, k, v, backend="cuda")
    with pytest.raises(LayoutError, match="one shape"):
        taylor(q, k[:, :2], v)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 100])
def test_groups_cover_every_row_and_head_once(monkeypatch, most):
    """How rows and heads are grouped for the cache changes no result."""
    held = 2 * 4 * forward.HELD * expanded_width(K)
    monkeypatch.setattr(forward, "GROUP_BYTES", most * held)
    for rows, heads in ((3, 2), (1, 5), (4, 1)):
        seen = torch.zeros(rows, heads)
        for at in forward.groups(rows, heads, K, 16, torch.float32):
            assert seen[at].numel() <= most or seen[at].numel() == 1
            seen[at] += 1
        assert torch.equal(seen, torch.ones(rows, heads))
    leaves, weights = row(300), [draw(B, 300, H, V, gradient=False)]
    got = with_gradients(lambda: [taylor(*leaves, chunk=16)], leaves, weights)
    monkeypatch.undo()
    assert error(got, with_gradients(lambda: [taylor(*leaves, chunk=16)], leaves, weights)) <= 1e-14


@pytest.mark.parametrize("backend", ["naive", "chunked"])
@pytest.mark.parametrize("wrong", [
    {"lengths_B": torch.tensor([4, 1])}, {"lengths_B": torch.tensor([3, -1])}, {"chunk": 0}, {"chunk": -64},
    {"decay_H": torch.tensor([0.0, 1.0, 0.5])}, {"decay_H": torch.tensor([0.5, 1.1, 0.5])}, {"scale": -1.0}],
    ids=lambda wrong: next(iter(wrong)))
def test_settings_out_of_range(backend, wrong):
    with pytest.raises(LayoutError, match=next(iter(wrong))):
        taylor(*row(3, gradient=False), backend=backend, **wrong)


def test_a_step_refuses_what_does_not_fit():
    q, k, v = (x[:, 0] for x in row(1, torch.float32, gradient=False))
    state = empty_state(B, H, K, V, torch.float32)
    wrong = [
        ((q, k, v), empty_state(1, H, K, V, torch.float32)), ((q, k, v), empty_state(B, H, K, V + 1, torch.float32)),
        ((q, k, v), TaylorState(state.kv_BHFV, state.z_BHF[:, :, 1:])), ((q, k, v), empty_state(B, H, K, V, torch.float64)),
        ((q, k[:1], v), state), ((q, k, v[:, :1]), state), ((q[:, None], k[:, None], v[:, None]), state),
        ((q, k.double(), v), state)]
    for tokens, given in wrong:
        with pytest.raises(LayoutError):
            taylor_step(*tokens, given)
    for settings in ({"scale": -1.0}, {"decay_H": torch.ones(1)}, {"decay_H": torch.zeros(H)}):
        with pytest.raises(LayoutError, match=next(iter(settings))):
            taylor_step(q, k, v, state, **settings)


def test_a_step_from_a_state_that_rows_share():
    """One state expanded over rows is one storage: advanced in place, rows would write over each other."""
    q, k, v = (draw(3, 1, width, seed=seed, gradient=False) for seed, width in enumerate((K, K, V)))
    shared = TaylorState(*(x.expand(3, *x.shape[1:]) for x in empty_state(1, 1, K, V, torch.float64)))
    expected = taylor_step(q, k, v, TaylorState(*(x.clone() for x in shared)))
    with torch.no_grad():
        y, state = taylor_step(q, k, v, shared)
    assert error([y, *state], [expected[0], *expected[1]]) <= 1e-12 and not shared.kv_BHFV.any()
