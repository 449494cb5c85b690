"""Skyformer: draws, and the formula with torch's own inverse."""

import torch

from models import registry
from models.mixers.skyformer import Config


def build(layer=0, **settings):
    return registry.build(Config(heads=2, **settings), 16, layer, seed=0).double().eval()


def test_draws_belong_to_length_layer_and_seed():
    mixer = build(landmarks=9)
    drawn = torch.cat(mixer.sampled(50))
    assert [len(part) for part in mixer.sampled(50)] == [4, 5] and drawn.min() >= 0 and drawn.max() < 50
    assert torch.equal(torch.cat(mixer.sampled(50)), drawn)
    for other in (build(layer=1, landmarks=9), build(seed=1, landmarks=9)):
        assert not torch.equal(torch.cat(other.sampled(50)), drawn)
    same_stream = torch.cat(mixer.sampled(128)) % 64 == torch.cat(mixer.sampled(64))
    assert not same_stream.all(), "the seed leaves the length out"


@torch.no_grad()
def test_the_formula():
    """exp(-|a - b|^2 / 2) of scaled q and k; without its ridge and roots the middle would be the inverse of K(c, c)."""
    for width, base in ((32, 32), (None, 8), (8, 8)):
        mixer = build(landmarks=6, iterations=40, scale_width=width)
        q, k, v = torch.randn(3, 1, 2, 20, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        from_q, from_k = mixer.sampled(20)
        a, b = q * base**-0.25, k * base**-0.25
        c = torch.cat((a[:, :, from_q], b[:, :, from_k]), 2)

        def kernel(x, y):
            return torch.exp(-(x[:, :, :, None] - y[:, :, None]).square().sum(-1) / 2)

        middle = torch.linalg.inv(kernel(c, c) + 0.1 * torch.eye(6, dtype=c.dtype))
        torch.testing.assert_close(mixer.attend(q, k, v), kernel(a, c) @ middle @ kernel(c, b) @ v)
