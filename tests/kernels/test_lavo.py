"""LAVO's two branches together: compositions against the slow forms, pieces against the whole, worked examples."""

import pytest
import torch

from kernels.errors import LayoutError
from kernels.orthogonal_memory import MemoryState, lavo
from tests.kernels.agreement import TOLERANCE, draw, error, with_gradients

B, H, K, R, W = 3, 2, 6, 4, 5
DISSECTIONS = pytest.mark.parametrize("dissection", ["token", "window", "none"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


def inputs(L, dtype=torch.float64, gradient=True, heads=1):
    """q, k, v, basis, table."""
    q, k, v = (draw(B, L, H, K, dtype=dtype, seed=seed, gradient=gradient) for seed in range(3))
    basis = torch.linalg.qr(draw(H, K, K, gradient=False))[0][:, :R].contiguous().to(dtype).requires_grad_(gradient)
    return q, k, v, basis, draw(heads, 2 * W - 1, dtype=dtype, gradient=gradient)


@DISSECTIONS
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "whole"])
@pytest.mark.parametrize("shared", [False, True], ids=["per_head", "shared"])
@DTYPES
@pytest.mark.parametrize("L", [3, 29, 130])
def test_against_the_slow_forms(L, dtype, shared, causal, dissection):
    """With gradients, and without, where causal rows take a loop of their own."""
    lengths_B = torch.tensor([L, L // 2, 0])
    real = (torch.arange(L) < lengths_B[:, None])[..., None, None]
    weights = [draw(B, L, H, K, gradient=False) * real, draw(B, 1 if shared else H, R, gradient=False)]
    settings = {"window": W, "dissection": dissection, "causal": causal, "shared": shared, "scale_global": 0.7,
                "lengths_B": lengths_B, "return_state": True}
    results = []
    for backend, precision in (("naive", torch.float64), ("auto", dtype)):
        leaves = inputs(L, precision)

        def call(leaves=leaves, backend=backend):
            *most, table = leaves
            y, state = lavo(*most, table=table, backend=backend, **settings)
            return [y * real + 0 * sum(leaf.sum() for leaf in leaves), state.sum_BHR]

        results.append(with_gradients(call, leaves, weights))
    assert error(results[1], results[0]) <= TOLERANCE[dtype]
    with torch.no_grad():
        *most, table = inputs(L, dtype)
        y, state = lavo(*most, table=table, **settings)
    assert error([y * real, state.sum_BHR], results[0][:2]) <= TOLERANCE[dtype]
    closed = W if dissection == "window" and causal else 1
    assert torch.equal(state.count_B, lengths_B // closed * closed)


@DISSECTIONS
@pytest.mark.parametrize("gradient", [True, False], ids=["kept", "spans"])
def test_a_row_in_pieces_is_the_whole(dissection, gradient):
    """The last W - 1 keys and values and the memory are all that is handed over; rows have been cut at their own places."""
    L, cut = 43, torch.tensor([0, 10, 20])
    q, k, v, basis, table = inputs(L, gradient=gradient)
    y, after = lavo(q, k, v, basis, window=W, table=table, dissection=dissection, return_state=True)
    _, state = lavo(q, k, v, basis, window=W, table=table, dissection=dissection, lengths_B=cut, return_state=True)
    assert torch.equal(state.count_B, cut)
    rest = L - 20  # tokens each row goes on by
    index = cut[:, None] + torch.arange(-(W - 1), rest)
    past = index[:, : W - 1].clamp(min=0)
    rows = torch.arange(B)[:, None]
    new = index[:, W - 1 :]
    more, end = lavo(
        q[rows, new], k[rows, new], v[rows, new], basis, window=W, table=table, dissection=dissection, past_k=k[rows, past],
        past_v=v[rows, past], past_B=cut, state=MemoryState(state.sum_BHR, cut), return_state=True)
    torch.testing.assert_close(more, y[rows, new], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(end.sum_BHR[2], after.sum_BHR[2], rtol=1e-12, atol=1e-12)
    assert int(end.count_B[2]) == int(after.count_B[2])


def test_long_rows_in_spans():
    """Several spans, several windows a span, against the composition that gradients take."""
    q, k, v, basis, table = inputs(1000, torch.float32)
    for dissection in ("token", "none"):
        kept = lavo(q, k, v, basis, window=W, table=table, dissection=dissection)
        with torch.no_grad():
            assert error([lavo(q, k, v, basis, window=W, table=table, dissection=dissection)], [kept]) <= 2e-6


@DISSECTIONS
def test_causal(dissection):
    """Redrawn tokens from t on move nothing before, and every token's output depends on the first token."""
    q, k, v, basis, table = inputs(24)
    y = lavo(q, k, v, basis, window=W, table=table, dissection=dissection)
    for t in (1, 4, 5, 13):
        moved = [torch.cat((x[:, :t], 50 * draw(B, 24 - t, H, K, seed=7)), 1) for x in (q, k, v)]
        torch.testing.assert_close(
            lavo(*moved, basis, window=W, table=table, dissection=dissection)[:, :t], y[:, :t], rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(y[:, -1].square().sum(), v)
    assert bool((gradient[:, :20].abs().sum((2, 3)) > 0).all())


@DISSECTIONS
def test_truncated_rows_agree(dissection):
    q, k, v, basis, table = inputs(23, gradient=False)
    for causal in (True, False):
        y = lavo(q, k, v, basis, window=W, table=table, dissection=dissection, causal=causal)
        for n in range(1, 23) if causal else ():
            part = lavo(q[:, :n], k[:, :n], v[:, :n], basis, window=W, table=table, dissection=dissection)
            torch.testing.assert_close(part[:, -1], y[:, n - 1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dissection", "expected"), [
    ("token", [2, 2.75, 25 / 6, 5.625, 7.1]), ("window", [1, 1.5, 4, 5, 7]),
    ("none", [2, 3, 4.5, 6, 7.5])])
def test_a_worked_example(dissection, expected):
    """w 2, one slot along 1, q 0: local is the window's mean (2 3 5 7 9), global the running mean itself."""
    v = torch.tensor([2.0, 4, 6, 8, 10], dtype=torch.float64).view(1, 5, 1, 1)
    y = lavo(torch.zeros_like(v), v, v, torch.ones(1, 1, 1, dtype=torch.float64), window=2, dissection=dissection)
    torch.testing.assert_close(y.flatten(), torch.tensor(expected, dtype=torch.float64))


def test_bfloat16():
    q, k, v, basis, table = inputs(200, gradient=False)
    for dissection in ("token", "window", "none"):
        y = lavo(q.bfloat16(), k.bfloat16(), v.bfloat16(), basis.float(), window=W, table=table.float(),
                 dissection=dissection)
        assert y.dtype == torch.bfloat16
        assert error([y], [lavo(q, k, v, basis, window=W, table=table, dissection=dissection)]) <= TOLERANCE[torch.bfloat16]


def test_refusals():
    q, k, v, basis, table = inputs(5, gradient=False)
    with pytest.raises(LayoutError, match="dissection: got 'words'"):
        lavo(q, k, v, basis, window=W, dissection="words")
    with pytest.raises(LayoutError, match="v: got"):
        lavo(q, k, v[..., :3], basis, window=W)
    with pytest.raises(LayoutError, match="table"):
        lavo(q, k, v, basis, window=W + 1, table=table)
    with pytest.raises(LayoutError, match="takes no past"):
        lavo(q, k, v, basis, window=W, causal=False, past_k=k, past_v=v, past_B=torch.zeros(B).long())
    assert lavo(q[:, :0], k[:, :0], v[:, :0], basis, window=W).shape == (B, 0, H, K)


@pytest.mark.parametrize("dissection", ["token", "none"])
def test_gradients_through_what_came_before_alone(dissection):
    q, k, v, basis, table = inputs(9, gradient=False)
    state = MemoryState(draw(B, H, R), torch.full((B,), 7))
    past = {"past_k": draw(B, 4, H, K), "past_v": draw(B, 4, H, K, seed=1), "past_B": torch.full((B,), 4)}
    leaves, found = (state.sum_BHR, past["past_k"], past["past_v"]), []
    for backend in ("naive", "auto"):
        def call(backend=backend):
            y, after = lavo(q, k, v, basis, window=W, table=table, dissection=dissection, state=state, backend=backend,
                            return_state=True, **past)
            return [y, after.sum_BHR]

        weights = [draw(B, 9, H, K, seed=8, gradient=False), draw(B, H, R, seed=9, gradient=False)]
        found.append(with_gradients(call, leaves, weights))
    assert error(found[1], found[0]) <= 1e-10


@DISSECTIONS
def test_what_is_older_than_a_past_is_never_read(dissection):
    q, k, v, basis, table = inputs(6)
    past = [draw(B, 4, H, K, seed=seed, gradient=False) for seed in (0, 1)]
    past_B, found = torch.tensor([1, 4, 0]), []
    for filling in (0.0, torch.nan):
        old = (torch.arange(4) < 4 - past_B[:, None])[..., None, None]
        settings = {"window": W, "table": table, "dissection": dissection, "past_B": past_B,
                    **{name: x.masked_fill(old, filling) for name, x in zip(("past_k", "past_v"), past)}}
        y = lavo(q, k, v, basis, **settings)
        found.append([y, *torch.autograd.grad(y.square().sum(), (q, k, v, basis, table))])
        with torch.no_grad():
            found[-1].append(lavo(q, k, v, basis, **settings))
    assert error(found[1], found[0]) == 0


@DISSECTIONS
@pytest.mark.parametrize("types", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_outputs_are_of_the_values_type(dissection, types):
    q, k, v, basis, table = inputs(9, torch.float32)
    q, v = q.to(types[0]), v.to(types[1])
    for gradients in (True, False):
        for causal in (True, False):
            with torch.set_grad_enabled(gradients):
                y = lavo(q, k.to(q.dtype), v, basis, window=W, table=table, dissection=dissection, causal=causal)
            assert y.dtype == v.dtype, (gradients, causal)


def test_lengths_out_of_range():
    q, k, v, basis, table = inputs(9, gradient=False)
    for backend in ("naive", "chunked"):
        with pytest.raises(LayoutError, match="lengths_B"):
            lavo(q, k, v, basis, window=W, lengths_B=torch.tensor([10, 1, 1]), backend=backend)
