"""The delta rule in chunks against the token-by-token truth, with and without a decay."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from kernels.delta_scan import delta_scan, delta_step, empty_state
from kernels.errors import LayoutError, UnsupportedUse
from kernels.gated_scan import gated_scan
from tests.kernels.agreement import LENGTHS, TOLERANCE, draw, error, with_gradients

B, H, K, V = 2, 3, 5, 4
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
KINDS = pytest.mark.parametrize("kind", ["plain", "decayed"])


def row(L, kind, dtype=torch.float64, gradient=True, B=B, H=H, K=K, V=V):
    """q, unit keys, v, strengths in (0, 1.6), and log-decays between 0 and about -3."""
    q, k, v = (draw(B, L, H, width, seed=seed, gradient=False) for seed, width in enumerate((K, K, V)))
    beta = 1.6 * draw(B, L, H, seed=6, gradient=False).sigmoid()
    leaves = [q, normalize(k, dim=-1), v, beta]
    if kind == "decayed":
        leaves.append(-0.3 * draw(B, L, H, seed=7, gradient=False).square())
    return [x.to(dtype).requires_grad_(gradient) for x in leaves]


def run(leaves, state=None, **options):
    """The scan on what `row` gives."""
    return delta_scan(*leaves[:4], log_decay_BLH=leaves[4] if len(leaves) > 4 else None, state=state, **options)


def first(lengths_B, L):
    return (torch.arange(L) < lengths_B[:, None])[..., None, None]


def test_two_tokens_by_hand():
    """Half of 8 is 4; under key 2 that recalls 8, so 4 + 0.5·2·(10 - 8) = 6. Then 6 + 0.25·1·(2 - 6) = 5."""
    q, k, v = (torch.tensor(x).view(1, 2, 1, 1) for x in ((3.0, 2.0), (2.0, 1.0), (10.0, 2.0)))
    beta, log_decay = torch.tensor((0.5, 0.25)).view(1, 2, 1), torch.tensor((0.5, 1.0)).log().view(1, 2, 1)
    for backend in ("naive", "chunked"):
        y, state = delta_scan(q, k, v, beta, log_decay_BLH=log_decay, state=torch.full((1, 1, 1, 1), 8.0), scale=0.5,
                              backend=backend, return_state=True)
        assert y.flatten().tolist() == pytest.approx([9.0, 5.0]) and state.item() == pytest.approx(5.0)


def test_a_full_write_replaces_what_the_key_held():
    k = torch.eye(K, dtype=torch.float64)[[0, 1, 0]].view(1, 3, 1, K)
    v = draw(1, 3, 1, V, gradient=False)
    y, state = delta_scan(k, k, v, torch.ones(1, 3, 1, dtype=torch.float64), scale=1.0, return_state=True)
    assert error([state[0, 0, :2]], [torch.stack((v[0, 2, 0], v[0, 1, 0]))]) <= 1e-12
    assert error([y], [v]) <= 1e-12


@KINDS
@DTYPES
@pytest.mark.parametrize("L", LENGTHS)
def test_without_a_state(L, dtype, kind):
    truth, leaves, weights = row(L, kind), row(L, kind, dtype), [draw(B, L, H, V, gradient=False)]
    expected = with_gradients(lambda: [run(truth, backend="naive")], truth, weights)
    for chunk in (None, 16, 128):
        got = with_gradients(lambda chunk=chunk: [run(leaves, chunk=chunk)], leaves, weights)
        assert error(got, expected) <= TOLERANCE[dtype], chunk
    with torch.no_grad():
        assert error([run(leaves)], expected[:1]) <= TOLERANCE[dtype]


@KINDS
@DTYPES
@pytest.mark.parametrize("L", LENGTHS)
def test_state_in_and_out(L, dtype, kind):
    lengths_B = torch.tensor([L, L // 2])
    real = first(lengths_B, L)
    weights = [draw(B, L, H, V, gradient=False) * real, draw(B, H, K, V, seed=3, gradient=False)]
    results = []
    for backend, chunk, precision in (("naive", None, torch.float64), ("auto", None, dtype), ("auto", 16, dtype)):
        leaves, state = row(L, kind, precision), draw(B, H, K, V, seed=5, dtype=precision)

        def call(leaves=leaves, state=state, backend=backend, chunk=chunk):
            y, after = run(leaves, state, lengths_B=lengths_B, chunk=chunk, backend=backend, return_state=True)
            return y * real, after

        results.append(with_gradients(call, (*leaves, state), weights))
    for got in results[1:]:
        assert error(got, results[0]) <= TOLERANCE[dtype]
        for tensor, expected in zip(got, results[0]):  # each alone too: a small gradient must not hide behind a large
            assert error([tensor], [expected]) <= 10 * TOLERANCE[dtype]


@KINDS
@pytest.mark.parametrize("chunk", [1, 3, 16, 64, 105])
def test_the_chunk_changes_nothing(chunk, kind):
    leaves, state = row(100, kind), draw(B, H, K, V, seed=5)
    results = []
    for size in (100, chunk):
        y, after = run(leaves, state, chunk=size, return_state=True)
        results.append([y, after, *torch.autograd.grad(y.square().sum() + after.sum(), (*leaves, state))])
    assert error(results[1], results[0]) <= 1e-10


@KINDS
@pytest.mark.parametrize("chunk", [None, 2])
def test_gradcheck(chunk, kind):
    leaves, lengths_B = row(5, kind, B=2, H=1, K=2, V=2), torch.tensor([5, 3])

    def flat(state, *leaves):
        y, after = run(leaves, state, lengths_B=lengths_B, chunk=chunk, return_state=True)
        return y[:, :3], after

    assert torch.autograd.gradcheck(flat, (draw(2, 1, 2, 2, seed=5), *leaves))
    assert torch.autograd.gradcheck(lambda *x: run(x, chunk=chunk), leaves)


@KINDS
def test_a_gradient_may_come_through_one_output_alone(kind):
    leaves, state = row(70, kind), draw(B, H, K, V, seed=5)
    for which in (0, 1):
        got, expected = (torch.autograd.grad(
            run(leaves, state, backend=backend, return_state=True)[which].square().sum(), (*leaves, state),
            allow_unused=True, materialize_grads=True) for backend in ("chunked", "naive"))
        assert error(got, expected) <= 1e-10


@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_a_gate_of_one_is_deltanet_exactly(backend):
    """Bit for bit, gradients too: a decay of 1 multiplies exactly."""
    leaves, state = row(100, "plain", torch.float32), draw(B, H, K, V, seed=5, dtype=torch.float32)
    weights = [draw(B, 100, H, V, dtype=torch.float32, gradient=False), torch.ones(())]
    plain, gated = (with_gradients(lambda gate=gate: run(
        [*leaves, *gate], state, backend=backend, return_state=True), (*leaves, state), weights)
        for gate in ([], [torch.zeros(B, 100, H)]))
    assert all(torch.equal(a, b) for a, b in zip(plain, gated))


def test_orthogonal_keys_make_it_the_gated_scan():
    """Where no key recalls another, the correction is beta v: the gated scan's write."""
    L = 8
    q, _, v, beta, log_decay = row(L, "decayed", gradient=False, B=1, H=1, K=L)
    k = torch.eye(L, dtype=torch.float64).view(1, L, 1, L)
    expected = gated_scan(q, k, v * beta.unsqueeze(-1), log_decay)
    assert error([delta_scan(q, k, v, beta, log_decay_BLH=log_decay)], [expected]) <= 1e-12


