"""cosFormer's official module, and CAB's, through the mixer, whose fixed length is the longer row's as theirs is."""

import pytest
import torch

from kernels.layout import Layout
from models import registry
from models.mixers.cosformer import Config
from tests.golden.attn import attn

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
NAMES = {"proj_q": "q_proj", "proj_k": "k_proj", "proj_v": "v_proj", "out_proj": "out_proj"}
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
FILES = pytest.mark.parametrize("name", ["cosformer_official", "cosformer_cab"])


def published(name, dtype, mode):
    """(mixer with the file's weights, the file's arrays, tokens of x)."""
    meta, arrays = attn(name)
    a = {key: torch.from_numpy(array).to(dtype) for key, array in arrays.items()}
    n = a["x"].shape[1]
    config = Config(heads=meta["heads"], max_length=n, floor=meta["eps"], mode=mode)
    mixer = registry.build(config, meta["embed_dim"], seed=0).to(dtype).eval()
    mixer.load_state_dict({f"{ours}.{part}": a[f"w.{theirs}.{part}"] for ours, theirs in NAMES.items()
                           for part in ("weight", "bias")})
    return mixer, a, n


@DTYPES
@torch.no_grad()
def test_official_causal(dtype):
    mixer, a, n = published("cosformer_official", dtype, "causal")
    x = a["x"]
    torch.testing.assert_close(mixer(x, Layout.dense(2, n)), a["out_cs"], **CLOSE)
    part, state = mixer.prefill(x[:, :20], Layout.dense(2, 20))
    torch.testing.assert_close(part, a["out_cs"][:, :20], **CLOSE)
    for i in range(20, n):
        y, state = mixer.step(x[:, i], state)
        torch.testing.assert_close(y, a["out_cs"][:, i], **CLOSE)


@FILES
@DTYPES
@torch.no_grad()
def test_both_ways(dtype, name):
    mixer, a, n = published(name, dtype, "non_causal")
    torch.testing.assert_close(mixer(a["x"], Layout.dense(2, n)), a["out_ns"], **CLOSE)


@FILES
@DTYPES
@torch.no_grad()
def test_a_context(dtype, name):
    """Targets and context are counted from their own first tokens."""
    mixer, a, n = published(name, dtype, "cross")
    m = a["y"].shape[1]
    assert m < n
    memory = mixer.encode(a["x"], Layout.dense(2, n))
    torch.testing.assert_close(mixer.read(a["y"], Layout.dense(2, m), memory), a["out_nc"], **CLOSE)
