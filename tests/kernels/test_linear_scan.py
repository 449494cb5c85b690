"""Linear attention: the chunk loop, the two-sided form and the step against the token-by-token truth; the feature maps."""

import math

import pytest
import torch

from kernels.errors import LayoutError, UnsupportedUse
from kernels.linear_scan import ScanState, empty_state, features, linear_scan, linear_step
from kernels.linear_scan.chunked import SHORT
from tests.kernels.agreement import LENGTHS, TOLERANCE, draw, error, with_gradients

B, H, F, V = 2, 3, 5, 4
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
# sums of signed weights pass near zero: the floor is high enough that float32 can be compared
SETTINGS = {"eps": {}, "published": {"eps": 1e-2}, "floor": {"floor": 3.0}, "sum": {"normalise": False}}
ALL_SETTINGS = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
CAUSAL = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])


def row(L, dtype=torch.float64, gradient=True, signed=False, seed=0, M=None):
    """q, k of non-negative features (or signed ones) and v."""
    M = L if M is None else M
    q, k, v = (draw(B, n, H, width, seed=seed + i, gradient=False) for i, (n, width) in enumerate(((L, F), (M, F), (M, V))))
    return tuple(x.to(dtype).requires_grad_(gradient) for x in ((q, k, v) if signed else (q.abs(), k.abs(), v)))


def some_state(dtype=torch.float64, signed=False) -> ScanState:
    _, state = linear_scan(*row(6, dtype, gradient=False, signed=signed, seed=9), backend="naive", return_state=True)
    return ScanState(*(tensor.requires_grad_() for tensor in state))


def test_a_row_by_hand():
    """Weights 2, then 2 and 3 under the query (2, 1): values 1 and 5 give 1 and 17/5."""
    q = torch.tensor([[2.0, 1.0], [2.0, 1.0]]).view(1, 2, 1, 2)
    k = torch.tensor([[1.0, 0.0], [1.0, 1.0]]).view(1, 2, 1, 2)
    v = torch.tensor([1.0, 5.0]).view(1, 2, 1, 1)
    for backend in ("naive", "chunked"):
        assert linear_scan(q, k, v, backend=backend).flatten().tolist() == pytest.approx([1.0, 17 / 5])
        assert linear_scan(q, k, v, causal=False, backend=backend).flatten().tolist() == pytest.approx([17 / 5, 17 / 5])
        assert linear_scan(q, k, v, normalise=False, backend=backend).flatten().tolist() == pytest.approx([2.0, 17.0])
        assert linear_scan(q, k, v, floor=4.0, backend=backend).flatten().tolist() == pytest.approx([0.5, 17 / 5])
        assert linear_scan(-q, k, v, floor=4.0, backend=backend).flatten().tolist() == pytest.approx([0.5, 17 / 5])


@ALL_SETTINGS
@DTYPES
@pytest.mark.parametrize("L", LENGTHS)
def test_without_a_state(L, dtype, settings):
    signed = "floor" in settings
    truth, leaves, weights = row(L, signed=signed), row(L, dtype, signed=signed), [draw(B, L, H, V, gradient=False)]
    expected = with_gradients(lambda: [linear_scan(*truth, backend="naive", **settings)], truth, weights)
    for chunk in (None, 16, 128):
        got = with_gradients(lambda chunk=chunk: [linear_scan(*leaves, chunk=chunk, **settings)], leaves, weights)
        assert error(got, expected) <= TOLERANCE[dtype], chunk
    with torch.no_grad():
        assert error([linear_scan(*leaves, **settings)], expected[:1]) <= TOLERANCE[dtype]
    assert 100 <= SHORT < 257, "both forms are meant to be covered"


