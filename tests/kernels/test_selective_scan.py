"""The selective scan in chunks against the token-by-token truth."""

import pytest
import torch

from kernels.errors import LayoutError, UnsupportedUse
from kernels.selective_scan import chunked, empty_state, selective_scan, selective_step
from kernels.selective_scan.chunked import default_chunk
from kernels.selective_scan.recurrence import accumulate, double
from tests.kernels.agreement import LENGTHS, TOLERANCE, draw, error, with_gradients

B, D, N = 2, 5, 3
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
NAMES = ("x_BLD", "delta_BLD", "A_DN", "input_BLN", "output_BLN", "skip_D", "state")


def inputs(L, dtype=torch.float64, gradient=True, state=True, skip=True, B=B, D=D, N=N):
    """By name; steps near 0.3, decay rates of 0.2 to 3."""
    shapes = {"x_BLD": (B, L, D), "delta_BLD": (B, L, D), "A_DN": (D, N), "input_BLN": (B, L, N), "output_BLN": (B, L, N),
              "skip_D": (D,), "state": (B, D, N)}
    given = {name: draw(*shape, seed=seed, gradient=False) for seed, (name, shape) in enumerate(shapes.items())}
    given["delta_BLD"] = 0.3 * torch.nn.functional.softplus(given["delta_BLD"])
    given["A_DN"] = -0.2 - given["A_DN"].abs()
    if not state:
        del given["state"]
    if not skip:
        del given["skip_D"]
    return {name: x.to(dtype).requires_grad_(gradient) for name, x in given.items()}


def test_two_tokens_by_hand():
    """h = 3/2 + 2·1·4 = 9.5, then 9.5·2^(-1/4) + 0.5·2·1; read with 1 and 2, plus ten times x."""
    log_half = torch.log(torch.tensor(0.5))
    x, delta = torch.tensor([1.0, 2.0]).view(1, 2, 1), torch.tensor([2.0, 0.5]).view(1, 2, 1)
    for backend in ("naive", "chunked"):
        def scan(A, state, backend=backend):
            return selective_scan(
                x, delta, A.view(1, 1), torch.tensor([4.0, 1.0]).view(1, 2, 1), torch.tensor([1.0, 2.0]).view(1, 2, 1),
                skip_D=torch.tensor([10.0]), state=torch.tensor(state).view(1, 1, 1), backend=backend, return_state=True)

        y, state = scan(log_half / 2, 3.0)  # exp(delta A) = 1/2, then 2^-1/4
        fade = 0.5**0.25
        assert state.item() == pytest.approx(fade * 9.5 + 1)
        assert y.flatten().tolist() == pytest.approx([9.5 + 10, 2 * (fade * 9.5 + 1) + 20])


@DTYPES
@pytest.mark.parametrize("skip", [True, False], ids=["skip", "no skip"])
@pytest.mark.parametrize("L", LENGTHS)
def test_without_a_state(L, skip, dtype):
    truth, leaves = (inputs(L, precision, state=False, skip=skip) for precision in (torch.float64, dtype))
    weights = [draw(B, L, D, gradient=False)]
    expected = with_gradients(lambda: [selective_scan(**truth, backend="naive")], list(truth.values()), weights)
    for chunk in (None, 16):
        got = with_gradients(lambda chunk=chunk: [selective_scan(**leaves, chunk=chunk)], list(leaves.values()), weights)
        assert error(got, expected) <= TOLERANCE[dtype], chunk
    with torch.no_grad():
        assert error([selective_scan(**leaves)], expected[:1]) <= TOLERANCE[dtype]


