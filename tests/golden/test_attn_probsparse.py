"""ProbSparse against CAB's copy of Informer, with the sampled keys it drew, and why its masked form is not causal."""

import pytest
import torch

from kernels.layout import Layout
from models import registry
from models.mixers.prob_sparse import Config
from tests.golden.attn import attn

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def golden(name, dtype):
    meta, arrays = attn(name)
    return meta, {key: torch.from_numpy(array).to(dtype if array.dtype.kind == "f" else torch.int64)
                  for key, array in arrays.items()}


@DTYPES
@torch.no_grad()
def test_cab(dtype):
    meta, a = golden("probsparse_cab", dtype)
    mixer = registry.build(Config(heads=meta["heads"], factor=meta["factor"]), meta["embed_dim"], seed=0).to(dtype).eval()
    names = {"proj_q": "query", "proj_k": "key", "proj_v": "value", "out_proj": "out"}
    mixer.load_state_dict({f"{ours}.{part}": a[f"w.{theirs}_projection.{part}"] for ours, theirs in names.items()
                           for part in ("weight", "bias")})
    layout = Layout.dense(2, 33)
    own = mixer(a["x"], layout)
    assert mixer.sampled(33).shape == a["index_sample"].shape == (33, 8)
    mixer.sampled = lambda N: a["index_sample"]
    torch.testing.assert_close(mixer(a["x"], layout), a["out_ns"], **CLOSE)
    assert (own - a["out_ns"]).abs().max() > 1e-2, "the sampled keys decide nothing"


def masked(q, k, v, index, mixer):
    """Informer's decoder form, (B, H, N, K): the chosen queries see earlier keys, the others get the running sum of values."""
    chosen = mixer.choose(q, k)
    later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(later, -torch.inf)
    is_chosen = torch.zeros(q.shape[:3], dtype=torch.bool).scatter(2, chosen, True)
    return torch.where(is_chosen[..., None], scores.softmax(-1) @ v, v.cumsum(2))


@DTYPES
@torch.no_grad()
def test_the_masked_form_leaks(dtype):
    """Why causal is refused: the stored output, and how far its earlier rows move when the last four tokens change."""
    meta, a = golden("probsparse_causal_cab", dtype)
    q, k, v = (a[name].transpose(1, 2) for name in "qkv")
    mixer = registry.build(Config(heads=2, factor=meta["factor"]), 32, seed=0)
    mixer.sampled = lambda N: a["index_sample"]
    expected = a["out"].transpose(1, 2)
    torch.testing.assert_close(masked(q, k, v, a["index_sample"], mixer), expected, **CLOSE)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.cat((t[:, :, :-4], torch.randn(2, 2, 4, 16, generator=generator).to(dtype)), 2) for t in (q, k, v))
    assert (masked(q, k, v, a["index_sample"], mixer) - expected)[:, :, :-4].abs().max() > 1
