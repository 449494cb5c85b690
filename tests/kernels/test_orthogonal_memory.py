"""The orthogonal memory in spans against its slots written out, and what follows from its formulas alone."""

import pytest
import torch

from kernels.errors import LayoutError, UnsupportedUse
from kernels.orthogonal_memory import MemoryState, compress, empty_state, memory_step, orthogonal_memory, read_memory
from tests.kernels.agreement import TOLERANCE, draw, error, with_gradients

B, H, K, R = 3, 2, 6, 4
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
SHARED = pytest.mark.parametrize("shared", [False, True], ids=["per_head", "shared"])


def orthonormal(slots=R, dtype=torch.float64, gradient=True, heads=H, width=K):
    rows = torch.linalg.qr(draw(heads, width, width, gradient=False))[0][:, :slots]
    return rows.to(dtype).contiguous().requires_grad_(gradient)


def memory_state(dtype=torch.float64, shared=False, gradient=True, counts=(0, 8, 400)):
    """A row that starts, and two that go on; their sums are as large as their counts make them."""
    count_B = torch.tensor(counts)
    unit = draw(B, 1 if shared else H, R, gradient=False, seed=9) * count_B[:, None, None].sqrt()
    return MemoryState(unit.to(dtype).requires_grad_(gradient), count_B)


MODES = {
    "causal": {}, "closed_1": {"closed": 1}, "closed_4": {"closed": 4}, "scaled": {"scale": K**-0.5},
    "whole": {"causal": False},
}


