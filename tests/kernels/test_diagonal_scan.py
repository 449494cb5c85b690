"""The diagonal scan: by hand, over long rows, and what it refuses; agreement with naive is among the contract's laws."""

import math

import pytest
import torch

from kernels.diagonal_scan import diagonal_scan, diagonal_step, empty_state
from kernels.errors import LayoutError, UnsupportedUse

B, L, D, N, R = 2, 7, 3, 4, 2


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def waves(dtype=torch.float32):
    return [t.to(dtype) for t in (-draw(D, N).abs(), draw(D, N, seed=1), draw(R, D, N, seed=2), draw(R, D, N, seed=3))]


@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_three_tokens_by_hand(backend):
    """A token turns by a quarter and halves. From 8: h = 8 (i/2) + 0 = 4i, then (4i)(i/2) + 2 = 0, then 0 + 6."""
    log_decay = torch.tensor([[math.log(0.5)]], dtype=torch.float64)
    angle = torch.tensor([[math.pi / 2]], dtype=torch.float64)
    real, imag = torch.tensor([[[1.0]], [[0.0]]]).double(), torch.tensor([[[0.0]], [[10.0]]]).double()
    x = torch.tensor([0.0, 2.0, 6.0]).double().view(1, 3, 1)
    state = torch.tensor([8.0, 0.0]).double().view(1, 1, 1, 2)
    y, after = diagonal_scan(x, log_decay, angle, real, imag, state=state, backend=backend, chunk=2, return_state=True)
    assert torch.allclose(y[0, :, 0, 0], torch.tensor([0.0, 0.0, 6.0]).double(), atol=1e-12)
    assert torch.allclose(y[0, :, 1, 0], torch.tensor([-40.0, 0.0, 0.0]).double(), atol=1e-12)
    assert torch.allclose(after.flatten(), torch.tensor([6.0, 0.0]).double(), atol=1e-12)


@torch.no_grad()
def test_long_rows_keep_their_phase():
    """float32, 20,000 tokens, half-lives of 700 to 7,000, angles of up to 60 radians: outputs and state."""
    half_lives = torch.tensor([700.0, 2000.0, 4000.0, 7000.0]).double()
    log_decay, angle = (-math.log(2) / half_lives).expand(D, N), 60 * draw(D, N).sigmoid()
    real, imag = (draw(R, D, N, seed=seed).float() for seed in (2, 3))
    x = draw(1, 20_000, D).float()
    y, state = diagonal_scan(x, log_decay, angle, real, imag, return_state=True)
    expected, kept = diagonal_scan(x.double(), log_decay, angle, real.double(), imag.double(), chunk=500, return_state=True)
    assert y.dtype == state.dtype == torch.float32
    assert (y - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert (state - kept).abs().max() <= 1e-5 * kept.abs().max()
    wave = torch.exp(torch.complex(log_decay, angle)[..., None] * torch.arange(19_999, -1, -1))
    whole = torch.einsum("ld,dnl->dn", x[0].double().to(wave.dtype), wave)
    assert (torch.view_as_complex(kept)[0] - whole).abs().max() <= 1e-8 * whole.abs().max()


@torch.no_grad()
def test_a_row_without_tokens_keeps_its_bits():
    x, state = draw(B, L, D).float(), draw(B, D, N, 2, seed=5).float()
    _, after = diagonal_scan(x, *waves(), lengths_B=torch.tensor([0, L]), state=state.clone(), chunk=3, return_state=True)
    assert torch.equal(after[0], state[0]) and not torch.equal(after[1], state[1])


@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_pads_may_hold_anything(backend):
    """NaN and inf reach neither real outputs, nor the state, nor a gradient."""
    lengths, found = torch.tensor([4, 1]), []
    for poison in (0.0, math.nan, math.inf):
        x = torch.where((torch.arange(L) < lengths[:, None])[..., None], draw(B, L, D), poison).requires_grad_()
        y, state = diagonal_scan(x, *waves(torch.float64), lengths_B=lengths, backend=backend, return_state=True)
        (y[0, :4].sum() + y[1, :1].sum() + state.sum()).backward()
        found.append((y[0, :4], y[1, :1], state, x.grad))
    for results in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results, found[0]))


def test_nothing_to_read():
    y, state = diagonal_scan(torch.ones(B, 0, D), *waves(), return_state=True)
    assert y.shape == (B, 0, R, D) and torch.equal(state, empty_state(B, D, N, torch.float32))
    none = torch.zeros(0, D, N)
    assert diagonal_scan(torch.ones(B, L, D), *waves()[:2], none, none).shape == (B, L, 0, D)


@pytest.mark.parametrize(("change", "words"), [
    ({"x_BLD": torch.zeros(B, L)}, "x"), ({"log_decay_DN": torch.zeros(D, N + 1)}, "log_decay"),
    ({"angle_DN": torch.zeros(D)}, "angle"), ({"imag_RDN": torch.zeros(1, D, N)}, "imag"),
    ({"state": torch.zeros(B, D, N)}, "state"), ({"state": torch.zeros(B, D, N, 2).double()}, "float32"),
    ({"chunk": 0}, "chunk"), ({"lengths_B": torch.tensor([1, L + 1])}, "lengths_B")])
def test_refused(change, words):
    log_decay, angle, real, imag = waves()
    given = {"x_BLD": torch.zeros(B, L, D), "log_decay_DN": log_decay, "angle_DN": angle, "real_RDN": real, "imag_RDN": imag}
    with pytest.raises(LayoutError, match=words):
        diagonal_scan(**(given | change))


def test_unknown_backend():
    with pytest.raises(UnsupportedUse, match="fft"):
        diagonal_scan(torch.zeros(B, L, D), *waves(), backend="fft")


@pytest.mark.parametrize(("index", "tensor"), [(0, torch.zeros(B, L, D)), (1, torch.zeros(D, N + 1)), (4, torch.zeros(1, D, N)),
                                               (5, torch.zeros(B, D, N)), (5, torch.zeros(B, D, N, 2).double())])
def test_refused_steps(index, tensor):
    given = [torch.zeros(B, D), *waves(), torch.zeros(B, D, N, 2)]
    given[index] = tensor
    with pytest.raises(LayoutError):
        diagonal_step(*given)


@torch.no_grad()
def test_only_a_state_of_its_own_memory_is_written():
    x, state, spread = torch.ones(B, D), torch.ones(B, D, N, 2), torch.ones(1, 1, 1, 2).expand(B, D, N, 2)
    y, after = diagonal_step(x, *waves(), state)
    z, other = diagonal_step(x, *waves(), spread)
    assert after.data_ptr() == state.data_ptr() and torch.equal(spread, torch.ones_like(spread))
    assert torch.equal(y, z) and torch.equal(after, other)
