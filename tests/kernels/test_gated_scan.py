"""The gated scan in chunks against the token-by-token truth: one decay a head and one a key channel."""

import math

import pytest
import torch

from kernels.errors import LayoutError, UnsupportedUse
from kernels.gated_scan import empty_state, gated_scan, gated_step
from tests.kernels.agreement import LENGTHS, TOLERANCE, draw, error, with_gradients

B, H, K, V = 2, 3, 5, 4
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
KINDS = pytest.mark.parametrize("kind", ["head", "channel"])


def row(L, kind, dtype=torch.float64, gradient=True, B=B, H=H, K=K, V=V):
    """q, k, v and log-decays between 0 and about -3, most of them weak."""
    q, k, v = (draw(B, L, H, width, dtype=dtype, seed=seed, gradient=gradient) for seed, width in enumerate((K, K, V)))
    decay = -0.3 * draw(*(B, L, H, K)[: 3 + (kind == "channel")], seed=7, gradient=False).square()
    return q, k, v, decay.to(dtype).requires_grad_(gradient)


def first(lengths_B, L):
    return (torch.arange(L) < lengths_B[:, None])[..., None, None]


@KINDS
def test_two_tokens_by_hand(kind):
    """8/2 + 2·3 = 10, then 10/4 + 1·(-1) = 1.5; read with 3 and 2, halved. The decay acts before the write.

    A second channel holds 4 and fades by 1/8, then not at all; nobody reads or writes it.
    """
    q, k, v = (torch.tensor(x).view(1, 2, 1, -1) for x in (((3.0, 0.0), (2.0, 0.0)), ((2.0, 0.0), (1.0, 0.0)), (3.0, -1.0)))
    decay = torch.tensor(((0.5, 0.125), (0.25, 1.0))).log().view(1, 2, 1, 2)
    log_decay = decay if kind == "channel" else decay[..., 0]
    for backend in ("naive", "chunked"):
        y, state = gated_scan(q, k, v, log_decay, state=torch.tensor((8.0, 4.0)).view(1, 1, 2, 1), scale=0.5,
                              backend=backend, return_state=True)
        assert y.flatten().tolist() == pytest.approx([15.0, 1.5])
        assert state.flatten().tolist() == pytest.approx([1.5, 0.5])


@KINDS
@DTYPES
@pytest.mark.parametrize("L", LENGTHS)
def test_without_a_state(L, dtype, kind):
    truth, leaves, weights = row(L, kind), row(L, kind, dtype), [draw(B, L, H, V, gradient=False)]
    expected = with_gradients(lambda: [gated_scan(*truth, backend="naive")], truth, weights)
    for chunk in (None, 16, 128):
        got = with_gradients(lambda chunk=chunk: [gated_scan(*leaves, chunk=chunk)], leaves, weights)
        assert error(got, expected) <= TOLERANCE[dtype], chunk
    with torch.no_grad():
        assert error([gated_scan(*leaves)], expected[:1]) <= TOLERANCE[dtype]