@KINDS
def test_pads_neither_decay_nor_write(kind):
    inputs, start = row(9, kind, gradient=False), draw(B, H, K, V, seed=5, gradient=False)
    alone = run([x[:, :5] for x in inputs], start.clone(), return_state=True)[1]
    for filling in (0.0, -3.0):
        padded = [torch.cat((x[:, :5], torch.full_like(x[:, 5:], filling)), 1) for x in inputs]
        for backend, chunk in (("naive", None), ("chunked", None), ("chunked", 4)):
            options = {"backend": backend, "chunk": chunk, "return_state": True}
            _, state = run(padded, start.clone(), lengths_B=torch.tensor([5, 5]), **options)
            assert error([state], [alone]) <= 1e-12, (filling, backend)
            _, same = run(padded, start.clone(), lengths_B=torch.tensor([0, 0]), **options)
            assert torch.equal(same, start), "a row of no tokens keeps its state bit for bit"


@DTYPES
def test_gates_of_every_strength(dtype):
    L = 300
    strengths = torch.tensor([0.0, -1e-4, -30.0, -1e4], dtype=torch.float64)
    *inputs, like = row(L, "decayed")
    pick = torch.randint(4, like.shape, generator=torch.Generator().manual_seed(0))
    pick = torch.where(torch.rand(like.shape, generator=torch.Generator().manual_seed(1)) < 0.8, pick.clamp(max=1), pick)
    weights = [draw(B, L, H, V, gradient=False), draw(B, H, K, V, seed=3, gradient=False)]
    results = []
    for backend, precision, chunk in (("naive", torch.float64, None), ("chunked", dtype, None), ("chunked", dtype, 128)):
        leaves = [x.detach().to(precision).requires_grad_() for x in (*inputs, strengths[pick], draw(B, H, K, V, seed=5))]
        results.append(with_gradients(lambda leaves=leaves, backend=backend, chunk=chunk: run(
            leaves[:5], leaves[5], backend=backend, chunk=chunk, return_state=True), leaves, weights))
    for got in results[1:]:
        assert all(x.isfinite().all() for x in got)
        for tensor, expected in zip(got, results[0]):
            assert error([tensor], [expected]) <= TOLERANCE[dtype]