@DTYPES
@pytest.mark.parametrize("L", LENGTHS)
def test_state_in_and_out(L, dtype):
    lengths_B = torch.tensor([L, L // 2])
    real = (torch.arange(L) < lengths_B[:, None])[..., None]
    weights, results = [draw(B, L, D, gradient=False) * real, draw(B, D, N, gradient=False)], []
    for backend, chunk, precision in (("naive", None, torch.float64), ("auto", None, dtype), ("auto", 16, dtype)):
        leaves = inputs(L, precision)

        def call(leaves=leaves, backend=backend, chunk=chunk):
            y, state = selective_scan(**leaves, lengths_B=lengths_B, backend=backend, chunk=chunk, return_state=True)
            return y * real, state

        results.append(with_gradients(call, list(leaves.values()), weights))
    for got in results[1:]:
        for name, a, b in zip(("y", "after", *NAMES), got, results[0]):
            assert error([a], [b]) <= 5 * TOLERANCE[dtype], name


@pytest.mark.parametrize("chunk", [1, 3, 16, 64, 105])
def test_the_chunk_changes_nothing(chunk):
    leaves = inputs(100)
    results = []
    for size in (100, chunk):
        y, after = selective_scan(**leaves, chunk=size, return_state=True)
        results.append([y, after, *torch.autograd.grad(y.square().sum() + after.sum(), list(leaves.values()))])
    assert error(results[1], results[0]) <= 1e-10


@pytest.mark.parametrize("chunk", [None, 2])
def test_gradcheck(chunk):
    leaves = inputs(5, D=2, N=2)
    lengths_B = torch.tensor([5, 3])

    def flat(*tensors):
        y, after = selective_scan(**dict(zip(leaves, tensors)), lengths_B=lengths_B, chunk=chunk, return_state=True)
        return y[:, :3], after

    assert torch.autograd.gradcheck(flat, list(leaves.values()))
    plain = inputs(5, D=2, N=2, state=False, skip=False)
    assert torch.autograd.gradcheck(lambda *t: selective_scan(*t, chunk=chunk), list(plain.values()))


def test_only_the_state_may_be_asked_for_its_gradient():
    results, leaves = [], inputs(70)
    for backend in ("naive", "auto"):
        _, after = selective_scan(**leaves, backend=backend, return_state=True)
        results.append(torch.autograd.grad(after.square().sum(), [leaves[name] for name in ("x_BLD", "A_DN", "state")]))
    assert error(results[1], results[0]) <= 1e-10


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("C", [1, 2, 3, 7, 8, 33])
def test_doubling_is_the_recurrence(C, reverse):
    decay, values = draw(C, 4, gradient=False).sigmoid(), draw(C, 4, gradient=False, seed=1)
    expected, kept = values.clone(), decay.clone()
    order = range(C - 2, -1, -1) if reverse else range(1, C)
    for t in order:
        expected[t] += decay[t + 1] * expected[t + 1] if reverse else decay[t] * expected[t - 1]
    for form in (accumulate, double):
        got = values.clone()
        form(decay, got, reverse=reverse)
        assert error([got], [expected]) <= 1e-12 and torch.equal(decay, kept)


@pytest.mark.parametrize("filling", [0.0, 1e3])
def test_pads_leave_the_state_alone(filling):
    """Neither a fade nor a write: a pad's step size counts as 0, whatever it is."""
    given = inputs(9, gradient=False)
    per_token = [name for name in given if "L" in name]
    alone, after = selective_scan(**{n: t[:, :5] if n in per_token else t for n, t in given.items()}, return_state=True)
    padded = {n: torch.cat((t[:, :5], torch.full_like(t[:, 5:], filling)), 1) if n in per_token else t for n, t in given.items()}
    for backend in ("naive", "chunked"):
        y, state = selective_scan(**padded, lengths_B=torch.tensor([5, 5]), backend=backend, return_state=True)
        assert error([y[:, :5], state], [alone, after]) <= 1e-12
        y, state = selective_scan(**padded, lengths_B=torch.tensor([0, 9]), backend=backend, return_state=True)
        assert torch.equal(state[0], given["state"][0]) and y.isfinite().all()


def test_the_future_has_no_say():
    given = inputs(70, gradient=False)
    later = {n: torch.cat((t[:, :65], t[:, 65:] * 50), 1) if "L" in n else t for n, t in given.items()}
    assert torch.equal(selective_scan(**given)[:, :65], selective_scan(**later)[:, :65])


def test_steps_are_the_row():
    given = inputs(7, gradient=False)
    expected, last = selective_scan(**given, backend="naive", return_state=True)
    for gradients in (True, False):
        state = first = given["state"].clone()
        outputs = []
        with torch.set_grad_enabled(gradients):
            for t in range(7):
                x, delta, entering, leaving = (given[name][:, t] for name in ("x_BLD", "delta_BLD", "input_BLN", "output_BLN"))
                y, state = selective_step(x, delta, given["A_DN"], entering, leaving, state, skip_D=given["skip_D"])
                outputs.append(y)
        assert error([torch.stack(outputs, 1), state], [expected, last]) <= 1e-12
        assert (state is first) == (not gradients), "in place when gradients are off, and only then"


def test_a_step_has_gradients():
    leaves = inputs(1)
    x, delta, A, entering, leaving, skip, state = leaves.values()
    assert torch.autograd.gradcheck(
        lambda x, d, A, b, c, s, h: selective_step(x[:, 0], d[:, 0], A, b[:, 0], c[:, 0], h, skip_D=s),
        (x, delta, A, entering, leaving, skip, state))


@pytest.mark.parametrize("rate", [0.0, -1e-4, -30.0, -1e4])
def test_weak_and_strong_decays(rate):
    """exp(delta A) from exactly 1 to exactly 0, with inputs up to 1e3: finite, and what float64 gives."""
    given = inputs(150, torch.float32, gradient=False)
    given |= {"delta_BLD": torch.ones(B, 150, D), "A_DN": torch.full((D, N), rate), "x_BLD": given["x_BLD"] * 1e3}
    leaves = {name: t.requires_grad_() for name, t in given.items()}
    truth = {name: t.detach().double().requires_grad_() for name, t in given.items()}
    weights = [draw(B, 150, D, gradient=False), draw(B, D, N, gradient=False)]
    got = with_gradients(lambda: selective_scan(**leaves, return_state=True), list(leaves.values()), weights)
    expected = with_gradients(
        lambda: selective_scan(**truth, backend="naive", return_state=True), list(truth.values()), weights)
    for name, a, b in zip(("y", "after", *NAMES), got, expected):
        assert a.isfinite().all() and (not b.any() or error([a], [b]) <= 2e-5), name


def test_bfloat16_keeps_a_float32_state():
    given = inputs(300, torch.bfloat16, gradient=False, state=False)
    given["delta_BLD"], given["A_DN"] = given["delta_BLD"].float(), given["A_DN"].float()
    y, state = selective_scan(**given, return_state=True)
    assert y.dtype == torch.bfloat16 and state.dtype == torch.float32
    expected, truth = selective_scan(**{n: t.double() for n, t in given.items()}, backend="naive", return_state=True)
    assert error([y], [expected]) <= TOLERANCE[torch.bfloat16] and error([state], [truth]) <= 2e-5
    leaves = {n: t.requires_grad_() for n, t in given.items()}
    gradients = torch.autograd.grad(selective_scan(**leaves).sum(), list(leaves.values()))
    assert [g.dtype for g in gradients] == [t.dtype for t in leaves.values()]


def test_autocast_does_not_round_the_sums():
    truth, leaves = inputs(100), inputs(100, torch.float32)
    weights = [torch.ones(B, 100, D)]
    expected = with_gradients(lambda: [selective_scan(**truth, backend="naive")], list(truth.values()), weights)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = with_gradients(lambda: [selective_scan(**leaves)], list(leaves.values()), weights)
        assert error(got, expected) <= 2e-5


def test_long_rows_in_float32():
    """A slot that never forgets is a running sum of 131,072 numbers; another forgets within about a thousand tokens."""
    L = 131_072
    x, ones = draw(1, L, 1, gradient=False) + 1, torch.ones(1, L, 2)
    A = torch.tensor([[0.0, -1e-3]])
    y, state = selective_scan(x.float(), torch.ones(1, L, 1), A, ones, ones, return_state=True)
    age = torch.arange(L - 1, -1, -1).double()
    truth = torch.stack((x[0, :, 0].sum(), (x[0, :, 0] * (A[0, 1].double() * age).exp()).sum()))
    assert error([state[0, 0]], [truth]) <= 2e-5 and error([y[0, -1, 0]], [truth.sum()]) <= 2e-5


def test_memory_does_not_grow_with_the_chunks():
    """Temporaries are those of one chunk: nothing the size of (L, D, N) is made."""
    given = inputs(600, gradient=False, state=False)
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                sizes.append(result.numel())
            return result

    with Watch():
        selective_scan(**given, chunk=16)
    assert max(sizes) <= B * 600 * D


@pytest.mark.parametrize("sizes", [{"N": 1}, {"D": 1}, {"N": 1, "D": 1}, {"B": 1}])
def test_the_gradient_given_stays_as_it_is(sizes):
    """Sizes of one make a transposed gradient contiguous already, so that it is easily written to."""
    leaves = inputs(9, torch.float32, **sizes)
    y, state = selective_scan(**leaves, chunk=4, return_state=True)
    dy, d_state = torch.randn_like(y), torch.randn_like(state)
    kept = dy.clone(), d_state.clone()
    torch.autograd.grad((y, state), list(leaves.values()), (dy, d_state))
    assert torch.equal(dy, kept[0]) and torch.equal(d_state, kept[1])
    turned = d_state.mT.contiguous().mT
    torch.autograd.grad(selective_scan(**leaves, chunk=4, return_state=True)[1], list(leaves.values()), turned)
    assert torch.equal(turned, kept[1])


def test_without_gradients_no_state_is_kept(monkeypatch):
    """Leaves that want a gradient do not decide that; the mode does."""
    kept = []
    monkeypatch.setattr(chunked.SelectiveScan, "forward", watched(chunked.SelectiveScan.forward, kept))
    with torch.no_grad():
        selective_scan(**inputs(40), chunk=8)
    assert kept == [0]
    selective_scan(**inputs(40), chunk=8)
    assert kept == [0, 7 + 5]


def watched(forward, kept):
    """`forward` that notes how many tensors it keeps."""
    def run(ctx, *arguments):
        outputs = forward(ctx, *arguments)
        kept.append(len(getattr(ctx, "to_save", None) or ()))
        return outputs
    return run


@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_no_states_a_channel(backend):
    """N = 0: what skips the scan is all there is."""
    leaves = inputs(5, N=0)
    y, state = selective_scan(**leaves, backend=backend, return_state=True)
    assert state.shape == (B, D, 0)
    assert error([y], [leaves["skip_D"] * leaves["x_BLD"]]) <= 1e-15
    assert torch.autograd.grad(y.sum(), [leaves["A_DN"], leaves["x_BLD"]])[0].shape == (D, 0)


def test_empty_rows():
    for shape in ((B, 0), (0, 5)):
        x, slots = torch.zeros(*shape, D), torch.zeros(*shape, N)
        y, state = selective_scan(x, x, -torch.ones(D, N), slots, slots, return_state=True)
        assert y.shape == (*shape, D) and state.shape == (shape[0], D, N) and not state.any()
    assert empty_state(2, D, N, torch.bfloat16).dtype == torch.float32


def test_refusals_and_sizes():
    given = inputs(3, gradient=False)
    with pytest.raises(UnsupportedUse, match="selective_scan: unknown backend"):
        selective_scan(**given, backend="cuda")
    with pytest.raises(UnsupportedUse, match="no initial state"):
        selective_scan(**given, backend="mamba_ssm")
    with pytest.raises(LayoutError, match="expected a state in torch.float64"):
        selective_scan(**given | {"state": given["state"].float()})
    with pytest.raises(LayoutError, match=r"expected input of shape \(2, 3, 3\)"):
        selective_scan(**given | {"input_BLN": given["input_BLN"][:, :2]})
    with pytest.raises(LayoutError, match="expected state of shape"):
        selective_scan(**given | {"state": given["state"][:1]})
    with pytest.raises(LayoutError, match=r"expected x \(B, L, D\)"):
        selective_scan(**given | {"x_BLD": given["x_BLD"][0]})
    device = torch.device("cpu")
    assert default_chunk(1, 8, 4, device) == 64 and default_chunk(2, 512, 16, device) == 32
    assert default_chunk(64, 512, 16, device) == 8
