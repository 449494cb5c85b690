"""What is particular to linear and cosFormer attention; the laws are in tests/contracts, the maps in tests/golden."""

import pytest
import torch
from pydantic import ValidationError

from kernels.errors import ConfigError, LengthError
from kernels.layout import Layout
from models import registry
from models.mixers import cosformer, linear

WIDTH = 16


def build(config):
    return registry.build(config, WIDTH, seed=0).double().eval()


def tokens(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def heads(mixer, x):
    """q, k, v (H, n, .) of one row."""
    return ((p(x).unflatten(-1, (2, -1)).transpose(0, 1)) for p in (mixer.proj_q, mixer.proj_k, mixer.proj_v))


@pytest.mark.parametrize("module", [linear, cosformer])
def test_heads_must_divide_the_width(module):
    with pytest.raises(ConfigError, match="width 16 is not a multiple of heads 3"):
        build(module.Config(heads=3))


def test_linear_is_weights_of_elu_plus_one():
    mixer, x = build(linear.Config(heads=2, feature_dim=6, eps=0.3)), tokens(9, WIDTH)
    q, k, v = heads(mixer, x)
    assert q.shape == (2, 9, 6) and v.shape == (2, 9, 8)
    w = (torch.where(q > 0, q + 1, q.exp()) @ torch.where(k > 0, k + 1, k.exp()).transpose(1, 2)).tril()
    y = (w @ v) / (w.sum(-1, keepdim=True) + 0.3)
    assert torch.allclose(mixer(x[None], Layout.dense(1, 9))[0], mixer.out_proj(y.transpose(0, 1).flatten(1)), atol=1e-12)


def test_cosformer_is_weights_that_fall_with_distance():
    mixer, x = build(cosformer.Config(heads=2, max_length=20, floor=2.0)), tokens(9, WIDTH)
    q, k, v = heads(mixer, x)
    age = torch.arange(9)[:, None] - torch.arange(9)
    w = (q.relu() @ k.relu().transpose(1, 2) * (torch.pi / 40 * age).cos()).tril()
    total = w.sum(-1, keepdim=True)
    assert (total < 2).any() and (total > 2).any()
    y = (w @ v) / total.clamp(min=2)
    assert torch.allclose(mixer(x[None], Layout.dense(1, 9))[0], mixer.out_proj(y.transpose(0, 1).flatten(1)), atol=1e-12)


def test_cosformer_refuses_what_it_cannot_place():
    mixer = build(cosformer.Config(heads=2, max_length=8))
    layout = Layout.packed([[5, 4], [8]], 9)  # two documents in one row are placed one by one
    assert mixer(tokens(2, 9, WIDTH), layout).isfinite().all()
    with pytest.raises(LengthError, match="got 9 tokens, it can place 8"):
        mixer(tokens(1, 9, WIDTH), Layout.dense(1, 9))
    _, state = mixer.prefill(tokens(2, 7, WIDTH), Layout.right_padded([7, 3], 7))
    with pytest.raises(LengthError):
        mixer.extend(tokens(2, 2, WIDTH), Layout.dense(2, 2), state.clone())
    y, _ = mixer.extend(tokens(2, 2, WIDTH), Layout.right_padded([1, 2], 2), state)
    assert y.isfinite().all()
    with pytest.raises(ValidationError):
        cosformer.Config(max_length=0)


@pytest.mark.parametrize("mode", ["causal", "non_causal", "cross"])
def test_without_eps_an_empty_document_takes_no_gradient_away(mode):
    mixer, layout = build(linear.Config(heads=2, eps=0, mode=mode)), Layout.right_padded([0, 3], 3)
    x = tokens(2, 3, WIDTH)
    y = mixer.read(x, Layout.dense(2, 3), mixer.encode(x, layout)) if mode == "cross" else mixer(x, layout)
    y.square().sum().backward()
    assert not y[0].any()
    for parameter in mixer.parameters():
        assert parameter.grad.isfinite().all() and parameter.grad.any()
