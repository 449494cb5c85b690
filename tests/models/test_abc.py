"""Bounded memory control: what its settings mean, and that no logit is too large."""

import torch

from kernels.layout import Layout
from models import registry
from models.mixers import abc

WIDTH = 16


def build(**settings):
    return registry.build(abc.Config(**settings), WIDTH, seed=0).double().eval()


def tokens(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def written_out(mixer, x_LD, logits_k, logits_v, scale):
    """Per head and token, from the prefix as a whole; logits (L, H, R)."""
    q, k, v = (p(x_LD).unflatten(-1, (mixer.config.heads, -1)) for p in (mixer.proj_q, mixer.proj_k, mixer.proj_v))
    rows = []
    for i in range(len(x_LD)):
        slots_k = torch.einsum("jhr,jhk->hrk", logits_k[: i + 1].softmax(0), k[: i + 1])
        slots_v = torch.einsum("jhr,jhk->hrk", logits_v[: i + 1].softmax(0), v[: i + 1])
        attention = (scale * torch.einsum("hk,hrk->hr", q[i], slots_k)).softmax(-1)
        rows.append(torch.einsum("hr,hrk->hk", attention, slots_v).flatten())
    return mixer.out_proj(torch.stack(rows))


@torch.no_grad()
def test_weights_from_keys_and_values():
    mixer, x = build(heads=2, slots=5), tokens(1, 20, WIDTH)
    k, v = (p(x[0]).unflatten(-1, (2, -1)) for p in (mixer.proj_k, mixer.proj_v))
    expected = written_out(mixer, x[0], k @ mixer.compress_k, v @ mixer.compress_v, 8**-0.5)
    torch.testing.assert_close(mixer(x, Layout.dense(1, 20))[0], expected)


@torch.no_grad()
def test_weights_from_tokens_within_a_clamp():
    mixer, x = build(heads=2, slots=3, logits="tokens", clamp=0.7, scale=2.0), tokens(1, 20, WIDTH)
    logits = mixer.proj_s(x[0]).unflatten(-1, (2, -1))
    assert (logits.abs() > 0.7).any() and (logits.abs() < 0.7).any()
    logits = logits.clamp(-0.7, 0.7)
    torch.testing.assert_close(mixer(x, Layout.dense(1, 20))[0], written_out(mixer, x[0], logits, logits, 2.0))


def test_rising_weights_neither_overflow_nor_wipe_the_past():
    """Logits that rise by hundreds a token, in float32: every earlier output is what it was without the later tokens."""
    mixer = build(heads=2, slots=4, logits="tokens").float()
    x = (tokens(1, 1, WIDTH) * torch.arange(1, 41).view(1, -1, 1) * 200).float().requires_grad_()
    y = mixer(x, Layout.dense(1, 40))
    y.sum().backward()
    assert y.isfinite().all() and x.grad.isfinite().all()
    for n in (1, 7, 30):
        torch.testing.assert_close(mixer(x[:, :n], Layout.dense(1, n)), y[:, :n])


def test_slots_do_not_grow():
    """Keys and values of two streams of weights: R (2K + 4) numbers a head, 2K + 2 where the weights are shared."""
    for logits, extra in (("keys_values", 4), ("tokens", 2)):
        mixer = build(heads=2, slots=6, logits=logits)
        assert mixer.cost(10**6, torch.float32).state_bytes == 4 * 2 * 6 * (2 * 8 + extra) + 8
    assert build(heads=2, slots=6).keep_init == {"compress_k", "compress_v"}
