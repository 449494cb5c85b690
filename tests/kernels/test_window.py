"""Sliding-window attention in blocks against one query at a time."""

import pytest
import torch

from kernels.errors import LayoutError, UnsupportedUse
from kernels.window import window
from kernels.window.chunked import query_block
from tests.kernels.agreement import LENGTHS, TOLERANCE, draw, error, with_gradients

B, H, K, V = 3, 2, 4, 5
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
WINDOWS = pytest.mark.parametrize("w", [1, 2, 17, 100, 300])


def row(L, dtype=torch.float64, gradient=True, seed=0):
    return tuple(draw(B, L, H, width, dtype=dtype, seed=seed + i, gradient=gradient) for i, width in enumerate((K, K, V)))


@WINDOWS
@DTYPES
@pytest.mark.parametrize("L", LENGTHS)
def test_rows_from_their_start(L, dtype, w):
    truth, leaves, weights = row(L), row(L, dtype), [draw(B, L, H, V, gradient=False)]
    expected = with_gradients(lambda: [window(*truth, window=w, backend="naive")], truth, weights)
    got = with_gradients(lambda: [window(*leaves, window=w)], leaves, weights)
    if (w, L) == (1, 1) or w == 1:
        assert error(got[:1] + got[3:], expected[:1] + expected[3:]) <= TOLERANCE[dtype]  # q and k have no say
        assert all(float(g.abs().max()) <= 1e-6 for g in got[1:3])
    else:
        assert error(got, expected) <= TOLERANCE[dtype]


@WINDOWS
@DTYPES
@pytest.mark.parametrize("L", [1, 63, 100])
def test_rows_that_go_on(L, dtype, w):
    P = w - 1
    past_B = torch.tensor([P + 7, P // 2, 0])
    weights = [draw(B, L, H, V, gradient=False)]
    results = []
    for backend, precision in (("naive", torch.float64), ("auto", dtype)):
        leaves, past = row(L, precision), row(P, precision, seed=5)[1:]

        def call(leaves=leaves, past=past, backend=backend):
            return [window(*leaves, window=w, past_k=past[0], past_v=past[1], past_B=past_B, backend=backend)]

        results.append(with_gradients(call, (*leaves, *past) if P else leaves, weights))
    if w > 1:
        assert error(results[1], results[0]) <= TOLERANCE[dtype]
    else:
        assert error(results[1][:1], results[0][:1]) <= TOLERANCE[dtype]


@pytest.mark.parametrize("w", [1, 3, 9])
def test_the_window_ends_where_it_says(w):
    """Offsets 0..w-1 count, w does not: the released window_size 256 is w = 129."""
    q, k, v = row(70)
    last = 69
    (gradient,) = torch.autograd.grad(window(q, k, v, window=w)[:, last].sum(), v)
    seen = gradient.abs().sum((0, 2, 3)) > 0
    assert seen.nonzero().flatten().tolist() == list(range(last - w + 1, last + 1))


def test_a_window_of_one_gives_the_value():
    q, k, v = row(20, gradient=False)
    assert torch.equal(window(q, k, v, window=1), v)


def test_gradcheck():
    leaves = [draw(3, 5, 1, 2, seed=seed) for seed in range(3)]
    past = [draw(3, 2, 1, 2, seed=seed) for seed in range(2)]
    assert torch.autograd.gradcheck(lambda *x: window(*x, window=3), leaves)
    assert torch.autograd.gradcheck(
        lambda q, k, v, pk, pv: window(q, k, v, window=3, past_k=pk, past_v=pv, past_B=torch.tensor([9, 1, 0])),
        (*leaves, *past))


def test_what_is_not_yet_past_counts_for_nothing():
    """Cache entries before the document begin may hold anything finite."""
    leaves, past = row(30, gradient=False), row(16, gradient=False, seed=5)[1:]
    past_B = torch.tensor([16, 5, 0])
    absent = (torch.arange(16) < 16 - past_B[:, None])[..., None, None]
    y = window(*leaves, window=17, past_k=past[0], past_v=past[1], past_B=past_B)
    filled = [torch.where(absent, 500.0, x) for x in past]
    assert torch.equal(y, window(*leaves, window=17, past_k=filled[0], past_v=filled[1], past_B=past_B))


def test_bfloat16():
    leaves = row(100, torch.bfloat16, gradient=False)
    y = window(*leaves, window=17)
    assert y.dtype == torch.bfloat16
    assert error([y], [window(*(x.double() for x in leaves), window=17, backend="naive")]) <= TOLERANCE[torch.bfloat16]


def test_large_scores_stay_finite():
    q, k, v = (x * 1e3 for x in row(60, torch.float32, gradient=False))
    y = window(q, k, v, window=5)
    assert y.isfinite().all()
    assert error([y], [window(q.double(), k.double(), v.double(), window=5, backend="naive")]) <= 1e-3


def test_refusals():
    leaves = row(5, gradient=False)
    with pytest.raises(UnsupportedUse, match="window: .*backend 'triton'"):
        window(*leaves, window=3, backend="triton")
    with pytest.raises(LayoutError, match="at least 1"):
        window(*leaves, window=0)
    with pytest.raises(LayoutError, match="belong together"):
        window(*leaves, window=3, past_k=leaves[1])
    assert window(*(x[:, :0] for x in leaves), window=3).shape == (B, 0, H, V)
    assert query_block(17) == 48
