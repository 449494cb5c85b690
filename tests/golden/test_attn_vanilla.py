"""Softmax attention against CAB's vanilla attention in its four uses, and rotary positions against Llama's."""

import pytest
import torch

from kernels.layout import Layout
from kernels.rotary import rotate
from models import registry
from models.mixers import attention
from tests.golden.attn import attn

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


def tensor(array, dtype=torch.float32):
    return torch.from_numpy(array).to(dtype)


def mixer_of(meta, arrays, dtype, mode):
    """The file's four projections in ours: q, k, v one after the other in Wqkv, or k, v in Wkv."""
    config = attention.Config(heads=meta["heads"], rotary_fraction=0, bias=True, mode=mode)
    mixer = registry.build(config, meta["embed_dim"], seed=0).to(dtype).eval()
    joined = {"Wq": "q", "Wkv": "kv"} if mode == "cross" else {"Wqkv": "qkv"}
    weights = {f"{name}.{part}": torch.cat([tensor(arrays[f"w.{letter}_proj.{part}"]) for letter in letters])
               for name, letters in joined.items() for part in ("weight", "bias")}
    weights |= {f"out_proj.{part}": tensor(arrays[f"w.out_proj.{part}"]) for part in ("weight", "bias")}
    mixer.load_state_dict(weights)
    return mixer


def close(got, expected):
    torch.testing.assert_close(got.float(), tensor(expected), **TOLERANCE)


@DTYPES
@torch.no_grad()
@pytest.mark.parametrize("mode, stored", [("causal", "out_cs"), ("non_causal", "out_ns")])
def test_self_attention(mode, stored, dtype):
    meta, arrays = attn("vanilla_cab")
    close(mixer_of(meta, arrays, dtype, mode)(tensor(arrays["x"], dtype), Layout.dense(2, 33)), arrays[stored])


@DTYPES
@torch.no_grad()
def test_padded_keys(dtype):
    """Padded queries are answered in the file and 0 here: the real ones are compared."""
    meta, arrays = attn("vanilla_cab")
    real_BL = ~torch.from_numpy(arrays["key_padding_mask"])
    assert real_BL.sum(1).tolist() == [33, 26]
    y = mixer_of(meta, arrays, dtype, "non_causal")(tensor(arrays["x"], dtype), Layout.from_mask(real_BL))
    close(y[real_BL], arrays["out_ns_pad"][real_BL.numpy()])
    assert not y[~real_BL].any()


@DTYPES
@torch.no_grad()
def test_the_future_can_be_streamed(dtype):
    meta, arrays = attn("vanilla_cab")
    mixer, x = mixer_of(meta, arrays, dtype, "causal"), tensor(arrays["x"], dtype)
    y, state = mixer.prefill(x[:, :20], Layout.dense(2, 20))
    outputs = [y]
    for t in range(20, 33):
        y, state = mixer.step(x[:, t], state)
        outputs.append(y[:, None])
    close(torch.cat(outputs, 1), arrays["out_cs"])


@DTYPES
@torch.no_grad()
def test_cross_attention(dtype):
    meta, arrays = attn("vanilla_cab")
    mixer = mixer_of(meta, arrays, dtype, "cross")
    memory = mixer.encode(tensor(arrays["x"], dtype), Layout.dense(2, 33))
    close(mixer.read(tensor(arrays["y"], dtype), Layout.dense(2, 21), memory), arrays["out_nc"])


@DTYPES
def test_rotary_positions_are_half_split(dtype):
    meta, arrays = attn("rope_halfsplit")
    q, k = (tensor(arrays[name], dtype).transpose(1, 2) for name in "qk")
    cos, sin = Layout.dense(*q.shape[:2]).rope(q.shape[-1], meta["theta"], dtype)
    turned = [rotate(x, cos[:, :, None], sin[:, :, None]).transpose(1, 2) for x in (q, k)]
    for got, name in zip(turned, "qk"):
        close(got, arrays[f"{name}_rot"])
    close(turned[0] @ turned[1].transpose(2, 3), arrays["scores"])
