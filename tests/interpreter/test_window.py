"""The window kernels in Triton's interpreter against float64, output memory poisoned with NaN."""

import pytest
import torch

from kernels.errors import UnsupportedUse
from kernels.window import window
from kernels.window.triton import window_triton
from tests.kernels.agreement import draw, error, with_gradients

K, V = 20, 7
CLOSE = 2e-5


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """torch.empty gives NaN: what a kernel fails to write is seen."""
    def filled(make):
        def run(*arguments, **settings):
            made = make(*arguments, **settings)
            return made.fill_(float("nan")) if made.is_floating_point() else made.fill_(-7)
        return run

    monkeypatch.setattr(torch, "empty", filled(torch.empty))
    monkeypatch.setattr(torch, "empty_like", filled(torch.empty_like))


def compare(L, w, reach, heads, H=1, widths=(K, V), past=None, lengths=None, dtype=torch.float32):
    B = len(past or lengths or [0])
    lengths_B = None if lengths is None else torch.tensor(lengths)
    real = torch.ones(B, L) if lengths is None else (torch.arange(L) < lengths_B[:, None])
    weight = draw(B, L, H, widths[1], gradient=False) * real[..., None, None]
    results = []
    for backend, precision in (("naive", torch.float64), ("triton", dtype)):
        leaves = [draw(B, L, H, width, dtype=precision, seed=seed) for seed, width in enumerate((*widths[:1] * 2, widths[1]))]
        extra = [] if heads is None else [draw(heads, 2 * w - 1, dtype=precision, seed=3)]
        before, gone = {}, []
        if past is not None:
            gone = [draw(B, w - 1, H, width, dtype=precision, seed=5 + i) for i, width in enumerate(widths)]
            before = {"past_k": gone[0], "past_v": gone[1], "past_B": torch.tensor(past)}

        def call(leaves=leaves, extra=extra, before=before, backend=backend):
            y = window(*leaves, window=w, reach=reach, table=extra[0] if extra else None, lengths_B=lengths_B,
                       backend=backend, **before)
            assert y.isfinite().all()
            return [y * (weight != 0)]

        results.append(with_gradients(call, [*leaves, *extra, *gone], [weight]))
    for got, expected in zip(results[1], results[0], strict=True):
        scale = float(expected.detach().abs().max())
        assert float((got - expected).detach().abs().max()) <= CLOSE * max(scale, 1.0), (tuple(got.shape), scale)


@pytest.mark.parametrize(("L", "w", "reach", "heads"), [
    (1, 1, "causal", None), (40, 1, "causal", 1), (70, 5, "causal", None), (70, 33, "causal", 1), (3, 64, "causal", 1),
    (35, 5, "both", 1), (40, 33, "both", 1), (5, 40, "both", None), (70, 5, "own", 1), (70, 33, "own", None)])
def test_rows(L, w, reach, heads):
    compare(L, w, reach, heads)


@pytest.mark.parametrize("heads", [1, 2])
def test_heads_share_a_table_or_have_their_own(heads):
    compare(20, 5, "both", heads, H=2)


@pytest.mark.parametrize(("reach", "w"), [("both", 6), ("own", 6)])
def test_padded_rows(reach, w):
    compare(40, w, reach, 1, lengths=[33, 0])


@pytest.mark.parametrize("L", [1, 37])
def test_rows_that_go_on(L):
    compare(L, 9, "causal", 1, past=[8, 3, 0] if L == 1 else [3])


def test_powers_of_two():
    """Strides that divide by the vector width, and no columns to mask."""
    compare(40, 17, "causal", 1, widths=(16, 16))


def test_slices_of_one_projection():
    """q, k, v with gaps between heads and positions, as a fused projection leaves them."""
    qkv = torch.randn(2, 20, 3, 2, 16, generator=torch.Generator().manual_seed(0))
    q, k, v = qkv.unbind(2)
    y = window(q, k, v, window=7, backend="triton")
    assert error([y], [window(q.double(), k.double(), v.double(), window=7, backend="naive")]) <= CLOSE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_types(dtype):
    q, k, v = (draw(1, 70, 1, 16, dtype=dtype, seed=seed) for seed in range(3))
    y = window(q, k, v, window=7, backend="triton")
    assert y.dtype == dtype
    assert error([y], [window(q.double(), k.double(), v.double(), window=7, backend="naive")]) <= 1e-2
    assert all(x.dtype == dtype for x in torch.autograd.grad(y.float().sum(), (q, k, v)))


def test_large_scores_stay_finite():
    q, k, v = (1e3 * draw(1, 70, 1, 16, dtype=torch.float32, seed=seed, gradient=False) for seed in range(3))
    assert window(q, k, v, window=7, backend="triton").isfinite().all()


def test_refusals():
    q = draw(1, 4, 1, 16, gradient=False)
    with pytest.raises(UnsupportedUse, match="float64"):
        window(q, q, q, window=2, backend="triton")
    q = draw(1, 4, 1, 130, gradient=False, dtype=torch.float32)
    with pytest.raises(UnsupportedUse, match="wider than 128"):
        window(q, q, q, window=2, backend="triton")


def test_what_is_older_than_a_past_is_never_read():
    q, k, v, past_k, past_v = (torch.randn(2, length, 1, 16) for length in (5, 5, 5, 3, 3))
    past_B, found = torch.tensor([1, 0]), []
    for filling in (0.0, torch.nan):
        old = (torch.arange(3) < 3 - past_B[:, None])[..., None, None]
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        y = window(*leaves, window=4, past_k=past_k.masked_fill(old, filling), past_v=past_v.masked_fill(old, filling),
                   past_B=past_B, backend="triton")
        found.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*found))


def test_lengths_beyond_the_row_are_cut():
    """Where nobody reads them, on a GPU."""
    leaves = [torch.randn(1, 5, 1, 16) for _ in range(3)]
    settings = {"window": 3, "reach": "both", "scale": 0.25}
    assert torch.equal(window_triton(*leaves, lengths_B=torch.tensor([9]), **settings), window_triton(*leaves, **settings))
