"""§8: the numbers that can be followed by hand."""

import pytest
import torch

from kernels.errors import LayoutError
from kernels.layout import Layout
from kernels.short_conv import short_conv
from models import registry


def set_weights(mixer: torch.nn.Module, **values: list) -> None:
    """Parameters by name (dots as __); the others are zero."""
    parameters = dict(mixer.named_parameters())
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.zero_()
        for name, value in values.items():
            parameter = parameters.pop(name.replace("__", "."))
            parameter.copy_(torch.tensor(value, dtype=parameter.dtype).view_as(parameter))


def values(y: torch.Tensor) -> list[float]:
    return [round(v, 3) for v in y.flatten().tolist()]


@pytest.fixture
def prefix_attention():
    """d = 1; a token carries (q, k, v, v_e), so that k = k_e, and q = 1. The output is channel 0."""
    config = registry.config_class("prefix")(heads=1, feature_dim=1)
    mixer = registry.build(config, 4, seed=0).double().eval()
    eye = torch.eye(4).tolist()
    zeros = [[0.0] * 4] * 3
    set_weights(mixer, proj_q__weight=[eye[0]], proj_k__weight=[eye[1]], proj_k_enc__weight=[eye[1]],
                proj_v__weight=[eye[2], *zeros], proj_v_enc__weight=[eye[3], *zeros], out_proj__weight=eye)
    return mixer


TOKENS = torch.tensor([[1, 0, 1, 10], [1, 1, 2, 20], [1, -1, 3, 30]], dtype=torch.float64)


@torch.no_grad()
def test_prefix_linear_attention(prefix_attention):
    mixer, pad = prefix_attention, torch.full((1, 4), torch.nan, dtype=torch.float64)
    x_BLD = torch.cat([pad, TOKENS[:2]])[None]
    layout = Layout.left_padded([2], 3).with_prefix(3)
    assert layout.documents == ((0, 2, 2),)
    assert values(mixer(x_BLD, layout)[..., 0]) == [0, 13.556, 9.429]
    y_BLD, state = mixer.prefill(x_BLD, layout)
    assert values(y_BLD[..., 0]) == [0, 13.556, 9.429]
    assert state.count_B.tolist() == [2]
    sums = state.tensors()
    # q = 1 reads 66 over 7: features (1, k, k²/sqrt2) against (1, 1, 1/sqrt2)
    query = torch.tensor([1, 1, 0.5**0.5], dtype=torch.float64)
    assert values(sums["kv"][0, 0, :, 0] @ query) == [66] and values(sums["z"][0, 0] @ query) == [7]
    y_BD, _ = mixer.step(TOKENS[2:], state)
    assert values(y_BD[:, 0]) == [9]
    whole = mixer(TOKENS[None], Layout.dense(1, 3).with_prefix(2))
    assert values(whole[..., 0]) == [13.556, 9.429, 9]


@torch.no_grad()
def test_iterate_is_another_number(prefix_attention):
    y_BLD = prefix_attention(TOKENS[None], Layout.dense(1, 3).with_prefix(3))
    assert y_BLD[0, 2, 0].item() == pytest.approx(10.3125, abs=1e-9)


@torch.no_grad()
def test_keep_out(prefix_attention):
    y_BLD = prefix_attention(TOKENS[None, :2], Layout.dense(1, 2).with_prefix(3, keep_out=1))
    assert values(y_BLD[..., 0]) == [5.5, 3.556]


@torch.no_grad()
def test_the_released_mask(prefix_attention):
    """The pad is a token with values 100 whose key is zeroed before the map: weight 1, twice."""
    x_BLD = torch.cat([torch.tensor([[1, 5, 100, 100]], dtype=torch.float64), TOKENS[:2]])[None]
    layout = Layout.dense(1, 3).with_prefix(3).with_muted(torch.tensor([[True, False, False]]))
    assert values(prefix_attention(x_BLD, layout)[0, 2, 0]) == [29.556]


def test_short_convolution():
    """Taps 100 (now), 10, 1 over the documents (1 2)(3 4 5); leaking ones give 321 and 432."""
    x_BLD = torch.arange(1.0, 6, dtype=torch.float64).view(1, 5, 1)
    weight_DK = torch.tensor([[1.0, 10.0, 100.0]], dtype=torch.float64)
    layout = Layout.packed([[2, 3]], 5)
    assert layout.position_BL.tolist() == [[0, 1, 0, 1, 2]]
    assert values(short_conv(x_BLD, weight_DK, position_BL=layout.position_BL)) == [100, 210, 300, 430, 543]
    assert values(short_conv(x_BLD, weight_DK)) == [100, 210, 321, 432, 543]


@torch.no_grad()
def test_short_convolution_states():
    """Unpacked, the caches are (1 2) and (4 5); no tokens keep them; packed rows are not prefilled."""
    mixer = short_conv_layer()
    tokens = torch.zeros(1, 5, 2, dtype=torch.float64)
    tokens[0, :, 0], tokens[0, :, 1] = torch.arange(1, 6), 1
    layout = Layout.packed([[2, 3]], 5)
    with pytest.raises(LayoutError):
        mixer.prefill(tokens, layout)
    index_NL, single = layout.unpack()
    y_BLD, state = mixer.prefill(tokens.flatten(0, 1)[index_NL], single)
    packed = mixer(tokens, layout)
    assert torch.allclose(y_BLD[0, :2], packed[0, :2], atol=1e-12) and torch.allclose(y_BLD[1], packed[0, 2:], atol=1e-12)
    assert cached(state) == [[1, 2], [4, 5]]
    _, state = mixer.extend(torch.full((2, 2, 2), torch.nan, dtype=torch.float64), Layout.right_padded([0, 0], 2), state)
    assert cached(state) == [[1, 2], [4, 5]]
    y_BD, state = mixer.step(torch.tensor([[3, 1], [6, 1]], dtype=torch.float64), state)
    assert cached(state) == [[2, 3], [5, 6]]
    # 654 = 6·100 + 5·10 + 4, through the gate and the activation
    expected = torch.nn.functional.silu(torch.tensor([321.0, 654.0], dtype=torch.float64))
    assert torch.allclose(y_BD[:, 0], expected, atol=1e-9)


def short_conv_layer():
    """Inner channel 0 takes token channel 0, its gate token channel 1; the output is silu(conv)·gate."""
    config = registry.config_class("base_conv")(kernel=3)
    mixer = registry.build(config, 2, seed=0).double().eval()
    inner = mixer.out_proj.in_features
    project = torch.zeros(2 * inner, 2)
    project[0, 0] = 1
    project[inner, 1] = 1
    output = torch.zeros(2, inner)
    output[0, 0] = 1
    taps = torch.zeros(inner, 3)
    taps[0] = torch.tensor([1.0, 10.0, 100.0])
    set_weights(mixer, in_proj__weight=project.tolist(), conv_weight=taps.tolist(), out_proj__weight=output.tolist())
    return mixer


def cached(state) -> list[list[float]]:
    (cache,) = [t for name, t in state.tensors().items() if name != "count_B"]
    return (cache[..., 0] if cache.shape[1] == 2 else cache[:, 0]).tolist()
