"""Reformer against transformers' LSHSelfAttention, causal, with the buckets that it drew: ours with its mask put back.

A first token sees itself alone, with a score of -1e5; float32 has a spacing of 1/128 there, and the reference subtracts such
numbers before it takes an exponential: its first row is off by up to half of that, 0.4 %. Ours is the token's value.

Why causal is refused all the same: the mask hides later tokens, but they still move others between chunks.
"""

import pytest
import torch

from kernels.layout import Layout
from models import registry
from models.mixers.reformer import Config
from tests.golden.attn import attn

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


def masked(dtype):
    meta, arrays = attn("reformer_lsh_tf")
    a = {key: torch.from_numpy(array) for key, array in arrays.items()}
    config = Config(heads=meta["heads"], chunk=meta["chunk"], hashes=meta["hashes"], buckets=meta["buckets"])
    mixer = registry.build(config, meta["hidden"], seed=0).to(dtype).eval()
    with torch.no_grad():
        for ours, theirs in (("proj_qk", "query_key"), ("proj_v", "value")):
            getattr(mixer, ours).weight.copy_(a[f"w.{theirs}.weight"])
        mixer.out_proj.weight.copy_(torch.eye(meta["hidden"]))            # the stored output comes before it
    mixer.hidden = lambda own, seen, N: (seen > own) | (seen == N)
    offset = torch.arange(meta["hashes"])[:, None] * meta["buckets"]      # rounds are told apart there
    return mixer, a["x"].to(dtype), a["out"].to(dtype), a["buckets"] - offset


@DTYPES
@torch.no_grad()
def test_transformers(dtype):
    mixer, x, out, buckets = masked(dtype)
    own = mixer.hashed(mixer.proj_qk(x).unflatten(-1, (2, -1)).transpose(1, 2))
    assert own.shape == buckets.shape and own.max() == buckets.max() == 3 and own.min() == buckets.min() == 0
    mixer.hashed = lambda q: buckets
    y = mixer(x, Layout.dense(2, 32))
    torch.testing.assert_close(y[:, 1:], out[:, 1:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(y[:, 0], out[:, 0], rtol=4e-3, atol=0)
    torch.testing.assert_close(y[:, 0], mixer.proj_v(x[:, 0]), rtol=1e-6, atol=1e-6)
    del mixer.hidden
    assert (mixer(x, Layout.dense(2, 32)) - out).abs().max() > 1e-2, "later tokens are not read"


@torch.no_grad()
def test_the_masked_form_leaks():
    """The last four tokens redrawn, the buckets drawn by fixed rotations: outputs before them move."""
    mixer, x, _, _ = masked(torch.float64)
    changed = x.clone()
    changed[:, -4:] = torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before, after = (mixer(t, Layout.dense(2, 32))[:, :-4] for t in (x, changed))
    assert (after - before).abs().max() > 1e-3
