"""Reformer: buckets, chunks of documents of any length, and tokens that see nobody."""

import pytest
import torch

from kernels.errors import ConfigError
from models import registry
from models.mixers.reformer import Config


def build(**settings):
    return registry.build(Config(heads=2, **settings), 16, seed=0).double().eval()


def tokens(N):
    return torch.randn(2, 1, 2, N, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def looped(mixer, q, v):
    """Token by token: sorted rows cut into chunks, the last one of a round possibly short."""
    (C, S), N = (mixer.config.chunk, mixer.config.hashes), q.shape[2]
    buckets, out = mixer.hashed(q), torch.zeros_like(v)
    for h in range(2):
        chunks = []
        for s in range(S):
            order = sorted(range(N), key=lambda i: (int(buckets[0, h, s, i]), i))
            chunks += [(s, order[i:i + C]) for i in range(0, N, C)]
        sums, values = torch.full((S, N), -torch.inf, dtype=q.dtype), torch.zeros(S, N, 8, dtype=q.dtype)
        for number, (s, own) in enumerate(chunks):
            for i in own:
                seen = [j for j in chunks[number - 1][1] + own if j != i]
                keys = q[0, h, seen] / (q[0, h, seen].square().mean(-1, keepdim=True) + 1e-6).sqrt() / 8**0.5
                scores = keys @ q[0, h, i]
                sums[s, i], values[s, i] = scores.logsumexp(0), scores.softmax(0) @ v[0, h, seen]
        out[0, h] = (sums.softmax(0)[..., None] * values).sum(0)
    return out


@pytest.mark.parametrize("hashes", [1, 2, 3])
@pytest.mark.parametrize("N", [5, 8, 11, 16, 27])
@torch.no_grad()
def test_against_loops(N, hashes):
    mixer = build(chunk=4, hashes=hashes, buckets=8)
    q, v = tokens(N)
    torch.testing.assert_close(mixer.attend(q, v), looped(mixer, q, v))


@torch.no_grad()
def test_a_short_document_is_attention_to_the_others():
    q, v = tokens(6)
    keys = q / q.square().sum(-1, keepdim=True).sqrt()
    expected = (q @ keys.mT).masked_fill(torch.eye(6, dtype=torch.bool), -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(build(chunk=6).attend(q, v), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(build(chunk=6).attend(q[:, :, :1], v[:, :, :1]), v[:, :, :1])


@torch.no_grad()
def test_opposite_vectors_hash_to_opposite_buckets():
    mixer = build(chunk=4, buckets=8, hashes=3)
    (q, _), N = tokens(20), 20
    buckets, half = mixer.hashed(q), mixer.bucket_count(N) // 2
    assert torch.equal(mixer.hashed(-q), (buckets + half) % (2 * half))
    assert torch.equal(mixer.hashed(7 * q), buckets)
    assert len(buckets.unique()) == 2 * half


def test_buckets_follow_the_length():
    mixer = build(chunk=4, buckets=16)
    assert [mixer.bucket_count(N) for N in (5, 7, 8, 15, 16, 31, 32, 64, 1000)] == [2, 2, 4, 4, 8, 8, 16, 16, 16]


def test_an_odd_number_of_buckets_is_refused():
    with pytest.raises(ConfigError, match="buckets 5.*even"):
        Config(buckets=5)
