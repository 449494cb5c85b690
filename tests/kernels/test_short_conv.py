"""The short convolution as shifted sums against the written-out sum, and the rotary turn against its formula."""

import pytest
import torch

from kernels.errors import LayoutError, UnsupportedUse
from kernels.layout import Layout
from kernels.rotary import rotate
from kernels.short_conv import short_conv, short_conv_step
from tests.kernels.agreement import TOLERANCE, draw, error, with_gradients

B, D = 2, 6


@pytest.mark.parametrize("K", [1, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("L", [1, 2, 63, 100])
def test_rows_from_their_start_and_later(L, dtype, K):
    weights = [draw(B, L, D, gradient=False)]
    for use in ("start", "past", "bias"):
        results = []
        for backend, precision in (("naive", torch.float64), ("auto", dtype)):
            leaves = [draw(B, L, D, dtype=precision), draw(D, K, dtype=precision)]
            options = {}
            if use == "past" and K > 1:
                leaves.append(draw(B, K - 1, D, dtype=precision, seed=3))
                options["past_BPD"] = leaves[-1]
            if use == "bias":
                leaves.append(draw(D, dtype=precision, seed=4))
                options["bias_D"] = leaves[-1]
            results.append(with_gradients(
                lambda leaves=leaves, options=options, backend=backend: [
                    short_conv(leaves[0], leaves[1], backend=backend, **options)], leaves, weights))
        assert error(results[1], results[0]) <= TOLERANCE[dtype], use


def test_it_is_torchs_convolution():
    x, weight = draw(B, 11, D, gradient=False), draw(D, 3, gradient=False)
    padded = torch.nn.functional.pad(x.transpose(1, 2), (2, 0))
    expected = torch.nn.functional.conv1d(padded, weight[:, None], groups=D).transpose(1, 2)
    assert error([short_conv(x, weight)], [expected]) <= 1e-12


def test_packed_documents_do_not_meet():
    layout = Layout.packed([[2, 3, 1], [6]], 7)
    x, weight, g = draw(2, 7, D), draw(D, 3), draw(2, 7, D, seed=2, gradient=False)
    y = short_conv(x, weight, position_BL=layout.position_BL)
    assert error([y], [short_conv(x, weight, position_BL=layout.position_BL, backend="naive")]) <= 1e-12
    assert error([y[0, 2:5]], [short_conv(x[:1, 2:5], weight)[0]]) <= 1e-12
    got = torch.autograd.grad(y, (x, weight), g)
    naive = short_conv(x, weight, position_BL=layout.position_BL, backend="naive")
    assert error(got, torch.autograd.grad(naive, (x, weight), g)) <= 1e-12


def test_gradcheck():
    position_BL = Layout.packed([[2, 3], [5]], 5).position_BL
    leaves = (draw(2, 5, D), draw(D, 3))
    assert torch.autograd.gradcheck(lambda x, w: short_conv(x, w), leaves)
    assert torch.autograd.gradcheck(lambda x, w: short_conv(x, w, position_BL=position_BL), leaves)
    assert torch.autograd.gradcheck(lambda x, w, past: short_conv(x, w, past_BPD=past), (*leaves, draw(2, 2, D, seed=1)))


@pytest.mark.parametrize("K", [1, 3])
def test_steps_are_the_row(K):
    x, weight, bias = draw(B, 8, D, gradient=False), draw(D, K, gradient=False), draw(D, gradient=False)
    past = torch.zeros(B, K - 1, D, dtype=torch.float64)
    outputs = []
    for t in range(8):
        y, past = short_conv_step(x[:, t], weight, past, bias_D=bias)
        outputs.append(y)
        assert past.untyped_storage().nbytes() == past.numel() * 8, "a view would keep more alive"
    assert error([torch.stack(outputs, 1)], [short_conv(x, weight, bias_D=bias)]) <= 1e-12


def test_refusals():
    x, weight = draw(B, 5, D, gradient=False), draw(D, 3, gradient=False)
    with pytest.raises(UnsupportedUse, match="short_conv: .*backend 'triton'"):
        short_conv(x, weight, backend="triton")
    with pytest.raises(LayoutError, match="weight"):
        short_conv(x, weight[:2])
    with pytest.raises(LayoutError, match="K - 1 = 2"):
        short_conv(x, weight, past_BPD=x[:, :3])
    with pytest.raises(LayoutError, match="exclude each other"):
        short_conv(x, weight, past_BPD=x[:, :2], position_BL=torch.zeros(B, 5))


def test_the_rotary_turn():
    """Pairs (i, i + R/2) turn by their angle, the rest stays; the gradient is the turn back."""
    x, angle = draw(2, 7, 3, 10), draw(1, 7, 1, 4, seed=1, gradient=False)
    y = rotate(x, angle.cos(), angle.sin())
    pairs = torch.complex(x[..., :4], x[..., 4:8]) * torch.polar(torch.ones_like(angle), angle)
    assert error([y], [torch.cat((pairs.real, pairs.imag, x[..., 8:]), -1)]) <= 1e-12
    assert torch.autograd.gradcheck(lambda x: rotate(x, angle.cos(), angle.sin()), (x,))
    assert rotate(x, angle[..., :0], angle[..., :0]) is x
