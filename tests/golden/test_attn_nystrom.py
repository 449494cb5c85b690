"""Nyströmformer against CAB's module and transformers'.

Both divide the first estimate of the inverse by the greatest column sum of the whole tensor, all documents and heads; six
iterations forget that only in part. The scale is passed in here; ours, of each matrix, is shown to differ by little.
"""

import pytest
import torch

from kernels.layout import Layout
from models import registry
from models.mixers.nystrom import Config
from tests.golden.attn import attn

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
CLOSE = {"rtol": 1e-3, "atol": 1e-4}
CAB = {"proj_q": "q_proj", "proj_k": "k_proj", "proj_v": "v_proj", "out_proj": "out_proj"}
TRANSFORMERS = {"proj_q": "query", "proj_k": "key", "proj_v": "value"}


def released(name, names, dtype, **settings):
    meta, arrays = attn(name)
    a = {key: torch.from_numpy(array).to(dtype) for key, array in arrays.items()}
    mixer = registry.build(Config(heads=meta["heads"], landmarks=meta["landmarks"], **settings), 32, seed=0).to(dtype).eval()
    weights = {f"{ours}.{part}": a[f"w.{theirs}.{part}"] for ours, theirs in names.items() for part in ("weight", "bias")}
    if "out_proj" not in names:                                         # the stored output comes before it
        weights |= {"out_proj.weight": torch.eye(32, dtype=dtype), "out_proj.bias": torch.zeros(32, dtype=dtype)}
    if mixer.taps_HW is not None:
        weights["taps_HW"] = a["w.conv.weight"][:, 0, :, 0]
    mixer.load_state_dict(weights)
    return mixer, a


def check(mixer, x, out):
    """With the released scale, which is one number for the batch, the released output; with ours, near it."""
    layout = Layout.dense(*x.shape[:2])
    ours = mixer(x, layout)
    mixer.inverse_scale = lambda a_BHCC: a_BHCC.sum(-2).amax()
    torch.testing.assert_close(mixer(x, layout), out, **CLOSE)
    del mixer.inverse_scale
    assert 0 < (ours - out).abs().max() < 0.5 * out.abs().max()


@DTYPES
@torch.no_grad()
def test_cab(dtype):
    """33 tokens in 6 segments, 36 tokens, and with the convolution; q and k both times K^-0.5."""
    mixer, a = released("nystrom_cab", CAB, dtype, convolution=None, scale="each_root")
    check(mixer, a["x"], a["out_ns"])
    check(mixer, a["x36"], a["out_ns36"])
    mixer, a = released("nystrom_cab", CAB, dtype, convolution=5, scale="each_root")
    check(mixer, a["x"], a["out_ns_conv"])


@DTYPES
@torch.no_grad()
def test_transformers(dtype):
    """The paper's scale."""
    mixer, a = released("nystrom_tf", TRANSFORMERS, dtype, convolution=5)
    check(mixer, a["x"], a["out"])
