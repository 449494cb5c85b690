"""LARA against the modules of CAB and of its authors, their own weights mapped by name.

Both cut a padded row into segments of all its slots, pads included: a document's output depends on its pads. So of the
authors' padded batch only the row without pads is compared; the other is shown to differ from its document alone. Of CAB's,
neither: it repeats the mask over heads where rows are repeated, so that here head 0 of both rows has no mask and head 1 of both
rows has the second row's. The authors' softmax of the correction runs over queries.
"""

import pytest
import torch

from kernels.layout import Layout
from models import registry
from models.mixers.lara import Config
from tests.golden.attn import attn

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


def golden(name, dtype):
    meta, arrays = attn(name)
    return meta, {key: torch.from_numpy(array).to(dtype if array.dtype.kind == "f" else torch.bool)
                  for key, array in arrays.items()}


def build(config, weights, dtype):
    mixer = registry.build(config, 32, seed=0).to(dtype).eval()
    mixer.load_state_dict(weights)
    return mixer


@DTYPES
@torch.no_grad()
def test_cab(dtype):
    """33 tokens in 6 segments: three of 5 and three of 6."""
    meta, a = golden("lara_cab", dtype)
    weights = {f"{ours}.{part}": a[f"w.{theirs}.{part}"] for part in ("weight", "bias") for ours, theirs in (
        ("proj_q", "q_proj"), ("proj_k", "k_proj"), ("proj_v", "v_proj"), ("out_proj", "out_proj"))}
    config = Config(heads=meta["heads"], landmarks=meta["landmarks"], maps="none", mis="biased_own")
    mixer = build(config, weights, dtype)
    torch.testing.assert_close(mixer(a["x"], Layout.dense(2, 33)), a["out_ns"], **CLOSE)
    torch.testing.assert_close(mixer(a["x36"], Layout.dense(2, 36)), a["out_ns36"], **CLOSE)
    moved = torch.linalg.solve(mixer.out_proj.weight, (a["out_ns_pad"] - a["out_ns"]).mT)
    moved = moved.unflatten(1, (2, 16)).abs().amax((2, 3))                # of the rows' heads
    assert (moved[:, 0] < 1e-4).all() and (moved[:, 1] > 0.05).all(), "the stored mask does what it should: compare the row"


@DTYPES
@pytest.mark.parametrize("mis", ["opt", "biased", "bh"])
@torch.no_grad()
def test_authors(mis, dtype):
    meta, a = golden("lara_eva", dtype)
    weights = {"out_proj.weight": a["w.proj.weight"], "out_proj.bias": a["w.proj.bias"]}
    for part in ("weight", "bias"):
        for name, rows in zip("qkv", a[f"w.qkv.{part}"].chunk(3)):
            weights[f"proj_{name}.{part}"] = rows
        for name in "qk":
            weights[f"map_{name}.{part}"] = a[f"w.{name}_bar_gen.0.{part}"]
            weights[f"norm_{name}.{part}"] = a[f"w.{name}_bar_gen.1.{part}"]
    config = Config(heads=meta["heads"], landmarks=meta["landmarks"], mis=mis, alpha=meta["alpha_coeff"], share="queries")
    mixer = build(config, weights, dtype)
    torch.testing.assert_close(mixer(a["x"], Layout.dense(2, 32)), a[f"out_mis_{mis}"], **CLOSE)
    padded, expected = mixer(a["x"], Layout.from_mask(~a["pad"])), a[f"out_pad_mis_{mis}"]
    assert not a["pad"][0].any() and a["pad"][1, 26:].all() and not a["pad"][1, :26].any()
    torch.testing.assert_close(padded[0], expected[0], **CLOSE)
    torch.testing.assert_close(padded[1:, :26], mixer(a["x"][1:, :26], Layout.dense(1, 26)), **CLOSE)
    assert (padded[1, :26] - expected[1, :26]).abs().max() > 0.01, "the reference obeys the padding law: compare this row too"
    torch.testing.assert_close(mixer(a["x30"], Layout.dense(2, 30)), a[f"out30_mis_{mis}"], **CLOSE)
    if mis == "opt":
        other = build(config.model_copy(update={"share": "landmarks"}), weights, dtype)
        assert (other(a["x"], Layout.dense(2, 32)) - a["out_mis_opt"]).abs().max() > 10 * CLOSE["atol"]
