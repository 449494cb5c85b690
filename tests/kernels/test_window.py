"""Sliding-window attention in blocks against one query at a time: causal, on both sides, and inside own windows."""

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


@pytest.mark.parametrize("heads", [None, 1, H])
@pytest.mark.parametrize("reach", ["causal", "both", "own"])
@pytest.mark.parametrize(("L", "w"), [(1, 1), (1, 3), (5, 9), (63, 4), (100, 17), (257, 63), (257, 64), (130, 129)])
@DTYPES
def test_reach_table_and_padding(L, w, reach, heads, dtype):
    """Outputs and all gradients, the table's too, of padded rows, one of them empty."""
    lengths_B = torch.tensor([L, L // 2, 0])
    weight = draw(B, L, H, V, gradient=False) * (torch.arange(L) < lengths_B[:, None])[..., None, None]
    results = []
    for backend, precision in (("naive", torch.float64), ("auto", dtype)):
        leaves = row(L, precision)
        table = None if heads is None else draw(heads, 2 * w - 1, dtype=precision, seed=3)

        def call(leaves=leaves, table=table, backend=backend):
            return [window(*leaves, window=w, reach=reach, table=table, lengths_B=lengths_B, backend=backend)]

        inputs = leaves if table is None else (*leaves, table)
        y, *gradients = with_gradients(call, inputs, [weight])
        assert y.isfinite().all()
        results.append([y * (weight != 0), *gradients])
    for got, expected in zip(*results, strict=True):
        if float(expected.detach().abs().max()) <= 1e-12:  # one key only: neither q, k nor the table has a say
            assert float(got.detach().abs().max()) <= 1e-6
        else:
            assert error([got], [expected]) <= 2 * TOLERANCE[dtype]


@pytest.mark.parametrize("w", [1, 3, 9])
def test_a_window_on_both_sides_ends_where_it_says(w):
    q, k, v = row(70)
    (gradient,) = torch.autograd.grad(window(q, k, v, window=w, reach="both")[:, 30].sum(), v)
    assert (gradient.abs().sum((0, 2, 3)) > 0).nonzero().flatten().tolist() == list(range(30 - w + 1, 30 + w))


@pytest.mark.parametrize(("w", "position"), [(3, 30), (3, 32), (64, 63), (64, 64), (100, 130)])
def test_an_own_window_ends_where_it_says(w, position):
    q, k, v = row(150)
    (gradient,) = torch.autograd.grad(window(q, k, v, window=w, reach="own")[:, position].sum(), v)
    seen = range(position // w * w, min(position // w * w + w, 150))
    assert (gradient.abs().sum((0, 2, 3)) > 0).nonzero().flatten().tolist() == list(seen)


@pytest.mark.parametrize("reach", ["causal", "both", "own"])
def test_the_table_counts_offsets_from_the_query(reach):
    """One large entry: the key at that offset takes all the weight, wherever it is seen."""
    w, L = 5, 40
    q, k, v = row(L, gradient=False)
    for offset in range(1 - w, 1 if reach == "causal" else w):
        table = torch.zeros(1, 2 * w - 1, dtype=torch.float64)
        table[0, offset + w - 1] = 200.0
        y = window(q, k, v, window=w, reach=reach, table=table)
        for i in range(L):
            j = i + offset
            if 0 <= j < L and (reach != "own" or i // w == j // w):
                torch.testing.assert_close(y[:, i], v[:, j])


def test_a_table_entry_that_a_causal_query_cannot_use_gets_no_gradient():
    table = draw(1, 9)
    (gradient,) = torch.autograd.grad(window(*row(50, gradient=False), window=5, table=table).square().sum(), table)
    assert torch.equal(gradient[0, 5:], torch.zeros(4, dtype=torch.float64)) and bool((gradient[0, :5] != 0).all())


@pytest.mark.parametrize("reach", ["both", "own"])
def test_pads_are_no_keys(reach):
    """Their content, a pad at the very end of a long row included, changes no bit of a real token's output."""
    q, k, v = row(700, gradient=False)
    lengths_B = torch.tensor([700, 350, 3])
    pad = (torch.arange(700) >= lengths_B[:, None])[..., None, None]
    y = window(q, k, v, window=6, reach=reach, lengths_B=lengths_B)
    moved = window(q, torch.where(pad, 900.0, k), torch.where(pad, 900.0, v), window=6, reach=reach, lengths_B=lengths_B)
    assert torch.equal(y.masked_fill(pad, 0), moved.masked_fill(pad, 0))


@pytest.mark.parametrize("reach", ["causal", "both", "own"])
def test_long_rows_are_read_in_spans(reach):
    """More than one span without gradients: the same as with them."""
    leaves = row(1300, torch.float32, gradient=False)
    table = draw(H, 2 * 19 - 1, dtype=torch.float32, gradient=False)
    y = window(*leaves, window=19, reach=reach, table=table)
    kept = window(leaves[0].requires_grad_(), *leaves[1:], window=19, reach=reach, table=table)
    assert error([y], [kept]) <= 1e-6


def test_gradcheck_of_the_table():
    leaves = [draw(2, 7, 2, 2, seed=seed) for seed in range(3)]
    for reach in ("causal", "both", "own"):
        for heads in (1, 2):
            assert torch.autograd.gradcheck(
                lambda q, k, v, t, reach=reach: window(
                    q, k, v, window=3, reach=reach, table=t, lengths_B=torch.tensor([7, 7])), (*leaves, draw(heads, 5)))


def test_inputs_are_left_alone():
    """A row of one token, or one head, is its own transpose: scaling must not write into it."""
    for shape in ((2, 1, 3, 4), (2, 5, 1, 4)):
        q = draw(*shape, gradient=False)
        before = q.clone()
        window(q, q, q, window=3)
        assert torch.equal(q, before)


def test_refusals():
    leaves = row(5, gradient=False)
    with pytest.raises(UnsupportedUse, match="window: .*backend 'triton'"):
        window(*leaves, window=3, backend="triton")
    with pytest.raises(LayoutError, match="at least 1"):
        window(*leaves, window=0)
    with pytest.raises(LayoutError, match="belong together"):
        window(*leaves, window=3, past_k=leaves[1])
    with pytest.raises(LayoutError, match="takes no past"):
        window(*leaves, window=3, reach="own", past_k=leaves[1], past_v=leaves[2], past_B=torch.zeros(B).long())
    with pytest.raises(LayoutError, match="reach: got 'left'"):
        window(*leaves, window=3, reach="left")
    for table in (torch.zeros(5), torch.zeros(1, 6), torch.zeros(3, 5)):
        with pytest.raises(LayoutError, match="table: got"):
            window(*leaves, window=3, table=table)
    assert window(*(x[:, :0] for x in leaves), window=3).shape == (B, 0, H, V)
    assert query_block(17) == 48


@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_lengths_out_of_range(backend):
    for lengths in ([6, 1, 0], [5, -1, 0]):
        with pytest.raises(LayoutError, match="lengths_B"):
            window(*row(5, gradient=False), window=3, reach="both", lengths_B=torch.tensor(lengths), backend=backend)


def test_what_is_older_than_a_past_is_never_read():
    """Not even through a weight of 0, which makes NaN of NaN; its type follows the row's."""
    (q, k, v), (_, past_k, past_v) = row(6), row(3, gradient=False)
    past_B, found = torch.tensor([1, 3, 0]), []
    for filling in (0.0, torch.nan):
        old = (torch.arange(3) < 3 - past_B[:, None])[..., None, None]
        past = [x.masked_fill(old, filling).requires_grad_() for x in (past_k, past_v)]
        y = window(q, k, v, window=4, past_k=past[0], past_v=past[1], past_B=past_B)
        found.append([y, *torch.autograd.grad(y.square().sum(), (q, k, v, *past))])
        with torch.no_grad():
            found[-1].append(window(q, k, v, window=4, past_k=past[0], past_v=past[1], past_B=past_B))
    assert error(found[1], found[0]) == 0
    wide = window(*(x.float() for x in (q, k, v)), window=4, past_k=past_k, past_v=past_v, past_B=past_B)
    assert wide.dtype == torch.float32
