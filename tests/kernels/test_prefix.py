"""Prefix attention: the concatenated and the chunked form against the truth, with a prefix length for every row."""

import pytest
import torch

from kernels.errors import LayoutError, UnsupportedUse
from kernels.prefix import chunked as forms
from kernels.prefix import prefix
from kernels.taylor import TaylorState, taylor, taylor_step
from tests.kernels.agreement import LENGTHS, TOLERANCE, draw, error, with_gradients

B, H, K, V = 4, 2, 5, 3
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


def row(L, M, dtype=torch.float64, gradient=True):
    shapes = ((L, K), (L, K), (L, V), (M, K), (M, V))
    return tuple(draw(B, length, H, width, dtype=dtype, seed=seed, gradient=gradient)
                 for seed, (length, width) in enumerate(shapes))


def prefixes(M: int) -> torch.Tensor:
    return torch.tensor([M, 0, max(M // 2, 1), 1])


@DTYPES
@pytest.mark.parametrize("L", LENGTHS)
def test_without_a_state(L, dtype, monkeypatch):
    M = (L + 1) // 2
    truth, leaves, weights = row(L, M), row(L, M, dtype), [draw(B, L, H, V, gradient=False)]
    expected = with_gradients(lambda: [prefix(*truth, prefixes(M), backend="naive")], truth, weights)
    for is_short in (True, False):
        monkeypatch.setattr(forms, "short", lambda *_, answer=is_short: answer)
        got = with_gradients(lambda: [prefix(*leaves, prefixes(M))], leaves, weights)
        assert error(got, expected) <= TOLERANCE[dtype], is_short


@DTYPES
@pytest.mark.parametrize("L", LENGTHS)
def test_state_in_and_out(L, dtype):
    M, lengths_B = L, torch.tensor([L, L, L // 2, 1])
    real = (torch.arange(L) < lengths_B[:, None])[..., None, None]
    weights = [draw(B, L, H, V, gradient=False) * real, draw(B, H, 21, V, gradient=False), draw(B, H, 21, gradient=False)]
    results = []
    for backend, chunk, precision in (("naive", None, torch.float64), ("auto", None, dtype), ("auto", 16, dtype)):
        leaves = row(L, M, precision)
        _, before = taylor(*row(6, 1, precision, gradient=False)[:3], backend="naive", return_state=True)
        state = TaylorState(*(tensor.requires_grad_() for tensor in before))

        def call(leaves=leaves, state=state, backend=backend, chunk=chunk):
            y, after = prefix(*leaves, prefixes(M), state=state, lengths_B=lengths_B, backend=backend, chunk=chunk,
                              return_state=True)
            return y * real, *after

        results.append(with_gradients(call, (*leaves, *state), weights))
    for got in results[1:]:
        assert error(got, results[0]) <= TOLERANCE[dtype]


@pytest.mark.parametrize("chunk", [None, 2])
def test_gradcheck(chunk):
    leaves = [draw(2, length, 1, 2, seed=seed) for seed, length in enumerate((5, 5, 5, 4, 4))]
    m = torch.tensor([4, 1])
    assert torch.autograd.gradcheck(lambda *x: prefix(*x, m, chunk=chunk), leaves)
    assert torch.autograd.gradcheck(lambda *x: tuple(prefix(*x, m, chunk=chunk, return_state=True)[1]), leaves)


def test_a_row_without_prefix_is_causal():
    leaves = row(40, 20, gradient=False)
    y = prefix(*leaves, prefixes(20))
    causal = taylor(*leaves[:3])
    assert error([y[1]], [causal[1]]) <= 1e-12
    assert error([y[0]], [causal[0]]) > 1e-2


def test_what_stands_beyond_a_prefix_counts_for_nothing():
    q, k, v, k_enc, v_enc = row(40, 20, gradient=False)
    beyond = (torch.arange(20) >= prefixes(20)[:, None])[..., None, None]
    for chunk in (None, 16):
        y = prefix(q, k, v, k_enc, v_enc, prefixes(20), chunk=chunk)
        other = prefix(q, k, v, torch.where(beyond, 300.0, k_enc), torch.where(beyond, -1e3, v_enc), prefixes(20), chunk=chunk)
        assert error([other], [y]) <= 1e-12


def test_the_prefix_is_seen_by_its_first_token():
    q, k, v, k_enc, v_enc = row(9, 6)
    y = prefix(q, k, v, k_enc, v_enc, torch.full((B,), 6))
    (gradient,) = torch.autograd.grad(y[:, 0].sum(), v_enc)
    assert (gradient[:, 5].abs() > 0).all()


def test_decoding_goes_on_from_the_merged_state():
    """Prefill of m tokens and steps equal the whole row, since the prefix is closed."""
    q, k, v, k_enc, v_enc = row(12, 6, gradient=False)
    m = torch.full((B,), 6)
    whole = prefix(q, k, v, k_enc, v_enc, m)
    _, state = prefix(q[:, :6], k[:, :6], v[:, :6], k_enc, v_enc, m, return_state=True)
    for t in range(6, 12):
        y, state = taylor_step(q[:, t], k[:, t], v[:, t], state)
        assert error([y], [whole[:, t]]) <= 1e-12


def test_refusals():
    leaves = row(5, 4, gradient=False)
    with pytest.raises(UnsupportedUse, match="prefix: .*backend 'triton'"):
        prefix(*leaves, prefixes(4), backend="triton")
    with pytest.raises(LayoutError, match="prefix_B: .*one number for each row"):
        prefix(*leaves, prefixes(4)[:2])
    with pytest.raises(LayoutError, match="encoder keys"):
        prefix(*leaves[:4], leaves[4][:, :2], prefixes(4))


@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_settings_out_of_range(backend):
    leaves = row(5, 4, gradient=False)
    for wrong in ({"lengths_B": torch.tensor([6, 1, 1, 1])}, {"chunk": 0}, {"prefix_B": torch.tensor([5, 0, 0, 0])},
                  {"prefix_B": torch.tensor([-1, 0, 0, 0])}):
        with pytest.raises(LayoutError, match=next(iter(wrong))):
            prefix(*leaves, **{"prefix_B": prefixes(4), "backend": backend, **wrong})


def test_a_row_without_tokens_still_reads_its_prefix():
    leaves, start = row(0, 4), TaylorState(draw(B, H, 21, V), draw(B, H, 21))
    results = []
    for backend in ("naive", "chunked"):
        def call(backend=backend):
            y, state = prefix(*leaves, prefixes(4), state=start, backend=backend, return_state=True)
            assert y.shape == (B, 0, H, V)
            return state

        weights = [draw(B, H, 21, V, seed=5, gradient=False), draw(B, H, 21, seed=6, gradient=False)]
        results.append(with_gradients(call, (*leaves[3:], *start), weights))
    assert error(results[1], results[0]) <= 1e-12