@KINDS
def test_keys_that_repeat_and_strengths_up_to_two(kind):
    """One key for all tokens couples them as much as can be; beta 2 reflects (eigenvalue -1)."""
    leaves = row(200, kind, torch.float32, gradient=False)
    leaves[1] = normalize(leaves[1][:, :1] + 0.05 * leaves[1], dim=-1)
    leaves[3] = 2.0 * torch.ones_like(leaves[3])
    y, state = run(leaves, return_state=True)
    expected, truth = run([x.double() for x in leaves], backend="naive", return_state=True)
    assert error([y, state], [expected, truth]) <= 1e-4


@KINDS
def test_steps_are_the_row(kind):
    inputs, start = row(7, kind, gradient=False), draw(B, H, K, V, seed=5, gradient=False)
    expected, last = run(inputs, start.clone(), backend="naive", return_state=True)
    for gradients in (True, False):
        given = state = start.clone()
        outputs = []
        with torch.set_grad_enabled(gradients):
            for t in range(7):
                q, k, v, beta, *decay = (x[:, t] for x in inputs)
                y, state = delta_step(q, k, v, beta, state, log_decay_BH=decay[0] if decay else None)
                outputs.append(y)
        assert error([torch.stack(outputs, 1), state], [expected, last]) <= 1e-12
        assert (state.data_ptr() == given.data_ptr()) == (not gradients), "in place when gradients are off, and only then"


def test_a_step_has_gradients():
    leaves = [x.detach()[:, 0].requires_grad_() for x in row(1, "decayed")]
    assert torch.autograd.gradcheck(
        lambda q, k, v, beta, decay, state: delta_step(q, k, v, beta, state, log_decay_BH=decay),
        (*leaves, draw(B, H, K, V, seed=5)))


@KINDS
@pytest.mark.parametrize("cuts", [(1,), (31, 32), (33, 64, 65), (99,)])
def test_pieces_are_the_whole(cuts, kind):
    inputs = row(100, kind, gradient=False)
    whole, last = run(inputs, return_state=True)
    outputs, state = [], None
    for start, stop in zip((0, *cuts), (*cuts, 100)):
        y, state = run([x[:, start:stop] for x in inputs], state, return_state=True)
        outputs.append(y)
    assert error([torch.cat(outputs, 1), state], [whole, last]) <= 1e-12


@KINDS
def test_only_a_call_without_gradients_may_overwrite_the_state(kind):
    inputs, start = row(70, kind, gradient=False), draw(B, H, K, V, seed=5)
    before = start.detach().clone()
    _, after = run(inputs, start, return_state=True)
    assert torch.equal(start, before) and not torch.equal(after, before)


@KINDS
def test_memory_of_the_backward_is_linear(kind):
    def kept(L):
        sizes = []

        def note(tensor):
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            run(row(L, kind))
        return sum(sizes)

    assert kept(1024) <= 2.01 * kept(512)


@KINDS
def test_bfloat16_keeps_a_float32_state(kind):
    inputs = row(300, kind, torch.bfloat16, gradient=False)
    y, state = run(inputs, return_state=True)
    assert y.dtype == torch.bfloat16 and state.dtype == torch.float32
    expected, truth = run([x.double() for x in inputs], backend="naive", return_state=True)
    assert error([y], [expected]) <= TOLERANCE[torch.bfloat16]
    assert error([state], [truth]) <= 2e-5


