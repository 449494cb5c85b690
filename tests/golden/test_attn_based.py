"""Based in flash-linear-attention: its loops over the formula, and its layer, causal and both ways."""

import pytest
import torch

from kernels.layout import Layout
from kernels.linear_scan import linear_scan
from kernels.taylor import feature_map, taylor
from models import registry
from models.mixers.based import Config
from tests.golden.attn import attn, heads_second

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


@DTYPES
@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_the_operation(backend, dtype):
    """Weights 1 + a + a^2/2, eps 1e-6; and the numerator alone, which is a sum over the features themselves."""
    _, arrays = attn("based_fla")
    q, k, v = (torch.from_numpy(heads_second(arrays[name])).to(dtype) for name in "qkv")
    y = taylor(q, k, v, eps=1e-6, backend=backend)
    for name in ("out_norm", "out_chunk16"):
        torch.testing.assert_close(y, torch.from_numpy(heads_second(arrays[name])).to(dtype), **CLOSE)
    phi_q, phi_k = (feature_map(t, q.shape[-1] ** -0.5) for t in (q, k))
    numerator = linear_scan(phi_q, phi_k, v, normalise=False, backend=backend)
    torch.testing.assert_close(numerator, torch.from_numpy(heads_second(arrays["out_nonorm"])).to(dtype), **CLOSE)


@torch.no_grad()
@DTYPES
@pytest.mark.parametrize(("mode", "out"), [("causal", "out_causal"), ("non_causal", "out_noncausal")])
def test_the_layer(mode, out, dtype):
    meta, arrays = attn("based_layer_fla")
    a = {key: torch.from_numpy(array).to(dtype) for key, array in arrays.items()}
    config = Config(heads=meta["heads"], feature_dim=meta["feature_dim"], eps=meta["eps"], mode=mode)
    mixer = registry.build(config, meta["hidden"], seed=0).to(dtype).eval()
    names = {"proj_q": "q_proj", "proj_k": "k_proj", "proj_v": "v_proj", "out_proj": "o_proj"}
    mixer.load_state_dict({f"{ours}.weight": a[f"w.{theirs}.weight"] for ours, theirs in names.items()})
    torch.testing.assert_close(mixer(a["x"], Layout.dense(2, 48)), a[out], **CLOSE)
