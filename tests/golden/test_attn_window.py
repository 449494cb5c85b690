"""Sliding windows of other libraries against ours: what their settings mean in keys.

Two stored results are windows of another kind, which this operation does not have: local_pkg's `out_block` (the block so
far and the whole block before it) and local_block_eva (blocks of 8 that see 4 keys beyond either end, with a table by
place in the block instead of by offset).
"""

import pytest
import torch

from kernels.layout import Layout
from kernels.window import window
from models import registry
from models.mixers.sliding_window import Config
from tests.golden.attn import attn, heads_second

BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@BACKENDS
@DTYPES
@pytest.mark.parametrize(("reach", "keys", "name"), [("causal", 5, "out_cs"), ("both", 6, "out_ns")])
def test_cab_local(reach, keys, name, dtype, backend):
    """CAB's LocalAttention, wsize 5: 5 keys with the token when causal, 5 to either side (11) when not, our w 6."""
    meta, arrays = attn("local_cab")
    heads = meta["heads"]
    tensors = {key: torch.from_numpy(array).to(dtype) for key, array in arrays.items()}

    def project(which, x):
        return torch.nn.functional.linear(x, tensors[f"w.{which}_proj.weight"], tensors[f"w.{which}_proj.bias"])

    q, k, v = (project(which, tensors["x"]).unflatten(-1, (heads, -1)) for which in "qkv")
    y = window(q, k, v, window=keys, reach=reach, backend=backend)
    torch.testing.assert_close(project("out", y.flatten(2)), tensors[name], **CLOSE)


@torch.no_grad()
@DTYPES
@pytest.mark.parametrize(("mode", "keys", "name"), [("causal", 5, "out_cs"), ("non_causal", 6, "out_ns")])
def test_cab_local_mixer(mode, keys, name, dtype):
    """Their biases, which our layer has not: a token is [x, 1, zeros], and a third head brings the 1 to out_proj."""
    _, arrays = attn("local_cab")
    a = {key: torch.from_numpy(array).to(dtype) for key, array in arrays.items()}
    mixer = registry.build(Config(heads=3, window=keys, rotary_fraction=0, mode=mode), 48, seed=0).to(dtype).eval()
    qkv, out = torch.zeros(3, 48, 48, dtype=dtype), torch.zeros(48, 48, dtype=dtype)
    for index, which in enumerate("qkv"):
        qkv[index, :32, :32], qkv[index, :32, 32] = a[f"w.{which}_proj.weight"], a[f"w.{which}_proj.bias"]
    qkv[2, 32, 32] = 1
    out[:32, :32], out[:32, 32] = a["w.out_proj.weight"], a["w.out_proj.bias"]
    mixer.load_state_dict({"Wqkv.weight": qkv.flatten(0, 1), "out_proj.weight": out})
    x = torch.cat((a["x"], torch.ones(2, 33, 1, dtype=dtype), torch.zeros(2, 33, 15, dtype=dtype)), -1)
    torch.testing.assert_close(mixer(x, Layout.dense(2, 33))[..., :32], a[name], **CLOSE)


@BACKENDS
@DTYPES
def test_local_attention_package(dtype, backend):
    """local-attention 1.11.2: window_size 8 with exact_windowsize sees 9 keys; the brute-force files say which is which."""
    _, arrays = attn("local_pkg")
    q, k, v, exact, eight, nine = (
        torch.from_numpy(heads_second(arrays[name])).to(dtype)
        for name in ("q", "k", "v", "out_exact", "out_brute_w8", "out_brute_w9"))
    torch.testing.assert_close(window(q, k, v, window=8, backend=backend), eight, **CLOSE)
    torch.testing.assert_close(window(q, k, v, window=9, backend=backend), nine, **CLOSE)
    torch.testing.assert_close(window(q, k, v, window=9, backend=backend), exact, **CLOSE)
    assert float((window(q, k, v, window=8, backend=backend) - exact).abs().max()) > 0.5
