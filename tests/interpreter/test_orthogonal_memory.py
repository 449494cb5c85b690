"""The memory's kernel in Triton's interpreter against float64, alone and fused with the window; memory poisoned with NaN."""

import pytest
import torch

from kernels.errors import UnsupportedUse
from kernels.orthogonal_memory import MemoryState, lavo, orthogonal_memory
from tests.kernels.agreement import draw, error, with_gradients

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


def orthonormal(H, R, K, dtype):
    return torch.linalg.qr(draw(H, K, K, gradient=False))[0][:, :R].to(dtype).contiguous().requires_grad_()


def compare(call, B, L, H, K, R, lengths=None, counts=None, extra=()):
    """`call(leaves, extra leaves, state, backend) -> (y, state)`, float32 kernels against float64 loops."""
    real = torch.ones(B, L) if lengths is None else (torch.arange(L) < torch.tensor(lengths)[:, None])
    weights = [draw(B, L, H, K, gradient=False) * real[..., None, None], draw(B, H, R, gradient=False)]
    results, ends = [], []
    for backend, dtype in (("naive", torch.float64), ("triton", torch.float32)):
        leaves = [draw(B, L, H, K, dtype=dtype, seed=seed) for seed in range(3)] + [orthonormal(H, R, K, dtype)]
        more = [draw(*shape, dtype=dtype, seed=7 + i) for i, shape in enumerate(extra)]
        state = None
        if counts is not None:
            count_B = torch.tensor(counts)
            sums = draw(B, H, R, gradient=False, seed=9) * count_B[:, None, None].sqrt()
            state = MemoryState(sums.to(dtype).requires_grad_(), count_B)

        def run(leaves=leaves, more=more, state=state, backend=backend):
            y, after = call(leaves, more, state, backend)
            assert y.isfinite().all()
            ends.append(after.count_B)
            return [y * (weights[0] != 0) + 0 * sum(leaf.sum() for leaf in leaves), after.sum_BHR]

        results.append(with_gradients(run, [*leaves, *more] + ([] if state is None else [state.sum_BHR]), weights))
    assert torch.equal(*ends)
    for got, expected in zip(results[1], results[0], strict=True):
        scale = float(expected.detach().abs().max())
        assert float((got - expected).detach().abs().max()) <= CLOSE * max(scale, 1.0), (tuple(got.shape), scale)


@pytest.mark.parametrize("settings", [{}, {"scale": 0.5}, {"closed": 5}, {"closed": 40}, {"causal": False}],
                         ids=["causal", "scaled", "closed", "closed_wide", "whole"])
@pytest.mark.parametrize(("L", "lengths", "counts"), [
    (1, None, None), (70, None, None), (37, [37, 32, 0], [0, 80, 40]), (64, [64, 33, 5], None)])
def test_memory(L, lengths, counts, settings):
    B = 1 if lengths is None else 3
    lengths_B = None if lengths is None else torch.tensor(lengths)
    context = {} if settings.get("causal", True) else {"context_B": lengths_B}

    def call(leaves, more, state, backend):
        q, x, _, basis = leaves
        return orthogonal_memory(q, x, basis, state=state, lengths_B=lengths_B, backend=backend, return_state=True,
                                 **context, **settings)

    compare(call, B, L, 1, 20, 7, lengths, counts)


def test_several_heads_and_powers_of_two():
    def call(leaves, more, state, backend):
        return orthogonal_memory(leaves[0], leaves[1], leaves[3], backend=backend, return_state=True)

    compare(call, 2, 40, 2, 16, 16)


@pytest.mark.parametrize(("L", "w", "heads", "lengths", "counts"), [
    (70, 33, 1, None, None), (40, 5, 2, [40, 33], None), (20, 64, 1, None, None), (37, 9, 1, [37, 20], [30, 3])])
def test_fused_with_the_window(L, w, heads, lengths, counts):
    """Dissection "none": one kernel for both branches, rows that start and rows that go on."""
    B, H, K, R = 2 if lengths else 1, 2, 16, 8
    lengths_B = None if lengths is None else torch.tensor(lengths)
    extra = [(heads, 2 * w - 1)] + ([] if counts is None else [(B, w - 1, H, K), (B, w - 1, H, K)])

    def call(leaves, more, state, backend):
        q, k, v, basis = leaves
        past = {} if counts is None else {"past_k": more[1], "past_v": more[2], "past_B": torch.tensor(counts)}
        return lavo(q, k, v, basis, window=w, table=more[0], dissection="none", lengths_B=lengths_B, state=state,
                    scale_global=0.7, backend=backend, return_state=True, **past)

    compare(call, B, L, H, K, R, lengths, counts, extra)


@pytest.mark.parametrize("dissection", ["token", "window"])
def test_one_kernel_after_the_other(dissection):
    def call(leaves, more, state, backend):
        q, k, v, basis = leaves
        return lavo(q, k, v, basis, window=6, table=more[0], dissection=dissection, backend=backend, return_state=True)

    compare(call, 1, 40, 2, 16, 8, extra=[(1, 11)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_types(dtype):
    q, k, v = (draw(1, 70, 1, 16, dtype=dtype, seed=seed, gradient=False) for seed in range(3))
    basis = orthonormal(1, 16, 16, torch.float32).detach()
    for dissection in ("none", "token"):
        y = lavo(q, k, v, basis, window=7, dissection=dissection, backend="triton")
        truth = lavo(q.double(), k.double(), v.double(), basis.double(), window=7, dissection=dissection, backend="naive")
        assert y.dtype == dtype
        assert error([y], [truth]) <= 1e-2


def test_refusals():
    q, basis = draw(1, 4, 2, 16, dtype=torch.float32), torch.zeros(2, 4, 16)
    with pytest.raises(UnsupportedUse, match="heads share"):
        orthogonal_memory(q, q, basis, shared=True, backend="triton")
    with pytest.raises(UnsupportedUse, match="float64"):
        orthogonal_memory(q.double(), q.double(), basis.double(), backend="triton")
    with pytest.raises(UnsupportedUse, match="wider than 128"):
        orthogonal_memory(q, q, torch.zeros(2, 130, 16), backend="triton")


def test_what_is_older_than_a_past_is_never_read():
    q, k, v, past_k, past_v = (draw(2, length, 1, 16, dtype=torch.float32, seed=seed, gradient=False)
                               for seed, length in enumerate((20, 20, 20, 4, 4)))
    basis, past_B, found = orthonormal(1, 16, 16, torch.float32), torch.tensor([1, 4]), []
    for filling in (0.0, torch.nan):
        old = (torch.arange(4) < 4 - past_B[:, None])[..., None, None]
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        y = lavo(*leaves, basis, window=5, dissection="none", past_k=past_k.masked_fill(old, filling),
                 past_v=past_v.masked_fill(old, filling), past_B=past_B, backend="triton")
        found.append([y, *torch.autograd.grad(y.square().sum(), (*leaves, basis))])
    assert all(torch.equal(a, b) for a, b in zip(*found))
