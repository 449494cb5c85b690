"""cosFormer's official module through the mixer: its causal form for rows of 32, whose length is the mixer's fixed one."""

import pytest
import torch

from kernels.layout import Layout
from models import registry
from models.mixers.cosformer import Config
from tests.golden.attn import attn

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@torch.no_grad()
def test_official(dtype):
    meta, arrays = attn("cosformer_official")
    a = {key: torch.from_numpy(array).to(dtype) for key, array in arrays.items()}
    mixer = registry.build(Config(heads=meta["heads"], max_length=32, floor=meta["eps"]), meta["embed_dim"], seed=0)
    names = {"proj_q": "q_proj", "proj_k": "k_proj", "proj_v": "v_proj", "out_proj": "out_proj"}
    mixer = mixer.to(dtype).eval()
    mixer.load_state_dict({f"{ours}.{part}": a[f"w.{theirs}.{part}"] for ours, theirs in names.items()
                           for part in ("weight", "bias")})
    x = a["x"]
    torch.testing.assert_close(mixer(x, Layout.dense(2, 32)), a["out_cs"], **CLOSE)
    part, state = mixer.prefill(x[:, :20], Layout.dense(2, 20))
    torch.testing.assert_close(part, a["out_cs"][:, :20], **CLOSE)
    for i in range(20, 32):
        y, state = mixer.step(x[:, i], state)
        torch.testing.assert_close(y, a["out_cs"][:, i], **CLOSE)
