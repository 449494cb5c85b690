"""LARA: segment means, noise, and weights that sum to 1."""

import pytest
import torch

from kernels.layout import Layout
from models import registry
from models.landmarks import segment_means
from models.mixers.lara import Config


@pytest.mark.parametrize(("N", "C", "lengths"), [(11, 4, [2, 3, 3, 3]), (12, 4, [3] * 4), (5, 4, [1, 1, 1, 2]), (4, 4, [1] * 4),
                                                 (3, 4, [1] * 3), (7, 1, [7])])
def test_segments_are_even_but_for_one_token(N, C, lengths):
    x_BHNK = torch.randn(2, 3, N, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.stack([part.mean(2) for part in x_BHNK.split(lengths, 2)], 2)
    torch.testing.assert_close(segment_means(x_BHNK, C), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("mis", ["opt", "biased", "bh", "biased_own"])
@torch.no_grad()
def test_outputs_are_averages_of_values(mis):
    mixer = registry.build(Config(heads=2, landmarks=3, mis=mis), 16, seed=0).double().eval()
    q, k, v = torch.randn(3, 2, 2, 10, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = mixer.attend(q, k, v)
    assert (y <= v.amax(2, keepdim=True)).all() and (y >= v.amin(2, keepdim=True)).all()
    torch.testing.assert_close(mixer.attend(q, k, torch.ones_like(v)), torch.ones_like(v))


@torch.no_grad()
def test_a_single_token_gets_its_value():
    mixer = registry.build(Config(heads=2, landmarks=1, maps="none", mis="bh"), 16, seed=0).double().eval()
    q, k, v = torch.randn(3, 1, 2, 1, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(mixer.attend(q, k, v), v)


@torch.no_grad()
def test_noise_in_training_alone():
    x_BLD, layout = torch.randn(1, 9, 16, generator=torch.Generator().manual_seed(0)), Layout.dense(1, 9)
    noisy = registry.build(Config(heads=2, landmarks=3, noise=1.0), 16, seed=0)
    quiet = registry.build(Config(heads=2, landmarks=3), 16, seed=0)
    assert torch.equal(noisy.eval()(x_BLD, layout), quiet.eval()(x_BLD, layout))
    assert not torch.equal(noisy.train()(x_BLD, layout), noisy(x_BLD, layout))
    assert torch.equal(quiet.train()(x_BLD, layout), quiet.eval()(x_BLD, layout))
