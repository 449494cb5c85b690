"""What is particular to EVA; the laws are in tests/contracts, the released weights in tests/golden."""

import pytest
import torch

from kernels.errors import ConfigError
from kernels.layout import Layout
from models import registry
from models.mixers.eva import Config, bucket

WIDTH = 16


def build(config):
    mixer = registry.build(config, WIDTH, seed=0).double().eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return mixer


def tokens(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(("settings", "message"), [
    ({"window": 6, "chunk": 4}, "not a multiple of chunk 4"), ({"window": 3, "chunk": 4, "local": "sliding"}, "smaller than chunk"),
    ({"heads": 3}, "not a multiple of heads 3")])
def test_refused_sizes(settings, message):
    with pytest.raises(ConfigError, match=message):
        build(Config(**settings))


@pytest.mark.parametrize("local", ["blocks", "overlap", "sliding"])
def test_the_formula(local):
    """One head, token by token: chunk values under weights around mu, chunk keys beside the near keys."""
    mixer = build(Config(heads=1, window=4, chunk=2, local=local))
    x = tokens(11, WIDTH)
    q, k, v = mixer.proj_q(x), mixer.proj_k(x), mixer.proj_v(x)
    far_k, far_v = [], []
    for c in range(5):
        part = slice(2 * c, 2 * c + 2)
        k_bar = mixer.norm_k(mixer.mean_k(k[part].mean(0)))
        mu = mixer.norm_q(mixer.mean_q(q[part].mean(0))) + k_bar
        far_k.append(k_bar)
        far_v.append(((k[part] @ mu - k[part].square().sum(-1) / 2) / 4).softmax(0) @ v[part])
    first = {"blocks": lambda i: i // 4 * 4, "overlap": lambda i: max(i // 4 * 4 - 4, 0), "sliding": lambda i: max(i - 3, 0)}[local]
    for i in range(11):
        near, done = list(range(first(i), i + 1)), i // 2
        scores = [(q[i] @ k[j] + mixer.offset_bias[i - j]) / 4 for j in near] + [q[i] @ far_k[c] / 4 for c in range(done)]
        values = torch.stack([v[j] for j in near] + far_v[:done])
        expected = mixer.out_proj(torch.stack(scores).softmax(0) @ values)
        assert torch.allclose(mixer(x[None], Layout.dense(1, 11))[0, i], expected, atol=1e-12), i


def test_buckets():
    """16 of them over 64 offsets: 0..7 alone, then by logarithm, the last for the farthest."""
    found = [bucket(offset, 16, 64) for offset in range(70)]
    assert found[:9] == [0, 1, 2, 3, 4, 5, 6, 7, 8] and found == sorted(found)
    assert found[23] == 12 and set(found[50:]) == {15}
    assert [bucket(offset, 16, 8) for offset in range(8)] == list(range(8))


def test_noise_is_for_training():
    mixer, x = build(Config(heads=2, window=4, chunk=2, noise=1.0)), tokens(1, 9, WIDTH)
    still = mixer(x, Layout.dense(1, 9))
    assert torch.equal(mixer(x, Layout.dense(1, 9)), still)
    mixer.train()
    torch.manual_seed(0)
    assert not torch.allclose(mixer(x, Layout.dense(1, 9)), still)
    calm = build(Config(heads=2, window=4, chunk=2)).train()
    assert torch.equal(calm(x, Layout.dense(1, 9)), still)


@torch.no_grad()
def test_summaries_are_kept_exactly_as_counted():
    mixer = build(Config(heads=2, window=4, chunk=2))
    _, state = mixer.prefill(tokens(2, 9, WIDTH), Layout.right_padded([9, 5], 9))
    for n in range(10, 20):
        _, state = mixer.step(tokens(2, WIDTH), state)
        assert state["far_k"].shape[1] == n // 2
        assert state.nbytes == 2 * mixer.cost(n, torch.float64).state_bytes


@pytest.mark.parametrize("edge", ["tokens", "places"])
@pytest.mark.parametrize(("n", "chunks"), [(11, [3, 4, 4]), (9, [3, 3, 3]), (2, [1, 1]), (1, [1])])
@torch.no_grad()
def test_the_formula_both_ways(n, chunks, edge):
    """One head, token by token: blocks of 4 and two tokens on each side, three even chunks with two on each side as well."""
    mixer = build(Config(mode="non_causal", heads=1, window=4, landmarks=3, edge=edge))
    x = tokens(n, WIDTH)
    q, k, v = mixer.proj_q(x), mixer.proj_k(x), mixer.proj_v(x)
    far_k, far_v, start = [], [], 0
    for length in chunks:
        part = slice(max(start - 2, 0), start + length + 2)
        count = len(x[part]) if edge == "tokens" else length + 4
        k_bar = mixer.norm_k(mixer.mean_k(k[part].sum(0) / count))
        mu = (mixer.norm_q(mixer.mean_q(q[part].sum(0) / count)) + k_bar) / 2
        far_k.append(k_bar)
        far_v.append(((k[part] @ mu - k[part].square().sum(-1) / 2) / 4).softmax(0) @ v[part])
        start += length
    for i in range(n):
        near = [j for j in range(n) if i // 4 * 4 - 2 <= j < i // 4 * 4 + 6]
        bias = [mixer.offset_bias[bucket(abs(j - i), 8, 6) + 8 * (j > i), 0] for j in near]
        scores = torch.stack([(q[i] @ k[j] + b) / 4 for j, b in zip(near, bias)] + [q[i] @ key / 4 for key in far_k])
        expected = mixer.out_proj(scores.softmax(0) @ torch.stack([v[j] for j in near] + far_v))
        assert torch.allclose(mixer(x[None], Layout.dense(1, n))[0, i], expected, atol=1e-12), i


def test_cost_both_ways():
    """Projections, near and far pairs, two maps a chunk, and a chunk's mean value and scores with its sides."""
    mixer = build(Config(mode="non_causal", heads=2, window=4, landmarks=3, extension=1))
    near = sum(sum(p // 4 * 4 - 1 <= j <= p // 4 * 4 + 4 for j in range(10)) for p in range(10))
    expected = 10 * 8 * WIDTH**2 + (near + 10 * 3) * 4 * WIDTH + 3 * 2 * 2 * 2 * 8 * 8 + (10 + 3 * 2) * 4 * WIDTH
    assert mixer.cost(10).flops == mixer.cost(9).step_flops == expected
    assert mixer.cost(10).state_bytes == 0
