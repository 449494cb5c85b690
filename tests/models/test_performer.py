"""What is particular to Performer: its features, drawn once, and that they stand for the softmax kernel."""

import pytest
import torch

from kernels.errors import ConfigError
from kernels.layout import Layout
from models import registry
from models.mixers.performer import Config, orthogonal_features

WIDTH = 16


def build(config, seed=0):
    return registry.build(config, WIDTH, seed=seed).double().eval()


def tokens(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_heads_must_divide_the_width():
    with pytest.raises(ConfigError, match="width 16 is not a multiple of heads 3"):
        build(Config(heads=3))


def test_features_are_orthogonal_in_blocks_and_as_long_as_gaussian_vectors():
    w = orthogonal_features(300, 11, 4, torch.Generator().manual_seed(0))
    products = w @ w.transpose(1, 2)
    block = torch.arange(11) // 4
    same = (block[:, None] == block) & ~torch.eye(11, dtype=torch.bool)
    assert products[:, same].abs().max() < 1e-10 and products[:, ~same].abs().mean() > 1
    lengths = w.square().sum(-1)
    assert abs(float(lengths.mean()) - 4) < 0.2 and abs(float(lengths.var()) - 8) < 1
    assert w.mean((0, 1)).abs().max() < 0.08, "directions favour no side"


def test_features_are_drawn_once_and_kept_with_the_weights():
    a, b, other = (build(Config(heads=2), seed) for seed in (0, 0, 1))
    assert "projection_HFK" in a.state_dict() and a.projection_HFK.shape == (2, 16, 8)
    assert torch.equal(a.projection_HFK, b.projection_HFK) and not torch.equal(a.projection_HFK, other.projection_HFK)
    a.train()
    before = a.projection_HFK.clone()
    a(tokens(1, 5, WIDTH), Layout.dense(1, 5))
    assert torch.equal(a.projection_HFK, before)
    assert "projection_HFK" not in dict(a.named_parameters())


@torch.no_grad()
def test_many_features_are_softmax_attention():
    """Averaged over 4,096 features a head, within a few per cent of exact attention; 8 features are far off."""
    x, errors = tokens(1, 12, WIDTH) / 2, []
    for features in (8, 4096):
        mixer = build(Config(heads=2, features=features, feature_eps=0.0, eps=0.0))
        q, k, v = (p(x).unflatten(-1, (2, -1)).transpose(1, 2) for p in (mixer.proj_q, mixer.proj_k, mixer.proj_v))
        exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        exact = mixer.out_proj(exact.transpose(1, 2).flatten(2))
        y = mixer(x, Layout.dense(1, 12))
        errors.append(float((y - exact).norm() / exact.norm()))
    assert errors[1] < 0.02 and errors[0] > 2 * errors[1], errors


@torch.no_grad()
def test_far_queries_do_not_vanish_and_the_eps_are_as_set():
    """A query 100 times as long keeps a sum of weights near 1; feature_eps is in every feature, eps in the sum alone."""
    mixer = build(Config(heads=2, feature_eps=0.25, eps=0.5, bias=False))
    x = tokens(1, 6, WIDTH)
    q, k, v = (p(x).unflatten(-1, (2, -1)) for p in (mixer.proj_q, mixer.proj_k, mixer.proj_v))
    for factor in (1.0, 100.0):
        phi_q, phi_k = mixer.features(factor * q, None, True), mixer.features(k, None, False)
        assert torch.allclose(phi_q.amax(-1), torch.tensor(1.25 / 16**0.5, dtype=torch.float64))
        assert phi_k.min() > 0.25 / 16**0.5
    w = torch.einsum("blhf,bmhf->bhlm", mixer.features(q, None, True), phi_k).tril()
    y = torch.einsum("bhlm,bmhv->blhv", w / (w.sum(-1, keepdim=True) + 0.5), v)
    assert torch.allclose(mixer(x, Layout.dense(1, 6)), mixer.out_proj(y.flatten(2)), atol=1e-12)
