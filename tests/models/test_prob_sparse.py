"""ProbSparse: counts, draws and the choice of queries."""

import math

import pytest
import torch

from models import registry
from models.mixers.prob_sparse import Config


def build(layer=0, **settings):
    return registry.build(Config(heads=2, **settings), 16, layer, seed=0).double().eval()


@pytest.mark.parametrize(("N", "factor", "count"), [(1, 5, 1), (2, 1, 1), (3, 1, 2), (7, 2, 4), (8, 2, 6), (33, 5, 20), (10, 5, 10)])
def test_counts_follow_the_length(N, factor, count):
    assert build(factor=factor).count(N) == count == max(1, min(N, factor * math.ceil(math.log(N))))


def test_draws_belong_to_length_layer_and_seed():
    mixer = build(factor=1)
    drawn = mixer.sampled(20)
    assert drawn.shape == (20, 3) and drawn.min() >= 0 and drawn.max() < 20
    assert torch.equal(mixer.sampled(20), drawn)
    assert torch.equal(build(factor=1).sampled(20), drawn)
    for other in (build(layer=1, factor=1).sampled(20), build(factor=1, seed=1).sampled(20), mixer.sampled(21)[:20]):
        assert not torch.equal(other, drawn)
    same_stream = mixer.sampled(128).flatten()[:64 * 5] % 64 == mixer.sampled(64).flatten()
    assert not same_stream.all(), "the seed leaves the length out"


@torch.no_grad()
def test_chosen_queries_attend_and_others_get_the_mean():
    """By loops over the formula."""
    mixer = build(factor=1)
    q, k, v = torch.randn(3, 1, 2, 20, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y, index = mixer.attend(q, k, v), mixer.sampled(20)
    for h in range(2):
        scores = q[0, h] @ k[0, h].T
        measure = torch.stack([scores[i, index[i]].max() - scores[i, index[i]].sum() / 20 for i in range(20)])
        chosen = set(measure.argsort(descending=True)[:3].tolist())
        for i in range(20):
            expected = (scores[i] / 8**0.5).softmax(0) @ v[0, h] if i in chosen else v[0, h].mean(0)
            torch.testing.assert_close(y[0, h, i], expected)


@torch.no_grad()
def test_a_short_document_is_attention():
    q, k, v = torch.randn(3, 1, 2, 9, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(build().attend(q, k, v), (q @ k.mT / 8**0.5).softmax(-1) @ v)


def test_nothing_costs_nothing():
    assert build().cost(0).flops == 0 < build().cost(0).step_flops
