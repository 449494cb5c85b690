"""Random feature attention: what its weights stand for, its floor, its features."""

import math

import torch

from kernels.layout import Layout
from models import registry
from models.mixers import rfa

WIDTH = 16


def build(**settings):
    return registry.build(rfa.Config(**settings), WIDTH, seed=0).double().eval()


def tokens(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def heads(mixer, x_LD):
    """q, k, v (H, L, K)."""
    return (p(x_LD).unflatten(-1, (mixer.config.heads, -1)).transpose(0, 1) for p in (mixer.proj_q, mixer.proj_k, mixer.proj_v))


@torch.no_grad()
def test_many_features_give_softmax_attention():
    """unit: of the normalised vectors; amplitude: of the vectors themselves."""
    x = tokens(1, 12, WIDTH)
    for settings, scale, unit in (({}, 1.0, True), ({"form": "amplitude", "scale": 0.2}, 0.2, False)):
        mixer = build(heads=2, features=60_000, **settings)
        q, k, v = heads(mixer, x[0])
        if unit:
            q, k = (torch.nn.functional.normalize(t, dim=-1) for t in (q, k))
        scores = scale * q @ k.transpose(1, 2)
        weights = scores.masked_fill(torch.ones(12, 12, dtype=torch.bool).triu(1), -math.inf).softmax(-1)
        expected = mixer.out_proj((weights @ v).transpose(0, 1).flatten(1))
        assert (mixer(x, Layout.dense(1, 12))[0] - expected).abs().max() < 0.05


@torch.no_grad()
def test_a_negative_sum_of_weights_keeps_its_sign():
    """One token: y = v·w/w, or w/(±floor) where |w| is below the floor."""
    x = tokens(400, 1, WIDTH)
    mixer = build(heads=2, features=2, form="amplitude", scale=1.0, floor=0.3)
    y = mixer(x, Layout.dense(400, 1))
    q, k, v = (t.transpose(0, 1) for t in heads(mixer, x[:, 0]))
    turned = torch.einsum("bhk,hjk->bhj", q - k, mixer.directions)
    w = turned.cos().mean(-1, keepdim=True)
    assert (w < -0.3).any() and ((w < 0) & (w > -0.3)).any() and ((w > 0) & (w < 0.3)).any()
    divisor = torch.where(w.abs() < 0.3, 0.3 * w.sign(), w)
    torch.testing.assert_close(y[:, 0], mixer.out_proj((v * w / divisor).flatten(1)), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_a_huge_key_neither_overflows_nor_reaches_back():
    """exp of the amplitude's exponent, 10,000 and more, would overflow; earlier tokens keep their bits."""
    mixer = build(heads=2, features=32, form="amplitude")
    x = tokens(1, 9, WIDTH)
    loud = x.clone()
    loud[:, 5] *= 300
    a, b = (mixer(t, Layout.dense(1, 9)) for t in (x, loud))
    assert b.isfinite().all() and torch.equal(a[:, :5], b[:, :5])
    _, state = mixer.prefill(loud, Layout.dense(1, 9))
    assert state["peak"].min() > 1e3 and state["z"].abs().max() <= 2


def test_features_are_drawn_once_and_saved():
    mixer = build(heads=2, features=8)
    assert mixer.directions.shape == (2, 8, 8) and "directions" in mixer.state_dict()
    assert not torch.equal(mixer.directions, registry.build(mixer.config, WIDTH, layer=1, seed=0).directions.double())
    assert registry.abilities(mixer.config).randomness == "features"
