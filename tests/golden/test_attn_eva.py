"""EVA's attention, causal and both ways, in the authors' own modules, their weights mapped by name.

Both ways, the authors take offsets from the first near place instead of the token, and cut chunks from all slots of a row,
pads included: of the padded batch the row without pads is compared, the other shown to differ from its document alone.
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


def both_ways(dtype):
    meta, arrays = attn("eva_ns")
    a = {key: torch.from_numpy(array).to(dtype if array.dtype.kind == "f" else torch.bool) for key, array in arrays.items()}
    config = Config(mode="non_causal", heads=meta["heads"], window=meta["window"], landmarks=meta["landmarks"],
                    extension=meta["ext"], edge="places", offsets=meta["t5"])
    mixer = registry.build(config, meta["dim"], seed=0).to(dtype).eval()
    weights = {f"{ours}.{part}": a[f"w.{theirs}.{part}"] for ours, theirs in NAMES.items() if ours[:4] in ("mean", "norm")
               for part in ("weight", "bias")}
    for part in ("weight", "bias"):
        weights[f"out_proj.{part}"] = a[f"w.proj.{part}"]
        weights |= {f"proj_{name}.{part}": rows for name, rows in zip("qkv", a[f"w.qkv.{part}"].chunk(3))}
    mixer.load_state_dict(weights | {"offset_bias": a["w.rel_pos_bias.relative_attention_bias.weight"]})
    return mixer, a


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@torch.no_grad()
def test_released_both_ways(dtype):
    mixer, a = both_ways(dtype)
    own, from_first = mixer(a["x"], Layout.dense(2, 32)), mixer.side_bucket
    assert (own - a["out"]).abs().max() > 0.01, "offsets from the token give something else"
    mixer.side_bucket = lambda offset: from_first(offset + mixer.extension)
    torch.testing.assert_close(mixer(a["x"], Layout.dense(2, 32)), a["out"], **CLOSE)
    padded, n = mixer(a["x"], Layout.from_mask(~a["pad"])), 26
    assert not a["pad"][0].any() and torch.equal(a["pad"][1], torch.arange(32) >= n)
    torch.testing.assert_close(padded[0], a["out_pad"][0], **CLOSE)
    torch.testing.assert_close(padded[1:, :n], mixer(a["x"][1:, :n], Layout.dense(1, n)), **CLOSE)
    assert (padded[1, :n] - a["out_pad"][1, :n]).abs().max() > 1e-3, "the reference obeys the padding law: compare this row too"