@KINDS
@DTYPES
@pytest.mark.parametrize("L", LENGTHS)
def test_state_in_and_out(L, dtype, kind):
    lengths_B = torch.tensor([L, L // 2])
    real = first(lengths_B, L)
    weights = [draw(B, L, H, V, gradient=False) * real, draw(B, H, K, V, seed=3, gradient=False)]
    results = []
    for backend, chunk, precision in (("naive", None, torch.float64), ("auto", None, dtype), ("auto", 16, dtype)):
        leaves = (*row(L, kind, precision), draw(B, H, K, V, seed=5, dtype=precision))

        def call(leaves=leaves, backend=backend, chunk=chunk):
            y, after = gated_scan(*leaves[:4], state=leaves[4], lengths_B=lengths_B, chunk=chunk, backend=backend,
                                  return_state=True)
            return y * real, after

        results.append(with_gradients(call, leaves, weights))
    for got in results[1:]:
        assert error(got, results[0]) <= TOLERANCE[dtype]
        for tensor, expected in zip(got, results[0]):  # each alone too: a small gradient must not hide behind a large
            assert error([tensor], [expected]) <= 10 * TOLERANCE[dtype]


@KINDS
@pytest.mark.parametrize("chunk", [1, 3, 16, 64, 105])
def test_the_chunk_changes_nothing(chunk, kind):
    leaves = (*row(100, kind), draw(B, H, K, V, seed=5))
    results = []
    for size in (100, chunk):
        y, after = gated_scan(*leaves[:4], state=leaves[4], chunk=size, return_state=True)
        results.append([y, after, *torch.autograd.grad(y.square().sum() + after.sum(), leaves)])
    assert error(results[1], results[0]) <= 1e-10


@KINDS
@pytest.mark.parametrize("chunk", [None, 2])
def test_gradcheck(chunk, kind):
    leaves = row(5, kind, B=2, H=1, K=2, V=2)
    lengths_B = torch.tensor([5, 3])

    def flat(q, k, v, log_decay, state):
        y, after = gated_scan(q, k, v, log_decay, state=state, lengths_B=lengths_B, chunk=chunk, return_state=True)
        return y[:, :3], after

    assert torch.autograd.gradcheck(flat, (*leaves, draw(2, 1, 2, 2, seed=5)))
    assert torch.autograd.gradcheck(lambda *x: gated_scan(*x, chunk=chunk), leaves)


@KINDS
def test_a_gradient_may_come_through_one_output_alone(kind):
    leaves = (*row(70, kind), draw(B, H, K, V, seed=5))
    for which in (0, 1):
        got, expected = (torch.autograd.grad(gated_scan(
            *leaves[:4], state=leaves[4], backend=backend, return_state=True)[which].square().sum(), leaves,
            allow_unused=True, materialize_grads=True) for backend in ("chunked", "naive"))
        assert error(got, expected) <= 1e-10


@KINDS
def test_pads_neither_decay_nor_write(kind):
    inputs = row(9, kind, gradient=False)
    start = draw(B, H, K, V, seed=5, gradient=False)
    alone = gated_scan(*(x[:, :5] for x in inputs), state=start.clone(), return_state=True)[1]
    for filling in (0.0, -1e3):
        padded = [torch.cat((x[:, :5], torch.full_like(x[:, 5:], filling)), 1) for x in inputs]
        for backend, chunk in (("naive", None), ("chunked", None), ("chunked", 4)):
            options = {"backend": backend, "chunk": chunk, "return_state": True}
            _, state = gated_scan(*padded, lengths_B=torch.tensor([5, 5]), state=start.clone(), **options)
            assert error([state], [alone]) <= 1e-12, (filling, backend)
            _, same = gated_scan(*padded, lengths_B=torch.tensor([0, 0]), state=start.clone(), **options)
            assert torch.equal(same, start), "a row of no tokens keeps its state bit for bit"


@KINDS
@DTYPES
def test_gates_of_every_strength(dtype, kind):
    """No sum of log-decays is ever subtracted from another: -1e4 costs its neighbours not one digit."""
    L = 300
    strengths = torch.tensor([0.0, -1e-4, -30.0, -1e4], dtype=torch.float64)
    *qkv, like = row(L, kind)
    pick = torch.randint(4, like.shape, generator=torch.Generator().manual_seed(0))
    pick = torch.where(torch.rand(like.shape, generator=torch.Generator().manual_seed(1)) < 0.8, pick.clamp(max=1), pick)
    weights = [draw(B, L, H, V, gradient=False), draw(B, H, K, V, seed=3, gradient=False)]
    results = []
    for backend, precision, chunk in (("naive", torch.float64, None), ("chunked", dtype, None), ("chunked", dtype, 128)):
        leaves = [x.detach().to(precision).requires_grad_() for x in (*qkv, strengths[pick], draw(B, H, K, V, seed=5))]
        results.append(with_gradients(lambda leaves=leaves, backend=backend, chunk=chunk: gated_scan(
            *leaves[:4], state=leaves[4], backend=backend, chunk=chunk, return_state=True), leaves, weights))
    for got in results[1:]:
        assert all(x.isfinite().all() for x in got)
        for tensor, expected in zip(got, results[0]):
            assert error([tensor], [expected]) <= TOLERANCE[dtype]


@KINDS
@pytest.mark.parametrize("strength", [0.0, -1e-4, -30.0, -1e4])
def test_one_strength_throughout(strength, kind):
    leaves = [x.detach().float() for x in row(200, kind)]
    leaves[3] = torch.full_like(leaves[3], strength)
    y, state = gated_scan(*leaves, return_state=True)
    expected, truth = gated_scan(*(x.double() for x in leaves), backend="naive", return_state=True)
    assert error([y, state], [expected, truth]) <= 2e-5


def test_a_chunk_is_summed_before_it_joins_the_long_sum():
    """131,072 tokens without decay, features about a mean of 1: rounded once a token the state would be off by 7e-6."""
    given = [draw(1, 131_072, 1, width, seed=seed, gradient=False).float().sin() + 1.2 for seed, width in enumerate((4, 4, 3))]
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in given]
        y, state = gated_scan(*leaves, torch.zeros(1, 131_072, 1, dtype=dtype), return_state=True)
        weights = torch.linspace(1, 2, y.numel(), dtype=dtype).view(y.shape)
        results.append([y, state, *torch.autograd.grad((y * weights).sum(), leaves)])
    for got, expected in zip(*results):
        assert error([got], [expected]) <= 5e-6


@KINDS
def test_the_state_after_131072_tokens(kind):
    """Writes of 1 that fade by e^-1e-4 a token: a geometric sum. One rounded decay a token would be off by 2e-4."""
    L, g = 131072, -1e-4
    one = torch.ones(1, L, 1, 2)
    log_decay = torch.full((1, L, 1, 2)[: 3 + (kind == "channel")], g)
    y, state = gated_scan(one, one, one[..., :1], log_decay, scale=0.5, return_state=True)
    g = float(torch.tensor(g))
    expected = [math.expm1(g * L) / math.expm1(g)] * 2
    assert state.flatten().tolist() == pytest.approx(expected, rel=2e-5)
    assert y[0, -1].item() == pytest.approx(expected[0], rel=2e-5)


def test_heads_and_channels_agree_where_all_channels_fade_alike():
    q, k, v, decay = row(100, "head", gradient=False)
    channel = decay.unsqueeze(-1).expand(B, 100, H, K)
    assert error([gated_scan(q, k, v, channel)], [gated_scan(q, k, v, decay)]) <= 1e-12


def test_no_decay_is_plain_linear_attention():
    q, k, v, decay = row(80, "head", gradient=False)
    weights = torch.einsum("bihk,bjhk->bhij", q, k).tril() * K**-0.5
    expected = torch.einsum("bhij,bjhv->bihv", weights, v)
    assert error([gated_scan(q, k, v, torch.zeros_like(decay))], [expected]) <= 1e-12


@KINDS
def test_steps_are_the_row(kind):
    inputs = row(7, kind, gradient=False)
    start = draw(B, H, K, V, seed=5, gradient=False)
    expected, last = gated_scan(*inputs, state=start.clone(), backend="naive", return_state=True)
    for gradients in (True, False):
        given = state = start.clone()
        outputs = []
        with torch.set_grad_enabled(gradients):
            for t in range(7):
                y, state = gated_step(*(x[:, t] for x in inputs), state)
                outputs.append(y)
        assert error([torch.stack(outputs, 1), state], [expected, last]) <= 1e-12
        assert (state.data_ptr() == given.data_ptr()) == (not gradients), "in place when gradients are off, and only then"


@KINDS
def test_a_step_has_gradients(kind):
    leaves = [x.detach()[:, 0].requires_grad_() for x in row(1, kind)]
    assert torch.autograd.gradcheck(lambda *x: gated_step(*x), (*leaves, draw(B, H, K, V, seed=5)))


@KINDS
@pytest.mark.parametrize("cuts", [(1,), (31, 32), (33, 64, 65), (99,)])
def test_pieces_are_the_whole(cuts, kind):
    inputs = row(100, kind, gradient=False)
    whole, last = gated_scan(*inputs, return_state=True)
    outputs, state = [], None
    for start, stop in zip((0, *cuts), (*cuts, 100)):
        y, state = gated_scan(*(x[:, start:stop] for x in inputs), state=state, return_state=True)
        outputs.append(y)
    assert error([torch.cat(outputs, 1), state], [whole, last]) <= 1e-12


@KINDS
def test_only_a_call_without_gradients_may_overwrite_the_state(kind):
    inputs, start = row(70, kind, gradient=False), draw(B, H, K, V, seed=5)
    before = start.detach().clone()
    _, after = gated_scan(*inputs, state=start, return_state=True)
    assert torch.equal(start, before) and not torch.equal(after, before)


@KINDS
def test_shared_keys_may_be_views(kind):
    q, _, v, decay = row(70, kind, B=1, H=4)
    leaf = draw(1, 70, 2, K, seed=1)

    def gradients(backend):
        shared = leaf.unsqueeze(3).expand(1, 70, 2, 2, K).flatten(2, 3)
        y = gated_scan(q[:, :, :1].expand(1, 70, 4, K), shared, v, decay, backend=backend)
        return torch.autograd.grad(y.square().sum(), (leaf, q, decay))

    assert error(gradients("chunked"), gradients("naive")) <= 1e-10


@KINDS
def test_memory_of_the_backward_is_linear(kind):
    def kept(L):
        sizes = []

        def note(tensor):
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            gated_scan(*row(L, kind))
        return sum(sizes)

    assert kept(1024) <= 2.01 * kept(512)


@KINDS
def test_bfloat16_keeps_a_float32_state(kind):
    inputs = row(300, kind, torch.bfloat16, gradient=False)
    y, state = gated_scan(*inputs, return_state=True)
    assert y.dtype == torch.bfloat16 and state.dtype == torch.float32
    expected, truth = gated_scan(*(x.double() for x in inputs), backend="naive", return_state=True)
    assert error([y], [expected]) <= TOLERANCE[torch.bfloat16]
    assert error([state], [truth]) <= 2e-5


@KINDS
def test_autocast_does_not_round_the_state(kind):
    inputs = row(200, kind, torch.float32)
    expected = with_gradients(
        lambda: [gated_scan(*(x.double() for x in inputs), backend="naive")], inputs, [torch.ones(())])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert error(with_gradients(lambda: [gated_scan(*inputs)], inputs, [torch.ones(())]), expected) <= 2e-5


@KINDS
def test_fresh_memory_is_never_read(kind, monkeypatch):
    inputs, lengths_B = row(75, kind), torch.tensor([75, 30])
    empty = torch.empty

    def poisoned(*args, **options):
        tensor = empty(*args, **options)
        return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", poisoned)
    monkeypatch.setattr(torch, "empty_like", lambda x, **options: poisoned(x.shape, dtype=x.dtype, device=x.device))
    y, state = gated_scan(*inputs, lengths_B=lengths_B, chunk=16, return_state=True)
    gradients = torch.autograd.grad((y * first(lengths_B, 75)).sum() + state.sum(), inputs)
    assert all(x.isfinite().all() for x in (y, state, *gradients))
    assert not gradients[1][1, 30:].any() and not gradients[3][1, 30:].any(), "nothing flows into pads"


def test_the_scale_is_a_setting():
    inputs = row(70, "head", gradient=False)
    assert error([gated_scan(*inputs, scale=0.5)], [gated_scan(*inputs, scale=0.5, backend="naive")]) <= 1e-12
    assert error([gated_scan(*inputs)], [gated_scan(*inputs, scale=K**-0.5)]) <= 1e-12


@KINDS
def test_nothing_to_read_gives_nothing(kind):
    y, state = gated_scan(*row(0, kind, gradient=False), return_state=True)
    assert y.shape == (B, 0, H, V) and not state.any() and state.shape == (B, H, K, V)
    start = draw(B, H, K, V, seed=5, gradient=False)
    assert torch.equal(gated_scan(*row(0, kind, gradient=False), state=start, return_state=True)[1], start)
    y, state = gated_scan(*row(3, kind, gradient=False, B=0), return_state=True)
    assert y.shape == (0, 3, H, V) and state.shape == (0, H, K, V)
    assert empty_state(1, 2, 3, 4, torch.bfloat16).dtype == torch.float32


def test_refusals():
    q, k, v, decay = row(3, "head", gradient=False)
    with pytest.raises(UnsupportedUse, match="gated_scan: no backend 'triton'"):
        gated_scan(q, k, v, decay, backend="triton")
    with pytest.raises(UnsupportedUse, match="gated_scan: backend 'fla' cannot run here: it takes"):
        gated_scan(q, k, v, decay, backend="fla")
    with pytest.raises(LayoutError, match="log_decay: got .*a channel.*a head"):
        gated_scan(q, k, v, decay[..., :2])
    with pytest.raises(LayoutError, match="state: got"):
        gated_scan(q, k, v, decay, state=torch.zeros(B, H, V, K, dtype=torch.float64))
    with pytest.raises(LayoutError, match="float64"):
        gated_scan(q, k, v, decay, state=torch.zeros(B, H, K, V))
