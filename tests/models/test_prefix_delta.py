"""The prefix form of Gated DeltaNet: what its encoder leaves behind; the laws, prefixes among them, are in tests/contracts."""

import pytest
import torch

from kernels.layout import Layout
from models import registry
from models.mixers import gated_delta_net, prefix_delta

WIDTH = 16
SETTINGS = {"heads": 2, "expand_k": 1, "expand_v": 1}


def build(module, **settings):
    return registry.build(module.Config(**{**SETTINGS, **settings}), WIDTH, seed=0).double().eval()


def tokens(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain(mixer, **settings):
    """Gated DeltaNet with the decoder's weights."""
    twin = build(gated_delta_net, **settings)
    twin.load_state_dict({name: value for name, value in mixer.state_dict().items() if "_enc" not in name})
    return twin


@torch.no_grad()
@pytest.mark.parametrize("encoder", ["separate", "shared"])
@pytest.mark.parametrize("conv", [None, 4])
def test_no_prefix_is_gated_delta_net_bit_for_bit(encoder, conv):
    mixer = build(prefix_delta, encoder=encoder, conv=conv)
    twin, x, layout = plain(mixer, conv=conv), tokens(3, 9, WIDTH), Layout.left_padded([9, 4, 0])
    assert torch.equal(mixer(x, layout), twin(x, layout))
    (y, state), (expected, kept) = (m.prefill(x, layout) for m in (mixer, twin))
    assert torch.equal(y, expected) and all(torch.equal(state[name], kept[name]) for name in kept.names)
    (y, _), (expected, _) = mixer.step(x[:, 0], state), twin.step(x[:, 0], kept)
    assert torch.equal(y, expected)
    assert mixer.cost(9).state_bytes == twin.cost(9).state_bytes


@torch.no_grad()
def test_a_shared_encoder_reads_the_prefix_again():
    """Without a convolution: the outputs of Gated DeltaNet over prefix, prefix, suffix, from the second prefix on."""
    mixer = build(prefix_delta, encoder="shared", conv=None)
    x, m = tokens(1, 11, WIDTH), 4
    again = torch.cat((x[:, :m], x), 1)
    expected = plain(mixer, conv=None)(again, Layout.dense(1, m + 11))[:, m:]
    torch.testing.assert_close(mixer(x, Layout.dense(1, 11).with_prefix(m)), expected, rtol=1e-10, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("conv", [None, 4])
def test_a_separate_encoder_with_the_decoders_weights_is_the_shared_one(conv):
    separate, shared = (build(prefix_delta, encoder=encoder, conv=conv) for encoder in ("separate", "shared"))
    weights = shared.state_dict()
    own = {f"proj_{name}_enc.weight": weights[f"proj_{name}.weight"] for name in ("k", "v", "beta")}
    if conv:
        own["conv_weight_enc"] = weights["conv_weight"][WIDTH:]  # behind q's channels
    assert separate.state_dict().keys() - weights.keys() == own.keys()
    separate.load_state_dict(weights | own)
    x, layout = tokens(2, 9, WIDTH), Layout.left_padded([9, 6]).with_prefix([3, 6])
    torch.testing.assert_close(separate(x, layout), shared(x, layout), rtol=1e-12, atol=1e-12)
    extra = sum(value.numel() for value in own.values())
    assert separate.cost(9).parameters - shared.cost(9).parameters == extra
    assert separate.cost(9).flops - shared.cost(9).flops == 9 * 2 * extra
    assert separate.cost(9).step_flops == shared.cost(9).step_flops


@torch.no_grad()
def test_the_encoder_writes_without_reading():
    """Its 4·K·V FLOPs a head and token: recall and write."""
    shared, twin = build(prefix_delta, encoder="shared"), build(gated_delta_net)
    assert shared.cost(5).flops - twin.cost(5).flops == 5 * 2 * 4 * 8 * 8


@torch.no_grad()
def test_tokens_of_the_prefix_and_their_strength_decide_what_stays():
    """An encoder that writes nothing leaves Gated DeltaNet."""
    mixer = build(prefix_delta, conv=None)
    x = tokens(1, 9, WIDTH)
    x[..., 0] = 1
    mixer.proj_beta_enc.weight.zero_()
    mixer.proj_beta_enc.weight[:, 0] = -1e3  # sigmoid of it is 0
    layout = Layout.dense(1, 9)
    torch.testing.assert_close(mixer(x, layout.with_prefix(5)), plain(mixer, conv=None)(x, layout), rtol=1e-12, atol=1e-12)
    mixer.proj_beta_enc.weight.zero_()       # and of this 1/2
    assert (mixer(x, layout.with_prefix(5)) - mixer(x, layout)).abs().amax() > 1e-3
