"""Transformer-LS, causal and both ways, against CAB's and lucidrains' modules with their own weights.

CAB (NVIDIA's code) puts `mem_len` zero tokens before every document and masks none of them: their summaries and keys, which
are the LayerNorms' biases, draw weight from every token. Ours has no such tokens; given them as real ones it agrees.
lucidrains lets a chunk's last token read the chunk that it closes; the tokens before it agree.
"""

import pytest
import torch

from kernels.layout import Layout
from models import registry
from models.mixers.long_short import Config
from tests.golden.attn import attn

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def golden(name, dtype):
    meta, arrays = attn(name)
    return meta, {key: torch.from_numpy(array).to(dtype) for key, array in arrays.items()}


def build(config, weights, dtype):
    mixer = registry.build(config, 32, seed=0).to(dtype).eval()
    mixer.load_state_dict(weights)
    return mixer


def cab(a):
    """CAB's parameters under our names; its two position biases are (1, H, 1, [1,] K)."""
    names = {"proj_query.weight": "proj_q.weight", "proj_key.weight": "proj_k.weight", "proj_val.weight": "proj_v.weight",
             "proj_out.weight": "out_proj.weight", "dconv_1.weight": "weights_proj.weight", "dconv_1.bias": "weights_proj.bias",
             "r_net.weight": "place_near.weight", "r_net_chunk.weight": "place_far.weight", "r_net_chunk.bias": "place_far.bias",
             "r_w_bias": "content_bias", "r_r_bias": "place_bias", "dual_ln_win.weight": "norm_near.weight",
             "dual_ln_win.bias": "norm_near.bias", "dual_ln_dproj.weight": "norm_far.weight",
             "dual_ln_dproj.bias": "norm_far.bias"}
    return {ours: a[f"w.{theirs}"].flatten() if theirs.startswith("r_") and theirs.endswith("_bias") else a[f"w.{theirs}"]
            for theirs, ours in names.items()}


@DTYPES
def test_cab(dtype):
    meta, a = golden("longshort_cs_cab", dtype)
    mixer = build(Config(heads=meta["heads"], window=meta["window"], chunk=meta["chunk"], rank=meta["rank"]), cab(a), dtype)
    x, zeros = a["x"], a["x"].new_zeros(2, meta["mem_len"], 32)
    with torch.no_grad():
        y = mixer(torch.cat((zeros, x), 1), Layout.dense(2, meta["mem_len"] + x.shape[1]))[:, meta["mem_len"]:]
        torch.testing.assert_close(y, a["out_cs"], **CLOSE)
        alone = mixer(x, Layout.dense(2, x.shape[1]))
        assert (alone - a["out_cs"]).abs().amax((0, 2)).min() > 0.01, "the zero tokens move every output"
        # streamed: the same in pieces and steps
        _, state = mixer.prefill(zeros, Layout.dense(2, meta["mem_len"]))
        part, state = mixer.extend(x[:, :27], Layout.dense(2, 27), state)
        parts = [part]
        for token in x[:, 27:].unbind(1):
            y, state = mixer.step(token, state)
            parts.append(y[:, None])
        torch.testing.assert_close(torch.cat(parts, 1), a["out_cs"], **CLOSE)


def half_split(t, dim):
    """Channels of each head of 16 from interleaved pairs to two halves."""
    order = torch.cat((torch.arange(0, 16, 2), torch.arange(1, 16, 2)))
    return t.unflatten(dim, (-1, 16)).index_select(dim + 1, order).flatten(dim, dim + 1)


@DTYPES
@torch.no_grad()
def test_cab_both_ways(dtype):
    """40 tokens in blocks of 8, and 33, the last block short."""
    meta, a = golden("longshort_ns_cab", dtype)
    names = {"proj_q": "W_q", "proj_k": "W_k", "proj_v": "W_v", "out_proj": "W_o", "weights_proj": "dconv_fc",
             "norm_near": "dual_ln_l", "norm_far": "dual_ln_s"}
    weights = {f"{ours}.{part}": a[f"w.{theirs}.{part}"] for ours, theirs in names.items() for part in ("weight", "bias")}
    config = Config(mode="non_causal", heads=meta["heads"], window=meta["window"], rank=meta["landmarks"], positions="none",
                    bias=True)
    mixer = build(config, weights, dtype)
    assert mixer.extension == meta["ext"]
    for x, out in (("x", "out_ns"), ("x33", "out_ns33")):
        torch.testing.assert_close(mixer(a[x], Layout.dense(*a[x].shape[:2])), a[out], **CLOSE)


def lucidrains(dtype, module, config):
    """Its rotation turns neighbouring channels, ours halves: the weights' channels are put in our order."""
    meta, a = golden("longshort_lucid", dtype)
    freqs = 10_000.0 ** (-torch.arange(0, 16, 2, dtype=dtype) / 16)
    torch.testing.assert_close(a[f"{module}.pos_emb.freqs"], freqs, rtol=1e-6, atol=0)
    weights = {"proj_q.weight": half_split(a[f"{module}.to_q.weight"], 0),
               "proj_k.weight": half_split(a[f"{module}.to_kv.weight"], 0),
               "out_proj.weight": half_split(a[f"{module}.to_out.weight"], 1),
               "weights_proj.weight": half_split(a[f"{module}.to_dynamic_proj.weight"], 1)}
    for theirs, ours in (("local_norm", "norm_near"), ("global_norm", "norm_far")):
        for part in ("weight", "bias"):
            weights[f"{ours}.{part}"] = half_split(a[f"{module}.{theirs}.{part}"], 0)
    settings = {"heads": meta["heads"], "window": meta["window"], "positions": "rotary", "norm": "head", "weights_from": "key",
                "share_kv": True} | config(meta)
    return meta, a, build(Config(**settings), weights, dtype)


@DTYPES
@pytest.mark.parametrize(("x", "out"), [("x", "out_cs"), ("x30", "out_cs30")])
def test_lucidrains(x, out, dtype):
    meta, a, mixer = lucidrains(dtype, "wc", lambda meta: {"chunk": meta["segment"], "rank": meta["r_causal"],
                                                           "local": "overlap"})
    with torch.no_grad():
        y = mixer(a[x], Layout.dense(*a[x].shape[:2])) + a["wc.to_out.bias"]
    last = torch.arange(y.shape[1]) % meta["segment"] == meta["segment"] - 1
    torch.testing.assert_close(y[:, ~last], a[out][:, ~last], **CLOSE)
    assert (y - a[out])[:, last].abs().amax((0, 2)).min() > 1e-3, "a chunk's last token reads its own chunk there"


@DTYPES
@torch.no_grad()
def test_lucidrains_both_ways(dtype):
    """Near: a whole block on both sides; summaries of what no norm has touched."""
    _, a, mixer = lucidrains(dtype, "wn", lambda meta: {
        "mode": "non_causal", "rank": meta["r_noncausal"], "extension": meta["window"], "summaries_of": "raw"})
    y = mixer(a["x"], Layout.dense(2, 32)) + a["wn.to_out.bias"]
    torch.testing.assert_close(y, a["out_ns"], **CLOSE)
