"""Mixers with several modes: what the laws of tests/contracts do not say. Costs in numbers, and what each form means."""

import math

import pytest
import torch
from pydantic import ValidationError

from kernels.errors import LengthError
from kernels.layout import Layout
from models import registry
from models.mixers import abc, based, cosformer, linear, performer, rfa, sliding_window

WIDTH, HEADS = 16, 2
PAIR = 4 * WIDTH  # a query meets a key: q·k and a·v


def build(module, **settings):
    return registry.build(module.Config(heads=HEADS, **settings), WIDTH, seed=0).double().eval()


def tokens(n, seed=0):
    return torch.randn(1, n, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def heads(projection, x):
    """(H, n, .) of one row."""
    return projection(x[0]).unflatten(-1, (HEADS, -1)).transpose(0, 1)


def outputs(mixer, mode, x, context):
    """(y, the tokens that were read)."""
    if mode == "non_causal":
        return mixer(x, Layout.dense(1, x.shape[1]))[0], x
    memory = mixer.encode(context, Layout.dense(1, context.shape[1]))
    return mixer.read(x, Layout.dense(1, x.shape[1]), memory)[0], context


MODES = pytest.mark.parametrize("mode", ["non_causal", "cross"])


@MODES
@torch.no_grad()
def test_linear_is_weights_over_all(mode):
    mixer = build(linear, eps=0.3, mode=mode)
    x = tokens(9)
    y, read = outputs(mixer, mode, x, tokens(7, seed=1))
    q, k, v = heads(mixer.proj_q, x), heads(mixer.proj_k, read), heads(mixer.proj_v, read)
    w = torch.where(q > 0, q + 1, q.exp()) @ torch.where(k > 0, k + 1, k.exp()).transpose(1, 2)
    expected = (w @ v) / (w.sum(-1, keepdim=True) + 0.3)
    torch.testing.assert_close(y, mixer.out_proj(expected.transpose(0, 1).flatten(1)))


@MODES
@torch.no_grad()
def test_random_features_stand_for_softmax_attention(mode):
    """FAVOR+ and random Fourier features of 60,000 directions, within a few per cent of exact attention."""
    x, context = tokens(9) / 2, tokens(7, seed=1) / 2
    for module, settings, scale in ((performer, {"feature_eps": 0.0, "features": 60_000}, 8**-0.5),
                                    (rfa, {"form": "amplitude", "scale": 0.2, "features": 60_000}, 0.2)):
        mixer = build(module, mode=mode, **settings)
        y, read = outputs(mixer, mode, x, context)
        q, k, v = heads(mixer.proj_q, x), heads(mixer.proj_k, read), heads(mixer.proj_v, read)
        expected = mixer.out_proj(((scale * q @ k.transpose(1, 2)).softmax(-1) @ v).transpose(0, 1).flatten(1))
        assert (y - expected).norm() / expected.norm() < 0.03, module


@MODES
@torch.no_grad()
def test_a_huge_key_does_not_overflow(mode):
    """RFA's amplitudes and ABC's weights are relative to the greatest of the whole row."""
    x = tokens(9)
    x[:, 5] *= 1000
    for module, settings in ((rfa, {"form": "amplitude"}), (abc, {"slots": 4})):
        mixer = build(module, mode=mode, **settings).float()
        y, _ = outputs(mixer, mode, x.float(), x.float())
        assert y.isfinite().all() and y.abs().max() > 0


@MODES
@torch.no_grad()
def test_shared_slots_within_a_clamp(mode):
    """Golden files hold weights from keys and values; here they come from the tokens."""
    mixer = build(abc, slots=3, logits="tokens", clamp=0.7, scale=2.0, mode=mode)
    x = tokens(9)
    y, read = outputs(mixer, mode, x, tokens(7, seed=1))
    q, k, v, s = (heads(p, t) for p, t in (
        (mixer.proj_q, x), (mixer.proj_k, read), (mixer.proj_v, read), (mixer.proj_s, read)))
    assert (s.abs() > 0.7).any()
    weight = s.clamp(-0.7, 0.7).softmax(1).transpose(1, 2)
    expected = (2 * q @ (weight @ k).transpose(1, 2)).softmax(-1) @ (weight @ v)
    torch.testing.assert_close(y, mixer.out_proj(expected.transpose(0, 1).flatten(1)))


@torch.no_grad()
def test_cosformer_places_targets_and_context_by_themselves():
    mixer, read = build(cosformer, max_length=8, mode="cross"), build(cosformer, max_length=8, mode="non_causal")
    memory = mixer.encode(tokens(8), Layout.dense(1, 8))
    assert mixer.read(tokens(8), Layout.dense(1, 8), memory).isfinite().all()
    with pytest.raises(LengthError, match="got 9 tokens, it can place 8"):
        mixer.read(tokens(9), Layout.dense(1, 9), memory)
    with pytest.raises(LengthError):
        mixer.encode(tokens(9), Layout.dense(1, 9))
    with pytest.raises(LengthError):
        read(tokens(9), Layout.dense(1, 9))


def test_fading_needs_a_past():
    with pytest.raises(ValidationError, match="decay_start fades tokens by their age"):
        based.Config(decay_start=3, mode="non_causal")
    for module in (based, sliding_window):
        with pytest.raises(ValidationError):
            module.Config(mode="cross")


def test_costs_of_linear_attention():
    """F features a head: a token writes F (K + 1) products and reads as many, whoever reads them."""
    n, K, F = 50, 8, 11
    projections, sums = 4 * WIDTH * WIDTH, 2 * HEADS * F * (K + 1)
    for mode, state in (("causal", True), ("non_causal", False), ("cross", True)):
        cost = build(performer, features=F, mode=mode).cost(n)
        assert cost.flops == n * (2 * projections + 2 * sums + 6 * HEADS * F * K)
        assert cost.state_bytes == (4 * HEADS * F * (K + 1) + 8 if state else 0)
        one = projections + sums + 4 * HEADS * F * K
        assert cost.step_flops == (one if mode == "cross" else cost.flops // n)
    amplitude = {mode: build(rfa, features=F, form="amplitude", mode=mode).cost(n) for mode in ("causal", "cross")}
    assert amplitude["causal"].flops == amplitude["cross"].flops == 2 * n * amplitude["cross"].step_flops
    assert amplitude["causal"].state_bytes - amplitude["cross"].state_bytes == 4 * HEADS, "what the peak takes"


def test_costs_of_slots():
    """R slots a head: logits, their means of k and v; scores and what they weigh."""
    n, R, K = 50, 6, 8
    a_read = 4 * WIDTH * WIDTH + 4 * HEADS * R * K
    for logits, its_flops, streams in (("keys_values", 4 * HEADS * K * R, 2), ("tokens", 2 * WIDTH * HEADS * R, 1)):
        for mode, numbers in (("causal", 2 * K + 2 * streams), ("non_causal", 0), ("cross", 2 * K)):
            cost = build(abc, slots=R, logits=logits, mode=mode).cost(n)
            assert cost.flops == n * (2 * a_read + its_flops)
            assert cost.step_flops == (a_read if mode == "cross" else cost.flops // n)
            assert cost.state_bytes == (4 * HEADS * R * numbers + 8 if numbers else 0)


@pytest.mark.parametrize("n", [1, 3, 4, 9])
def test_costs_of_windows(n):
    """Pairs counted one by one: w keys, or w - 1 to either side and the token."""
    for mode, reach in (("causal", (3, 0)), ("non_causal", (3, 3))):
        cost = build(sliding_window, window=4, mode=mode).cost(n)
        pairs = sum(-reach[1] <= i - j <= reach[0] for i in range(n) for j in range(n))
        assert cost.flops == n * 8 * WIDTH * WIDTH + pairs * PAIR
        longer = build(sliding_window, window=4, mode=mode).cost(n + 1)
        assert longer.flops - cost.flops == cost.step_flops
        assert (cost.state_bytes == 0) == (mode == "non_causal")
    both, causal = (build(based, feature_dim=4, mode=mode).cost(n) for mode in ("non_causal", "causal"))
    assert both.flops == causal.flops and both.state_bytes == 0 < causal.state_bytes


@torch.no_grad()
def test_based_both_ways_is_weights_over_all():
    mixer, x = build(based, feature_dim=4, scale_dim=9, eps=0.3, mode="non_causal"), tokens(9)
    q, k, v = (heads(p, x) for p in (mixer.proj_q, mixer.proj_k, mixer.proj_v))
    s = q @ k.transpose(1, 2) / math.sqrt(9)
    w = 1 + s + s.square() / 2
    y = (w @ v) / (w.sum(-1, keepdim=True) + 0.3)
    torch.testing.assert_close(mixer(x, Layout.dense(1, 9))[0], mixer.out_proj(y.transpose(0, 1).flatten(1)))


@MODES
@torch.no_grad()
def test_a_pad_is_never_the_greatest_amplitude(mode):
    """A bias of 3 alone, which is a pad's key, is longer than the keys of all tokens; the floor would show it."""
    mixer = build(rfa, form="amplitude", features=8, scale=1.0, floor=0.5, mode=mode)
    mixer.proj_k.weight.copy_(-torch.eye(WIDTH))
    mixer.proj_k.bias.fill_(3)
    x = 3 + tokens(6) / 10
    expected, _ = outputs(mixer, mode, x, x)
    padded, layout = torch.cat((x, torch.full_like(x, torch.nan)), 1), Layout.right_padded([6], 12)
    if mode == "cross":
        y = mixer.read(x, Layout.dense(1, 6), mixer.encode(padded, layout))[0]
    else:
        y = mixer(padded, layout)[0, :6]
    torch.testing.assert_close(y, expected)