@ALL_SETTINGS
@CAUSAL
@DTYPES
@pytest.mark.parametrize("L", LENGTHS)
def test_state_in_and_out(L, dtype, causal, settings):
    signed = "floor" in settings
    lengths_B = torch.tensor([L, L // 2])
    real = (torch.arange(L) < lengths_B[:, None])[..., None, None] if causal else torch.ones(1)
    weights = [draw(B, L, H, V, gradient=False) * real, draw(B, H, F, V, gradient=False), draw(B, H, F, gradient=False)]
    results, values = [], []
    for kind, chunk, precision in (("naive", None, torch.float64), ("auto", None, dtype), ("auto", 16, dtype)):
        leaves, state = row(L, precision, signed=signed), some_state(precision, signed=signed)

        def call(leaves=leaves, state=state, kind=kind, chunk=chunk):
            y, after = linear_scan(*leaves, causal=causal, state=state, lengths_B=lengths_B, chunk=chunk, backend=kind,
                                   return_state=True, **settings)
            return y * real, *after

        results.append(with_gradients(call, (*leaves, *state), weights))
        with torch.no_grad():
            values.append([tensor.clone() for tensor in call(state=ScanState(*(tensor.clone() for tensor in state)))])
    for got, value in zip(results[1:], values[1:]):
        assert error(got, results[0]) <= TOLERANCE[dtype]
        assert error(value, values[0]) <= TOLERANCE[dtype]


@DTYPES
@pytest.mark.parametrize("L, M", [(1, 70), (70, 1), (9, 0), (0, 9), (300, 290)])
def test_two_sided_rows_of_other_lengths(L, M, dtype):
    lengths_B = torch.tensor([M, M // 3])
    truth, leaves = row(L, M=M), row(L, dtype, M=M)
    results = []
    for backend, inputs in (("naive", truth), ("auto", leaves)):
        y, state = linear_scan(*inputs, causal=False, lengths_B=lengths_B, backend=backend, return_state=True)
        gradients = torch.autograd.grad(y.square().sum() + state.kv_BHFV.square().sum(), inputs, allow_unused=True)
        results.append([y, *state, *(torch.zeros(1) if g is None else g for g in gradients if g is None or g.numel())])
        with torch.no_grad():
            again = linear_scan(*inputs, causal=False, lengths_B=lengths_B, backend=backend)
            assert again.shape == (B, L, H, V) and (L == 0 or error([again], [y]) <= TOLERANCE[dtype] or not y.any())
    if M:
        assert error([t for t in results[1] if t.numel() > 1], [t for t in results[0] if t.numel() > 1]) <= TOLERANCE[dtype]
    else:
        assert not results[1][0].any() and results[1][0].shape == (B, L, H, V)


def test_a_memory_can_be_read_later():
    """Sums of a context, kept, and read by any number of queries with no further key."""
    q, k, v = row(7, M=40, gradient=False)
    whole = linear_scan(q, k, v, causal=False)
    _, memory = linear_scan(q[:, :0], k, v, causal=False, return_state=True)
    assert error([linear_scan(q, k[:, :0], v[:, :0], causal=False, state=memory)], [whole]) <= 1e-12


@pytest.mark.parametrize("chunk", [1, 3, 16, 64, 105])
def test_the_chunk_changes_nothing(chunk):
    leaves, state = row(100), some_state()
    results = []
    for size in (100, chunk):
        y, after = linear_scan(*leaves, state=state, chunk=size, return_state=True)
        results.append([y, *after, *torch.autograd.grad(y.square().sum() + after.z_BHF.sum(), (*leaves, *state))])
    assert error(results[1], results[0]) <= 1e-10


@ALL_SETTINGS
@CAUSAL
@pytest.mark.parametrize("chunk", [None, 2])
def test_gradcheck(chunk, causal, settings):
    leaves = [draw(2, 5, 1, 2, seed=seed) for seed in range(3)]
    if "floor" not in settings:
        leaves = [*(x.detach().abs().requires_grad_() for x in leaves[:2]), leaves[2]]
    _, before = linear_scan(*(x.detach()[:, :4] for x in leaves), return_state=True)
    lengths_B = torch.tensor([5, 3])

    def flat(q, k, v, kv, z):
        y, after = linear_scan(q, k, v, causal=causal, state=ScanState(kv, z), lengths_B=lengths_B, chunk=chunk,
                               return_state=True, **settings)
        return y[:, :3], *after

    assert torch.autograd.gradcheck(flat, (*leaves, *(tensor.requires_grad_() for tensor in before)))
    assert torch.autograd.gradcheck(lambda *x: linear_scan(*x, causal=causal, chunk=chunk, **settings), leaves)


def test_only_the_state_may_be_asked_for_its_gradient():
    leaves = row(70)
    results = []
    for backend in ("naive", "auto"):
        _, after = linear_scan(*leaves, backend=backend, return_state=True)
        results.append(torch.autograd.grad(after.kv_BHFV.square().sum(), leaves[1:]))
    assert error(results[1], results[0]) <= 1e-10


@CAUSAL
@pytest.mark.parametrize("filling", [0.0, 1e3])
def test_pads_never_enter(filling, causal):
    """Features of pads are left out after the map, whatever a map makes of them."""
    q, k, v = row(9, gradient=False)
    alone, after = linear_scan(q[:, :5], k[:, :5], v[:, :5], causal=causal, return_state=True)
    padded = [torch.cat((x[:, :5], torch.full_like(x[:, 5:], filling)), 1) for x in (q, k, v)]
    for backend in ("naive", "chunked"):
        y, state = linear_scan(
            *padded, causal=causal, lengths_B=torch.tensor([5, 5]), backend=backend, return_state=True)
        assert error([y[:, :5], *state], [alone, *after]) <= 1e-12
    none, nothing = linear_scan(*padded, causal=causal, lengths_B=torch.tensor([0, 0]), return_state=True)
    assert not nothing.kv_BHFV.any() and not nothing.z_BHF.any() and none.isfinite().all()
    assert causal or not none.any(), "no key gives 0"


@pytest.mark.parametrize("L", [70, 300])
def test_the_future_has_no_say(L):
    q, k, v = row(L, gradient=False)
    later = [torch.cat((x[:, : L - 5], x[:, L - 5 :] * 50), 1) for x in (q, k, v)]
    assert torch.equal(linear_scan(q, k, v)[:, : L - 5], linear_scan(*later)[:, : L - 5])


@ALL_SETTINGS
def test_steps_are_the_row(settings):
    q, k, v = row(7, gradient=False, signed="floor" in settings)
    expected, last = linear_scan(q, k, v, backend="naive", return_state=True, **settings)
    for gradients in (True, False):
        state = empty_state(B, H, F, V, torch.float64)
        first = state.z_BHF
        outputs = []
        with torch.set_grad_enabled(gradients):
            for t in range(7):
                y, state = linear_step(q[:, t], k[:, t], v[:, t], state, **settings)
                outputs.append(y)
        assert error([torch.stack(outputs, 1), *state], [expected, *last]) <= 1e-12
        assert (state.z_BHF is first) == (not gradients), "in place when gradients are off, and only then"


def test_a_step_has_gradients():
    q, k, v = row(1)

    def flat(q, k, v, kv, z):
        y, after = linear_step(q, k, v, ScanState(kv, z))
        return y, *after

    assert torch.autograd.gradcheck(flat, (q[:, 0], k[:, 0], v[:, 0], *some_state()))


def test_bfloat16_keeps_float32_sums():
    q, k, v = row(300, torch.bfloat16, gradient=False)
    y, state = linear_scan(q, k, v, return_state=True)
    assert y.dtype == torch.bfloat16 and state.kv_BHFV.dtype == state.z_BHF.dtype == torch.float32
    expected, truth = linear_scan(q.double(), k.double(), v.double(), backend="naive", return_state=True)
    assert error([y], [expected]) <= TOLERANCE[torch.bfloat16]
    assert error(state, truth) <= 2e-5
    state = empty_state(B, H, F, V, torch.bfloat16)
    for t in range(300):
        y, state = linear_step(q[:, t], k[:, t], v[:, t], state)
    assert y.dtype == torch.bfloat16 and error(state, truth) <= 2e-5


def test_features_may_be_wider_than_values():
    """Features in float32 over bfloat16 values: the output has the values' type, gradients their own."""
    q, k, v = row(150, torch.float32)
    v = v.detach().bfloat16().requires_grad_()
    for causal in (True, False):
        y = linear_scan(q, k, v, causal=causal)
        assert y.dtype == torch.bfloat16
        assert [g.dtype for g in torch.autograd.grad(y.sum(), (q, k, v))] == [torch.float32, torch.float32, torch.bfloat16]


@CAUSAL
def test_autocast_does_not_round_the_sums(causal):
    q, k, v = leaves = row(200, torch.float32)
    truth = row(200)
    expected = with_gradients(
        lambda: [linear_scan(*truth, causal=causal, backend="naive")], truth, [torch.ones(B, 200, H, V)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = with_gradients(lambda: [linear_scan(*leaves, causal=causal)], leaves, [torch.ones(B, 200, H, V)])
        assert error(got, expected) <= 2e-5
        with torch.no_grad():
            assert error([linear_scan(q, k, v, causal=causal, chunk=64)], expected[:1]) <= 2e-5


def test_long_sums_in_float32():
    L = 131_072
    q, k, v = (draw(1, L, 1, 4, gradient=False, seed=seed) for seed in range(3))
    q, k, v = q.abs(), k.abs(), v + 1
    truth = (k[0, :, 0].T @ v[0, :, 0], k[0, :, 0].sum(0))
    for causal in (True, False):
        y, state = linear_scan(q.float(), k.float(), v.float(), causal=causal, return_state=True)
        assert error([state.kv_BHFV[0, 0], state.z_BHF[0, 0]], truth) <= 2e-5
        last = q[0, -1, 0] @ truth[0] / (q[0, -1, 0] @ truth[1])
        assert error([y[0, -1, 0]], [last]) <= 2e-5


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
def test_sums_and_gradients_of_131072_tokens_in_float32(causal):
    """Features about a mean of 1, in float32 and float64: a chunk's sum is rounded into the long one as a whole."""
    given = [draw(1, 131_072, 1, width, seed=seed, gradient=False).float().sin() + 1.2 for seed, width in enumerate((4, 4, 3))]
    results = []
    for dtype in (torch.float32, torch.float64):
        q, k, v = leaves = [x.to(dtype).requires_grad_() for x in given]
        y, state = linear_scan(q, k, v, causal=causal, return_state=True)
        with torch.no_grad():
            _, alone = linear_scan(q, k, v, causal=causal, return_state=True)
        gradients = torch.autograd.grad((y.square()).sum() + (state.z_BHF * 1e-3).sum(), leaves[2:])
        results.append([y, *state, *alone, *gradients])
    for got, expected in zip(*results):
        assert error([got], [expected]) <= 5e-6


@pytest.mark.parametrize("grads", [True, False], ids=["grads", "no grads"])
@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_the_output_has_the_values_dtype(backend, grads):
    types = (torch.float64, torch.float32, torch.bfloat16)
    for features_dtype in types:
        for dtype in types:
            q, k, v = (x.to(t).requires_grad_(grads) for x, t in zip(
                row(5, gradient=False), (features_dtype, features_dtype, dtype)))
            y = linear_scan(q, k, v, backend=backend)
            assert y.dtype == dtype
            assert linear_scan(q[:, :0], k[:, :0], v[:, :0], backend=backend).dtype == dtype
            if grads:
                assert torch.autograd.grad(y.sum(), v)[0].dtype == dtype


def test_large_inputs_stay_finite():
    q, k, v = (x * 1e3 for x in row(200, torch.float32, gradient=False))
    for causal in (True, False):
        y, state = linear_scan(q, k, v, causal=causal, return_state=True)
        expected = linear_scan(q.double(), k.double(), v.double(), causal=causal, backend="naive")
        assert y.isfinite().all() and state.kv_BHFV.isfinite().all() and error([y], [expected]) <= 2e-5


def test_a_row_without_weight_gives_nothing():
    q, k, v = row(5, gradient=False)
    for settings in SETTINGS.values():
        assert not linear_scan(q * 0, k, v, **settings).any()
        assert not linear_scan(q, k * 0, v, causal=False, **settings).any()


def test_empty_batches():
    for shape in ((B, 0), (0, 5), (0, 0)):
        q, k, v = (torch.zeros(*shape, H, width) for width in (F, F, V))
        for causal in (True, False):
            y, state = linear_scan(q, k, v, causal=causal, return_state=True)
            assert y.shape == (*shape, H, V) and state.kv_BHFV.shape == (shape[0], H, F, V) and not state.z_BHF.any()


def test_refusals():
    q, k, v = row(3, gradient=False)
    with pytest.raises(UnsupportedUse, match="linear_scan: no backend 'triton'"):
        linear_scan(q, k, v, backend="triton")
    with pytest.raises(LayoutError, match=r"expected q \(B, L, H, F\)"):
        linear_scan(q, k[..., :2], v)
    with pytest.raises(LayoutError, match="as many queries as keys"):
        linear_scan(q, k[:, :2], v[:, :2])
    with pytest.raises(LayoutError, match="expected sums of shape"):
        linear_scan(q, k, v, state=empty_state(B, H, F + 1, V, torch.float64))
    with pytest.raises(LayoutError, match="expected sums in float64"):
        linear_scan(q, k, v, state=empty_state(B, H, F, V, torch.float32))
    with pytest.raises(LayoutError, match="floor is 0"):
        linear_scan(q, k, v, floor=0.0)


MAPS = {
    "elu1": features.elu1, "relu": features.relu, "dpfp": features.dpfp, "squares": features.squares,
    "relu_projected": lambda x: features.relu_projected(x, projection(x)),
    "favor_plus, queries": lambda x: features.favor_plus(x, projection(x), own_maximum=True),
    "favor_plus, keys": lambda x: features.favor_plus(x, projection(x), eps=1e-4),
    "random_fourier": lambda x: features.random_fourier(x, projection(x)),
    "cosine_weighted": lambda x: features.cosine_weighted(x, torch.arange(1, x.shape[1] + 1), 64),
}


def projection(x, J=7):
    return draw(x.shape[2], J, x.shape[3], gradient=False).to(torch.promote_types(x.dtype, torch.float32))


@pytest.mark.parametrize("name", MAPS)
def test_a_map_looks_at_one_token(name):
    x = draw(B, 6, H, 4, gradient=False)
    whole = MAPS[name](x)
    other = torch.cat((x[:, :4], x[:, 4:] * 30), 1)
    assert torch.equal(MAPS[name](other)[:, :4], whole[:, :4])
    assert error([MAPS[name](x[:1, :3])], [whole[:1, :3]]) <= 1e-12


@pytest.mark.parametrize("name", MAPS)
def test_a_map_stays_finite(name):
    for factor in (0.0, 1.0, 1e3):
        x = draw(1, 6, 2, 64, dtype=torch.float32, gradient=False) * factor
        assert MAPS[name](x).isfinite().all()
        assert MAPS[name](x.bfloat16()).isfinite().all()


def test_weights_of_the_maps():
    """What a product of two maps is meant to be: exactly, or in the mean over many features."""
    q, k = (draw(1, 5, 1, 4, gradient=False, seed=seed) * 0.4 for seed in range(2))
    rows = torch.randn(200_000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    s = torch.einsum("blhk,bmhk->blm", q, k)

    def weight(phi_q, phi_k):
        return torch.einsum("blhf,bmhf->blm", phi_q, phi_k)

    assert error([weight(features.squares(q, scale=0.5), features.squares(k, scale=1.0))], [(s * s) * 0.5]) <= 1e-12
    favor = weight(*(features.favor_plus(x, rows) for x in (q, k)))
    assert error([favor], [(s / 2).exp()]) <= 2e-2
    assert error([weight(*(features.random_fourier(x, rows, unit=False, amplitude=True) for x in (q, k)))], [(s / 2).exp()]) <= 2e-2
    unit = weight(*(features.random_fourier(x, rows, scale=1.0) for x in (q, k)))
    cosines = weight(*(torch.nn.functional.normalize(x, dim=-1) for x in (q, k)))
    assert error([unit], [(cosines - 1).exp()]) <= 2e-2
    i, j = torch.arange(1, 6), torch.arange(2, 7)
    weighted = weight(features.cosine_weighted(q, i, 9), features.cosine_weighted(k, j, 9))
    assert error([weighted], [s * (math.pi * (i[:, None] - j).double() / 18).cos()]) <= 1e-12


def test_queries_may_use_their_own_maximum():
    """It cancels in the output, and the result is the stabilised one."""
    q, k = draw(B, 20, H, 4, gradient=False), draw(B, 20, H, 4, gradient=False, seed=1)
    v, rows = draw(B, 20, H, V, gradient=False), draw(H, 9, 4, gradient=False)
    outputs = [linear_scan(features.favor_plus(q, rows, own_maximum=own), features.favor_plus(k, rows), v)
               for own in (True, False)]
    assert error(outputs[:1], outputs[1:]) <= 1e-10


def test_maps_under_autocast():
    """exp of a bfloat16 number of size 8 is off by 3%."""
    x, rows = draw(1, 9, 2, 16, dtype=torch.float32, gradient=False) * 3, draw(2, 9, 16, dtype=torch.float32, gradient=False)
    expected = features.favor_plus(x.double(), rows.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert error([features.favor_plus(x, rows)], [expected]) <= 1e-4
    assert features.favor_plus(x.bfloat16(), rows).dtype == torch.float32
