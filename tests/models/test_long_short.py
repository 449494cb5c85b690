"""What is particular to long-short attention; the laws are in tests/contracts, published weights in tests/golden."""

import pytest
import torch

from kernels.errors import ConfigError
from kernels.layout import Layout
from models import registry
from models.mixers.long_short import Config, waves

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
    ({"window": 3, "chunk": 4}, "window 3 is smaller than chunk 4"),
    ({"window": 6, "chunk": 4, "local": "blocks"}, "not a multiple of chunk 4"),
    ({"window": 6, "chunk": 4, "local": "overlap"}, "not a multiple of chunk 4"),
    ({"mode": "non_causal"}, "non_causal.*positions='rotary'"), ({"heads": 3}, "not a multiple of heads 3")])
def test_refused_sizes(settings, message):
    with pytest.raises(ConfigError, match=message):
        build(Config(**settings))


def test_the_formula():
    """One head, rank 2: weights normalised inside each chunk, near and far under one softmax, two norms."""
    mixer = build(Config(heads=1, window=4, chunk=3, rank=2, positions="none"))
    x = tokens(11, WIDTH)
    q, k, v = mixer.proj_q(x), mixer.proj_k(x), mixer.proj_v(x)
    p = mixer.weights_proj(x)[:9].view(3, 3, 2).softmax(1)
    far = [mixer.norm_far(torch.einsum("gcr,gcd->grd", p, t[:9].view(3, 3, -1)).reshape(6, -1)) for t in (k, v)]
    near = [mixer.norm_near(t) for t in (k, v)]
    expected = []
    for i in range(11):
        keys, values = (torch.cat((n[max(i - 3, 0):i + 1], f[:i // 3 * 2])) for n, f in zip(near, far))
        expected.append((keys @ q[i] / 4).softmax(0) @ values)
    y = mixer(x[None], Layout.dense(1, 11))[0]
    assert torch.allclose(y, mixer.out_proj(torch.stack(expected)), atol=1e-12)


def test_relative_positions():
    """Scores as Transformer-XL writes them: (q + u)·k + (q + w)·r_o near, q·K + q·r_back far."""
    mixer = build(Config(heads=1, window=4, chunk=2, norm="none"))
    x = tokens(9, WIDTH)
    q, k, v = mixer.proj_q(x) / 4, mixer.proj_k(x), mixer.proj_v(x)
    p = mixer.weights_proj(x)[:8].view(4, 2, 1).softmax(1)
    far_k, far_v = ((p * t[:8].view(4, 2, -1)).sum(1) for t in (k, v))
    near_r, far_r = mixer.place_near(waves(4, WIDTH, x)), mixer.place_far(waves(4, WIDTH, x))
    i = 8  # sees 5..8 and chunks 0..3, the last of them 0 back
    near = torch.stack([(q[i] + mixer.content_bias) @ k[j] + (q[i] + mixer.place_bias) @ near_r[i - j] for j in range(5, 9)])
    far = torch.stack([q[i] @ (far_k[s] + far_r[3 - s]) for s in range(4)])
    y = torch.cat((near, far)).softmax(0) @ torch.cat((v[5:9], far_v))
    assert torch.allclose(mixer(x[None], Layout.dense(1, 9))[0, i], mixer.out_proj(y), atol=1e-12)


@torch.no_grad()
def test_summaries_are_kept_exactly_as_counted():
    """A pair per closed chunk of the longest row, zeros where a shorter row has none yet; bytes as `cost` says after steps."""
    mixer = build(Config(heads=2, window=5, chunk=4, rank=3))
    _, state = mixer.prefill(tokens(2, 9, WIDTH), Layout.right_padded([9, 5], 9))
    assert state["far_k"].shape == (2, 6, 2, 8) and not state["far_k"][1, 3:].any() and state["far_v"][1, :3].all()
    for n in range(10, 20):
        _, state = mixer.step(tokens(2, WIDTH), state)
        assert state["far_k"].shape[1] == n // 4 * 3
        assert state.nbytes == 2 * mixer.cost(n, torch.float64).state_bytes


def test_cost_counts_every_pair():
    """flops against a loop over tokens, for each kind of window."""
    for config in Config.cases().values():
        mixer = build(config)
        if config.mode == "non_causal":
            E = mixer.extension
            pairs = [sum(p // config.window * config.window - E <= j < (p // config.window + 1) * config.window + E
                         for j in range(59)) + config.rank for p in range(59)]
            assert mixer.cost(58).step_flops == mixer.cost(59).flops
            token = (mixer.cost(59).flops - sum(pairs) * 4 * WIDTH) / 59
            matrices = sum(p.numel() for p in mixer.parameters() if p.dim() > 1 and p.shape[1] == WIDTH)
            shared = 0 if config.weights_from == "input" else 2 * WIDTH * config.rank      # a head's map, used by each head
            assert token == 2 * matrices + shared + 4 * config.rank * WIDTH
            continue
        near = {"sliding": lambda p, w: min(p + 1, w), "blocks": lambda p, w: p % w + 1,
                "overlap": lambda p, w: p % w + 1 + (w if p >= w else 0)}[config.local]
        pairs = [near(p, config.window) + p // config.chunk * config.rank for p in range(60)]
        per_pair = (6 if config.positions == "relative" else 4) * WIDTH
        first = mixer.cost(0).step_flops - per_pair
        places = mixer.cost(59).flops - 59 * first - sum(pairs[:59]) * per_pair
        assert places == (2 * WIDTH**2 * (min(59, config.window) + 59 // config.chunk * config.rank)
                          if config.positions == "relative" else 0)
        assert [mixer.cost(n).step_flops for n in range(60)] == [first + n * per_pair for n in pairs]


@pytest.mark.parametrize("n", [1, 3, 8, 11])
@pytest.mark.parametrize(("extension", "sides"), [(None, 2), (0, 0), (4, 4), (9, 9)])
@torch.no_grad()
def test_the_formula_both_ways(extension, sides, n):
    """One head: a block of 4, `sides` tokens before and after it, and three means of the whole document."""
    mixer = build(Config(mode="non_causal", heads=1, window=4, rank=3, positions="none", extension=extension))
    x = tokens(n, WIDTH)
    q, k, v = mixer.proj_q(x), mixer.norm_near(mixer.proj_k(x)), mixer.norm_near(mixer.proj_v(x))
    far_k, far_v = (mixer.norm_far(mixer.weights_proj(x).softmax(0).T @ t) for t in (k, v))
    expected = []
    for i in range(n):
        near = slice(max(i // 4 * 4 - sides, 0), i // 4 * 4 + 4 + sides)
        expected.append((torch.cat((k[near], far_k)) @ q[i] / 4).softmax(0) @ torch.cat((v[near], far_v)))
    y = mixer(x[None], Layout.dense(1, n))[0]
    assert torch.allclose(y, mixer.out_proj(torch.stack(expected)), atol=1e-12)
