"""Masked products for short rows against the scan token by token."""

import pytest
import torch

from kernels.gated_scan import gated_scan
from models import registry
from models.decayed_attention import LONGEST, decayed_attention, is_short
from models.mixers import mamba2

B, L, G, H, K, V = 2, 30, 2, 6, 4, 5


def inputs(dtype):
    generator = torch.Generator().manual_seed(0)
    q, k, v, g = (torch.randn(B, L, *shape, generator=generator, dtype=torch.float64) for shape in ((G, K), (G, K), (H, V), (H,)))
    log_decay = -g.abs()
    log_decay[0, ::7, :3] = -1e4
    log_decay[1, 5:9] = 0.0
    log_decay[1, 20:] = -1e-4
    return [t.to(dtype) for t in (q, k, v, log_decay)]


def truth(q, k, v, log_decay):
    q, k = (t.repeat_interleave(H // G, 2) for t in (q, k))
    return gated_scan(q, k, v, log_decay, scale=1.0, backend="naive")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-5)], ids=["f64", "f32"])
def test_is_the_scan(dtype, tolerance):
    """Outputs and gradients, with gates that keep all, that forget all, and their neighbours."""
    found = []
    for form, precision in ((decayed_attention, dtype), (truth, torch.float64)):
        leaves = [t.to(precision).requires_grad_() for t in inputs(dtype)]
        y = form(*leaves)
        found.append([y, *torch.autograd.grad((y * torch.arange(V)).sum(), leaves)])
    for got, expected in zip(*found):
        assert got.dtype == dtype
        assert (got - expected).abs().max() <= tolerance * expected.abs().max()


def test_bfloat16_values_under_autocast():
    """Products in float32: only the output is rounded."""
    q, k, v, log_decay = inputs(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        y = decayed_attention(q, k, v, log_decay.float())
    expected = truth(*(t.double() for t in (q, k, v)), log_decay.double())
    assert y.dtype == torch.bfloat16 and (y - expected).abs().max() <= 2**-8 * expected.abs().max()


def test_what_is_short():
    assert is_short(8, 150, 4) and is_short(1, LONGEST, 64)
    assert not is_short(1, LONGEST + 1, 1) and not is_short(2, LONGEST, 64)


@torch.no_grad()
def test_the_mixer_takes_either(monkeypatch):
    """A row on one side of the limit and on the other: the same outputs, by different code."""
    mixer = registry.build(mamba2.Config(state_size=4, head_dim=4, n_groups=2), 16, seed=0).double()
    layout, x = mamba2.Layout.dense(2, 20), torch.randn(2, 20, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    used = []
    for name in ("decayed_attention", "gated_scan"):
        form = getattr(mamba2, name)
        monkeypatch.setattr(mamba2, name, lambda *a, name=name, form=form, **o: used.append(name) or form(*a, **o))
    short = mixer(x, layout)
    monkeypatch.setattr(mamba2, "is_short", lambda B, L, heads: False)
    torch.testing.assert_close(mixer(x, layout), short, rtol=1e-10, atol=1e-12)
    assert used == ["decayed_attention", "gated_scan"]
