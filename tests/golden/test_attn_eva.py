"""EVA's causal attention in the authors' own module, its weights mapped by name.

eva_ns is another method (landmarks of the whole row, keys on both sides): not causal, so not this mixer.
"""

import pytest
import torch

from kernels.layout import Layout
from models import registry
from models.mixers.eva import Config
from tests.golden.attn import attn

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
NAMES = {"proj_q": "q_proj", "proj_k": "k_proj", "proj_v": "v_proj", "out_proj": "out_proj", "mean_q": "adaptive_mu_q.0",
         "norm_q": "adaptive_mu_q.1", "mean_k": "adaptive_mu_k.0", "norm_k": "adaptive_mu_k.1"}


def released(dtype):
    meta, arrays = attn("eva_cs")
    a = {key: torch.from_numpy(array).to(dtype) for key, array in arrays.items()}
    config = Config(heads=meta["heads"], window=meta["window"], chunk=meta["chunk"], local="blocks", offsets=meta["t5"])
    mixer = registry.build(config, meta["embed_dim"], seed=0).to(dtype).eval()
    weights = {f"{ours}.{part}": a[f"w.{theirs}.{part}"] for ours, theirs in NAMES.items() for part in ("weight", "bias")}
    mixer.load_state_dict(weights | {"offset_bias": a["w.rel_pos_bias.relative_attention_bias.weight"].flatten()})
    return mixer, a


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@torch.no_grad()
def test_released(dtype):
    """Whole rows, one of them not a multiple of the window, and streamed."""
    mixer, a = released(dtype)
    for x, out in (("x", "out"), ("x30", "out30")):
        torch.testing.assert_close(mixer(a[x], Layout.dense(*a[x].shape[:2])), a[out], **CLOSE)
    part, state = mixer.prefill(a["x"][:, :13], Layout.dense(2, 13))
    parts = [part]
    for token in a["x"][:, 13:].unbind(1):
        y, state = mixer.step(token, state)
        parts.append(y[:, None])
    torch.testing.assert_close(torch.cat(parts, 1), a["out"], **CLOSE)