@pytest.mark.parametrize("mode", MODES)
@SHARED
@DTYPES
@pytest.mark.parametrize("start", ["fresh", "goes_on"])
@pytest.mark.parametrize("L", [1, 3, 64, 101])
def test_against_the_slots_written_out(L, start, dtype, shared, mode):
    """Outputs, final state and every gradient, of padded rows, one of them empty."""
    settings = MODES[mode]
    lengths_B = torch.tensor([L, L // 2, 0])
    real = (torch.arange(L) < lengths_B[:, None])[..., None, None]
    weights = [draw(B, L, H, K, gradient=False) * real, draw(B, 1 if shared else H, R, gradient=False)]
    context = {} if settings.get("causal", True) else {"context_B": lengths_B}
    results = []
    for backend, precision in (("naive", torch.float64), ("auto", dtype)):
        leaves = [draw(B, L, H, K, dtype=precision, seed=seed) for seed in (0, 1)] + [orthonormal(dtype=precision)]
        state = memory_state(precision, shared) if start == "goes_on" else None

        def call(leaves=leaves, state=state, backend=backend):
            y, after = orthogonal_memory(
                *leaves, state=state, lengths_B=lengths_B, backend=backend, return_state=True, shared=shared, chunk=16,
                **context, **settings)
            assert y.isfinite().all()
            expected = lengths_B // settings.get("closed", 1) * settings.get("closed", 1)
            assert torch.equal(after.count_B, expected if state is None else expected + state.count_B)
            return [y * real + 0 * sum(leaf.sum() for leaf in leaves), after.sum_BHR]

        results.append(with_gradients(call, leaves if state is None else [*leaves, state.sum_BHR], weights))
    for got, expected in zip(*results, strict=True):
        if float(expected.detach().abs().max()) == 0:
            assert float(got.detach().abs().max()) == 0
        else:
            assert error([got], [expected]) <= 3 * TOLERANCE[dtype]


@pytest.mark.parametrize("settings", [{}, {"closed": 5}, {"shared": True}], ids=["causal", "closed", "shared"])
@pytest.mark.parametrize("chunk", [1, 3, 16, 64, 400])
def test_the_span_changes_nothing(chunk, settings):
    q, x = (draw(B, 150, H, K, seed=seed) for seed in (0, 1))
    basis, weights = orthonormal(), [draw(B, 150, H, K, gradient=False)]
    one, other = (with_gradients(
        lambda size=size: [orthogonal_memory(q, x, basis, chunk=size, **settings)], (q, x, basis), weights)
        for size in (chunk, None))
    assert error(one, other) <= 1e-12


@SHARED
def test_steps_and_pieces_are_the_whole(shared):
    """Rows cut at places of their own, then token by token: outputs and states of one pass."""
    L = 40
    q, x = (draw(B, L, H, K, seed=seed, gradient=False) for seed in (0, 1))
    basis = orthonormal(gradient=False)
    y, after = orthogonal_memory(q, x, basis, shared=shared, return_state=True)
    first_B = torch.tensor([0, 7, 31])
    _, state = orthogonal_memory(q, x, basis, shared=shared, lengths_B=first_B, return_state=True)
    for t in range(L):
        rows = (first_B <= t) & (first_B + (L - 31) > t)
        if bool(rows.any()):
            kept = MemoryState(state.sum_BHR[rows], state.count_B[rows])
            step, kept = memory_step(q[rows, t], x[rows, t], basis, kept, shared=shared)
            torch.testing.assert_close(step, y[rows, t], rtol=1e-12, atol=1e-12)
            state.sum_BHR[rows], state.count_B[rows] = kept.sum_BHR, kept.count_B
    torch.testing.assert_close(state.sum_BHR[2], after.sum_BHR[2], rtol=1e-12, atol=1e-12)
    assert state.count_B.tolist() == [9, 16, 40] and after.count_B.tolist() == [L] * B


def test_closed_windows_in_pieces():
    """The open window's tokens come again with the next piece; the state never holds them."""
    q, x, basis = draw(B, 30, H, K, gradient=False), draw(B, 30, H, K, gradient=False, seed=1), orthonormal(gradient=False)
    y = orthogonal_memory(q, x, basis, closed=4)
    _, state = orthogonal_memory(q[:, :18], x[:, :18], basis, closed=4, return_state=True)
    assert state.count_B.tolist() == [16] * B
    rest = orthogonal_memory(q[:, 16:], x[:, 16:], basis, closed=4, state=state)
    torch.testing.assert_close(rest, y[:, 16:], rtol=1e-12, atol=1e-12)
    assert float(y[:, :4].abs().max()) == 0  # the first window has nothing to read


def test_the_future_is_not_read():
    """Large values from t on move nothing before t; the gradient there is exactly 0."""
    for settings, blind in (({}, 1), ({"closed": 8}, 8)):
        q, x, basis = draw(1, 60, H, K), draw(1, 60, H, K, seed=1), orthonormal()
        y = orthogonal_memory(q, x, basis, **settings)
        for t in (8, 24, 37):
            moved = x.detach().clone()
            moved[:, t:] = 50 * draw(1, 60 - t, H, K, gradient=False, seed=5)
            torch.testing.assert_close(orthogonal_memory(q, moved, basis, **settings)[:, :t], y[:, :t], rtol=0, atol=1e-12)
            (gradient,) = torch.autograd.grad(y[:, t].sum(), x, retain_graph=True)
            seen = (gradient.abs().sum((0, 2, 3)) > 0).nonzero().flatten().tolist()
            assert seen == list(range((t + 1) // blind * blind if blind == 1 else t // blind * blind))


def test_signs_and_order_of_the_basis_do_not_matter():
    q, x, basis = draw(B, 20, H, K, gradient=False), draw(B, 20, H, K, gradient=False, seed=1), orthonormal(gradient=False)
    turned = (basis * torch.tensor([1.0, -1.0, -1.0, 1.0])[:, None])[:, torch.tensor([2, 0, 3, 1])]
    for settings in ({}, {"closed": 4}, {"causal": False}):
        torch.testing.assert_close(
            orthogonal_memory(q, x, turned, **settings), orthogonal_memory(q, x, basis, **settings), rtol=1e-12, atol=1e-13)


def test_what_the_formulas_say_of_special_cases():
    q, x, basis = draw(B, 20, H, K, gradient=False), draw(B, 20, H, K, gradient=False, seed=1), orthonormal(gradient=False)
    mean = x.mean(1)
    inside = torch.einsum("hrk,bhk->bhr", basis, mean)
    whole = orthogonal_memory(q, x, basis, causal=False)
    # the order of the context does not matter, only its mean does
    torch.testing.assert_close(orthogonal_memory(q, x.flip(1), basis, causal=False), whole)
    torch.testing.assert_close(orthogonal_memory(q, mean[:, None].expand_as(x).contiguous(), basis, causal=False), whole)
    # the last causal token reads the mean of all
    torch.testing.assert_close(orthogonal_memory(q, x, basis)[:, -1], whole[:, -1])
    # one slot: every query finds m b; no scale: uniform weights
    one = orthogonal_memory(q, x, basis[:, :1], causal=False)
    torch.testing.assert_close(one, (inside[..., :1] * basis[None, :, 0])[:, None].expand_as(one))
    flat = orthogonal_memory(q, x, basis, causal=False, scale=0.0)
    torch.testing.assert_close(flat[:, 0], torch.einsum("bhr,hrk->bhk", inside, basis) / R)
    # no output is longer than the mean
    assert bool((whole.norm(dim=-1) <= inside.abs().amax(-1)[:, None] + 1e-12).all())
    assert bool((inside.abs().amax(-1) <= mean.norm(dim=-1) + 1e-12).all())
    # a context that does not change: the memory is there from the first token on
    constant = x[:, :1].expand_as(x).contiguous()
    torch.testing.assert_close(orthogonal_memory(q, constant, basis), orthogonal_memory(q, constant, basis, causal=False))


def test_contexts_of_equal_mean_collide():
    """[(2,0), (0,2)] and [(1,1), (1,1)] (study note 2.3)."""
    q, basis = draw(1, 3, 1, 2, gradient=False), torch.eye(2, dtype=torch.float64)[None]
    one, other = (torch.tensor(x, dtype=torch.float64).view(1, 2, 1, 2) for x in ([2, 0, 0, 2], [1, 1, 1, 1]))
    assert torch.equal(orthogonal_memory(q, one, basis, causal=False), orthogonal_memory(q, other, basis, causal=False))


def test_another_documents_memory():
    """Cross attention: any number of queries, the same answer alone or together, 0 from an empty context."""
    q, x = draw(B, 5, H, K, gradient=False), draw(B, 33, H, K, gradient=False, seed=1)
    basis, context_B = orthonormal(gradient=False), torch.tensor([33, 4, 0])
    y = orthogonal_memory(q, x, basis, causal=False, context_B=context_B)
    torch.testing.assert_close(orthogonal_memory(q[:, 2:3], x, basis, causal=False, context_B=context_B), y[:, 2:3])
    torch.testing.assert_close(orthogonal_memory(q[1:2], x[1:2, :4], basis, causal=False), y[1:2])
    assert float(y[2].abs().max()) == 0
    memory = compress(x, basis, lengths_B=context_B)
    assert torch.equal(read_memory(q, basis, memory), y)
    halves = compress(x[:, 20:], basis, lengths_B=(context_B - 20).clamp(min=0),
                      state=compress(x[:, :20], basis, lengths_B=context_B.clamp(max=20)))
    torch.testing.assert_close(halves.sum_BHR, memory.sum_BHR)
    assert torch.equal(halves.count_B, memory.count_B)


def test_a_shared_memory_is_one_basis_of_full_width():
    """B x over the whole width, and each head reads its own slice of the rows."""
    q, x = draw(1, 9, H, K, gradient=False), draw(1, 9, H, K, gradient=False, seed=1)
    rows = torch.linalg.qr(draw(H * K, H * K, gradient=False))[0][:R]
    basis = rows.view(R, H, K).transpose(0, 1).contiguous()
    mean = (x.flatten(2) @ rows.T).cumsum(1) / torch.arange(1, 10, dtype=torch.float64)[:, None]
    slots = mean[:, :, None, :, None] * basis
    weights = torch.einsum("blhk,blhrk->blhr", q, slots).softmax(-1)
    torch.testing.assert_close(
        orthogonal_memory(q, x, basis, shared=True), torch.einsum("blhr,blhrk->blhk", weights, slots))


@pytest.mark.parametrize("causal", [True, False])
def test_gradcheck(causal):
    leaves = [draw(2, 5, 2, 3), draw(2, 5, 2, 3, seed=1), draw(2, 2, 3, seed=2), draw(2, 2, 2, seed=4)]
    for settings in ({}, {"closed": 2}, {"shared": True}) if causal else ({}, {"shared": True}):
        if settings.get("shared"):
            leaves[3] = draw(2, 1, 2, seed=4)

        def call(q, x, basis, sums, settings=settings):
            y, state = orthogonal_memory(q, x, basis, state=MemoryState(sums, torch.tensor([0, 4])), causal=causal,
                                         return_state=True, chunk=2, **settings)
            return y, state.sum_BHR

        assert torch.autograd.gradcheck(call, leaves)
        leaves[3] = draw(2, 2, 2, seed=4)


def test_the_mean_of_a_long_row():
    """131,072 tokens whose mean is not 0: float32 against float64, sums and outputs."""
    L, width = 131_072, 4
    q = draw(1, L, 1, width, gradient=False, dtype=torch.float32)
    x = draw(1, L, 1, width, gradient=False, dtype=torch.float32, seed=1) + 1
    basis = orthonormal(4, torch.float32, False, heads=1, width=4)
    y, state = orthogonal_memory(q, x, basis, return_state=True)
    truth = torch.einsum("lhk,hrk->lhr", x[0].double(), basis.double()).cumsum(0)
    assert error([state.sum_BHR], [truth[-1:]]) <= 2e-6
    mean = truth / torch.arange(1, L + 1).double()[:, None, None]
    slots = mean[..., None] * basis.double()
    expected = torch.einsum("lhr,lhrk->lhk", torch.einsum("lhk,lhrk->lhr", q[0].double(), slots).softmax(-1), slots)
    assert error([y[0, -4096:]], [expected[-4096:]]) <= 5e-6
    for settings in ({"closed": 64}, {"causal": False}):
        _, state = orthogonal_memory(q, x, basis, return_state=True, **settings)
        assert error([state.sum_BHR], [truth[-1:]]) <= 2e-6


def test_bfloat16():
    q, x = (draw(B, 300, H, K, seed=seed, gradient=False, dtype=torch.bfloat16) for seed in (0, 1))
    basis = orthonormal(gradient=False)
    for settings in ({}, {"closed": 16}, {"causal": False}):
        y, state = orthogonal_memory(q, x, basis.float(), return_state=True, **settings)
        truth, exact = orthogonal_memory(q.double(), x.double(), basis, return_state=True, **settings)
        assert y.dtype == torch.bfloat16 and state.sum_BHR.dtype == torch.float32
        assert error([y], [truth]) <= TOLERANCE[torch.bfloat16]
        assert error([state.sum_BHR], [exact.sum_BHR]) <= 1e-5


def test_large_inputs_stay_finite():
    q, x = (draw(B, 40, H, K, seed=seed, dtype=torch.float32, gradient=False) * 1e3 for seed in (0, 1))
    y = orthogonal_memory(q, x, orthonormal(dtype=torch.float32, gradient=False))
    assert y.isfinite().all()
    truth = orthogonal_memory(q.double(), x.double(), orthonormal(gradient=False), backend="naive")
    assert error([y], [truth]) <= 1e-3


def test_no_tokens():
    basis = orthonormal(gradient=False)
    none = torch.zeros(B, 0, H, K, dtype=torch.float64)
    y, state = orthogonal_memory(none, none, basis, return_state=True)
    assert y.shape == none.shape and state.count_B.tolist() == [0] * B
    y, state = orthogonal_memory(none, none, basis, state=memory_state(gradient=False), return_state=True)
    assert torch.equal(state.sum_BHR, memory_state(gradient=False).sum_BHR)
    y = orthogonal_memory(draw(B, 2, H, K, gradient=False), none, basis, causal=False)
    assert torch.equal(y, torch.zeros(B, 2, H, K, dtype=torch.float64))
    assert empty_state(B, H, R, torch.bfloat16, shared=True).sum_BHR.shape == (B, 1, R)


def test_refusals():
    q, basis = draw(B, 5, H, K, gradient=False), orthonormal(gradient=False)
    with pytest.raises(UnsupportedUse, match="orthogonal_memory"):
        orthogonal_memory(q, q, basis, backend="cuda")
    for wrong in ({"x_BMHK": q[:, :3]}, {"context_B": torch.ones(B)}, {"closed": 0}, {"closed": 2, "causal": False},
                  {"basis_HRK": basis[:1]}, {"basis_HRK": basis[0]}, {"x_BMHK": q[..., :2]}):
        arguments = {"q_BLHK": q, "x_BMHK": q, "basis_HRK": basis, **wrong}
        with pytest.raises(LayoutError):
            orthogonal_memory(**arguments)
    with pytest.raises(LayoutError, match="whole windows of 3"):
        orthogonal_memory(q, q, basis, closed=3, state=memory_state(gradient=False))
    with pytest.raises(LayoutError, match="state.sum_BHR: got .*expected torch.float"):
        orthogonal_memory(q, q, basis, shared=True, state=memory_state(gradient=False))


@pytest.mark.parametrize("backend", ["naive", "chunked"])
@pytest.mark.parametrize("wrong", [
    {"lengths_B": torch.full((B,), 6)}, {"lengths_B": torch.full((B,), -1)}, {"chunk": 0},
    {"context_B": torch.full((B,), 6), "causal": False}, {"lengths_B": torch.full((B,), 6), "closed": 2}],
    ids=lambda wrong: next(iter(wrong)))
def test_settings_out_of_range(backend, wrong):
    q = draw(B, 5, H, K, gradient=False)
    with pytest.raises(LayoutError, match=next(iter(wrong))):
        orthogonal_memory(q, q, orthonormal(gradient=False), backend=backend, **wrong)


def test_a_context_cannot_be_longer_than_its_tokens():
    with pytest.raises(LayoutError, match="lengths_B"):
        compress(draw(B, 5, H, K, gradient=False), orthonormal(gradient=False), lengths_B=torch.full((B,), 6))


def test_a_step_refuses_what_does_not_fit():
    q, basis = draw(B, H, K, gradient=False), orthonormal(gradient=False)
    state = empty_state(B, H, R, torch.float64)
    for arguments in ((q, q, basis, empty_state(1, H, R, torch.float64)), (q, q, basis, empty_state(B, H, R, torch.float32)),
                      (q, q, basis, empty_state(B, H, R + 1, torch.float64)), (q, q[:1], basis, state),
                      (q, q, basis[:1], state), (q[:, None], q[:, None], basis, state),
                      (q, q, basis, MemoryState(state.sum_BHR, state.count_B.double())),
                      (q, q, basis, MemoryState(state.sum_BHR, state.count_B[:1]))):
        with pytest.raises(LayoutError):
            memory_step(*arguments)


@pytest.mark.parametrize("backend", ["naive", "chunked"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_no_rows(causal, shared, backend):
    none = torch.zeros(0, 4, H, K, dtype=torch.float64)
    y, state = orthogonal_memory(none, none, orthonormal(gradient=False), causal=causal, shared=shared, backend=backend,
                                 return_state=True)
    assert y.shape == none.shape and state.sum_BHR.shape == (0, 1 if shared else H, R) and state.count_B.shape == (0,)
