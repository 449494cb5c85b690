"""Nyströmformer: the inverse, short documents, and the convolution's taps."""

import pytest
import torch

from kernels.errors import ConfigError
from models import registry
from models.landmarks import column_sum, iterative_inverse, segment_means
from models.mixers.nystrom import Config


def tokens(N, K=8, seed=0):
    return torch.randn(3, 2, 2, N, K, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(**settings):
    return registry.build(Config(heads=2, **settings), 16, seed=0).double().eval()


@torch.no_grad()
def test_iterations_lead_to_the_inverse():
    small = (tokens(4)[0] * 2).softmax(-1)[..., :4]
    small = small / small.sum(-1, keepdim=True)
    errors = [(iterative_inverse(small, column_sum(small), steps) @ small - torch.eye(4, dtype=small.dtype)).abs().max()
              for steps in (1, 6, 12, 30)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-9 < errors[0]


@torch.no_grad()
def test_no_more_tokens_than_landmarks_is_attention():
    q, k, v = tokens(5)
    expected = (q @ k.mT / 8**0.5).softmax(-1) @ v
    for landmarks in (5, 9):
        torch.testing.assert_close(build(landmarks=landmarks, convolution=None).attend(q, k, v), expected)


@torch.no_grad()
def test_the_three_softmaxes():
    """Against the formula with torch's own inverse."""
    q, k, v = tokens(11)
    few_q, few_k = segment_means(q, 3), segment_means(k, 3)
    left, small, right = ((a @ b.mT / 8**0.5).softmax(-1) for a, b in ((q, few_k), (few_q, few_k), (few_q, k)))
    expected = left @ torch.linalg.pinv(small) @ right @ v
    torch.testing.assert_close(build(landmarks=3, convolution=None, iterations=40).attend(q, k, v), expected, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_taps_are_each_heads_own_and_centred():
    q, k, v = tokens(6)
    with_taps, without = build(convolution=3), build(convolution=None)
    added = with_taps.attend(q, k, v) - without.attend(q, k, v)
    padded = torch.nn.functional.pad(v, (0, 0, 1, 1))
    expected = sum(with_taps.taps_HW[:, o, None, None] * padded[:, :, o:o + 6] for o in range(3))
    torch.testing.assert_close(added, expected)


def test_an_even_convolution_is_refused():
    with pytest.raises(ConfigError, match="convolution 4.*odd"):
        Config(convolution=4)
