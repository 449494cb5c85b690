"""The gated short convolution (BaseConv) and sliding-window attention against the released layers, states included."""

import pytest
import torch

from kernels.layout import Layout
from models import registry
from tests.golden.reference import fill, reference, tensor
from tests.golden.test_jrt_prefix import DTYPES, close


def conv_layer(golden, dtype):
    config = registry.config_class("base_conv")(kernel=3)
    mixer = registry.build(config, 16, seed=0).to(dtype).eval()
    fill(mixer, {
        "in_proj.weight": golden["W_in_proj__weight"], "in_proj.bias": golden["W_in_proj__bias"],
        "conv_weight": golden["W_conv__conv__weight"],
        "out_proj.weight": golden["W_out_proj__weight"], "out_proj.bias": golden["W_out_proj__bias"],
    })
    return mixer


@DTYPES
@torch.no_grad()
def test_short_conv_forward(dtype, suffix, tolerance):
    golden = reference("baseconv_shortconv")
    mixer, x_BLD = conv_layer(golden, dtype), tensor(golden["x"], dtype)
    close(mixer(x_BLD, Layout.dense(2, 11)), golden[f"y{suffix}"], tolerance)
    whole = torch.cat([x_BLD, tensor(golden["decode_tokens"], dtype)], 1)
    close(mixer(whole, Layout.dense(2, 15)), golden[f"parallel_full_y{suffix}"], tolerance)


@DTYPES
@pytest.mark.parametrize("length", [1, 2, 11])
@torch.no_grad()
def test_short_conv_decode(length, dtype, suffix, tolerance):
    """The released cache holds the last K inputs; the K-1 that matter are ours."""
    golden = reference("baseconv_shortconv")
    mixer = conv_layer(golden, dtype)
    _, state = mixer.prefill(tensor(golden["x"], dtype)[:, :length], Layout.dense(2, length))
    (cache,) = [t for name, t in state.tensors().items() if name != "count_B"]
    theirs = tensor(golden[f"prefill{length}_state{suffix}"])[..., -2:]
    close(cache if cache.shape[-1] == 2 else cache.transpose(1, 2), theirs.numpy(), tolerance)
    outputs = []
    for x_BD in tensor(golden["decode_tokens"], dtype).unbind(1):
        y_BD, state = mixer.step(x_BD, state)
        outputs.append(y_BD)
    close(torch.stack(outputs, 1), golden[f"prefill{length}_decode_y{suffix}"], tolerance)


def window_layer(golden, dtype, rope: bool):
    """The released window_size 8 means 4 tokens back and the token itself: 5 keys."""
    keys = int(golden["window_size_config"]) // 2 + 1
    assert keys == int(golden["window_left"]) + 1 == 5
    config = registry.config_class("sliding_window").from_released(8, heads=2, rotary_fraction=float(rope))
    assert config.window == keys
    mixer = registry.build(config, 32, seed=0).to(dtype).eval()
    fill(mixer, {"Wqkv.weight": golden["W_Wqkv"], "out_proj.weight": golden["W_out_proj"]})
    return mixer


@DTYPES
@pytest.mark.parametrize("positions", ["norope", "rope"])
@torch.no_grad()
def test_window(positions, dtype, suffix, tolerance):
    golden = reference("sliding_window_attention")
    mixer, x_BLD = window_layer(golden, dtype, positions == "rope"), tensor(golden["x"], dtype)
    close(mixer(x_BLD, Layout.dense(2, 14)), golden[f"{positions}_y{suffix}"], 1.5 * tolerance)
    _, state = mixer.prefill(x_BLD, Layout.dense(2, 14))
    outputs = []
    for x_BD in tensor(golden["decode_tokens"], dtype).unbind(1):
        y_BD, state = mixer.step(x_BD, state)
        outputs.append(y_BD)
    close(torch.stack(outputs, 1), golden[f"{positions}_decode_y{suffix}"], 1.5 * tolerance)


def test_a_window_of_129_keys_reaches_128_back():
    """The released 256 becomes 129 keys with the query's own."""
    config = registry.config_class("sliding_window").from_released(256, heads=1)
    assert registry.abilities(config).reach == 128
    mixer = registry.build(config, 16, seed=0).double()
    x_BLD = torch.randn(1, 140, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mixer(x_BLD, Layout.dense(1, 140))[0, -1].sum().backward()
    seen = x_BLD.grad[0].abs().sum(-1) > 0
    assert seen.tolist() == [i >= 139 - 128 for i in range(140)]


@torch.no_grad()
def test_synthetic_conv():
    """The mixer of the synthetic experiments: compress(conv(expand(x)))·projection(x) + x."""
    golden = reference("zoology_synthetic_mixers")
    mixer = registry.build(registry.config_class("base_conv")(variant="synthetic"), 16, seed=0).double()
    names = {"projection.weight": "projection/weight", "projection.bias": "projection/bias", "conv_weight": "conv/conv/weight",
             "conv_bias": "conv/conv/bias", "expand.weight": "conv/expand/weight", "expand.bias": "conv/expand/bias",
             "out_proj.weight": "conv/compress/weight", "out_proj.bias": "conv/compress/bias"}
    fill(mixer, {ours: golden[f"baseconv_causal1__W_{theirs}"] for ours, theirs in names.items()})
    close(mixer(tensor(golden["x"]), Layout.dense(2, 9)), golden["baseconv_causal1__y64"], 1e-10)