@KINDS
def test_autocast_does_not_round_the_state(kind):
    inputs = row(200, kind, torch.float32)
    expected = with_gradients(lambda: [run([x.double() for x in inputs], backend="naive")], inputs, [torch.ones(())])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert error(with_gradients(lambda: [run(inputs)], inputs, [torch.ones(())]), expected) <= 2e-5


@KINDS
def test_fresh_memory_is_never_read(kind, monkeypatch):
    inputs, lengths_B = row(75, kind), torch.tensor([75, 30])
    empty = torch.empty

    def poisoned(*args, **options):
        tensor = empty(*args, **options)
        return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", poisoned)
    monkeypatch.setattr(torch, "empty_like", lambda x, **options: poisoned(x.shape, dtype=x.dtype, device=x.device))
    y, state = run(inputs, lengths_B=lengths_B, chunk=16, return_state=True)
    gradients = torch.autograd.grad((y * first(lengths_B, 75)).sum() + state.sum(), inputs)
    assert all(x.isfinite().all() for x in (y, state, *gradients))
    assert not any(x[1, 30:].any() for x in gradients), "nothing flows into pads"


def published(operation):
    """flash-linear-attention's plain loops: one file that needs torch alone, read without importing the package."""
    found = importlib.util.find_spec("fla")
    path = Path(found.submodule_search_locations[0] if found else "") / "ops" / operation / "naive.py"
    if not path.is_file():
        pytest.skip("flash-linear-attention is not installed")
    spec = importlib.util.spec_from_file_location(f"published_{operation}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_published_loops_agree():
    plain, gated = published("delta_rule"), published("gated_delta_rule")
    q, k, v, beta, log_decay = row(64, "decayed", torch.float32, gradient=False)
    heads_first = [x.transpose(1, 2) for x in (q, k, v, beta)]
    y, state = delta_scan(q, k, v, beta, return_state=True)
    for theirs, last in (plain.delta_rule_recurrence(*heads_first), plain.delta_rule_chunkwise(*heads_first)):
        assert error([y, state], [theirs.transpose(1, 2), last]) <= 2e-5
    start = draw(B, H, K, V, seed=5, dtype=torch.float32, gradient=False)
    y, state = delta_scan(q, k, v, beta, log_decay_BLH=log_decay, state=start.clone(), return_state=True)
    for form in (gated.naive_recurrent_gated_delta_rule, gated.naive_chunk_gated_delta_rule):
        theirs = form(q=q, k=k, v=v, beta=beta, g=log_decay, initial_state=start, output_final_state=True)
        assert error([y, state], theirs) <= 2e-5


@KINDS
def test_nothing_to_read_gives_nothing(kind):
    y, state = run(row(0, kind, gradient=False), return_state=True)
    assert y.shape == (B, 0, H, V) and not state.any() and state.shape == (B, H, K, V)
    start = draw(B, H, K, V, seed=5, gradient=False)
    assert torch.equal(run(row(0, kind, gradient=False), start, return_state=True)[1], start)
    y, state = run(row(3, kind, gradient=False, B=0), return_state=True)
    assert y.shape == (0, 3, H, V) and state.shape == (0, H, K, V)
    assert empty_state(1, 2, 3, 4, torch.bfloat16).dtype == torch.float32


def test_refusals():
    q, k, v, beta, log_decay = row(3, "decayed", gradient=False)
    with pytest.raises(UnsupportedUse, match="delta_scan: no backend 'triton'"):
        delta_scan(q, k, v, beta, backend="triton")
    with pytest.raises(UnsupportedUse, match="delta_scan: backend 'fla' cannot run here: it takes"):
        delta_scan(q, k, v, beta, backend="fla")
    with pytest.raises(LayoutError, match="beta_BLH: got"):
        delta_scan(q, k, v, beta[:, :2])
    with pytest.raises(LayoutError, match="log_decay_BLH: got"):
        delta_scan(q, k, v, beta, log_decay_BLH=log_decay.unsqueeze(-1))
    with pytest.raises(LayoutError, match="state: got"):
        delta_scan(q, k, v, beta, state=torch.zeros(B, H, V, K, dtype=torch.float64))
