"""What is particular to one mixer; the laws that all of them obey are in tests/contracts."""

import pytest
import torch
from pydantic import ValidationError

from kernels.errors import ConfigError, UnsupportedUse
from kernels.layout import Layout
from models import LanguageModel, ModelConfig, registry
from models.initialise import seeded
from models.mixers import attention, base_conv, based, prefix, sliding_window
from tests.contracts.cases import select, whatever

WIDTH = 16


def build(config, width=WIDTH):
    return registry.build(config, width, seed=0).double().eval()


def tokens(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("module", [attention, sliding_window, based, prefix])
def test_heads_must_divide_the_width(module):
    with pytest.raises(ConfigError, match="width 16 is not a multiple of heads 3"):
        build(module.Config(heads=3))


def test_the_released_window_size_is_halved_and_sees_itself():
    assert sliding_window.Config.from_released(256).window == 129
    assert sliding_window.Config.from_released(8, heads=2) == sliding_window.Config(heads=2, window=5)


def test_a_window_of_one_is_out_proj_of_v():
    mixer = build(sliding_window.Config(heads=2, window=1))
    x = tokens(2, 6, WIDTH)
    expected = mixer.out_proj(mixer.Wqkv(x)[..., 2 * WIDTH :])
    assert torch.allclose(mixer(x, Layout.dense(2, 6)), expected, atol=1e-12)
    _, state = mixer.prefill(x, Layout.dense(2, 6))
    assert state.nbytes == 2 * mixer.cost(6, torch.float64).state_bytes == 16
    y, _ = mixer.step(x[:, 0], state)
    assert torch.allclose(y, expected[:, 0], atol=1e-12)


@torch.no_grad()
def test_the_attention_cache_grows_by_blocks_and_stays_exact_after_prefill():
    mixer = build(attention.Config(heads=2))
    x = tokens(3, 9, WIDTH)
    _, state = mixer.prefill(x, Layout.right_padded([9, 4, 1], 9))
    assert state["k"].shape == (3, 9, 2, 8)
    sizes = set()
    for _ in range(40):
        _, state = mixer.step(x[:, 0], state)
        sizes.add(state["k"].shape[1])
    assert len(sizes) <= 3 and state.count_B.tolist() == [49, 44, 41]
    assert not state["k"][2, 41:].any(), "unused columns are zero"


def test_partial_rotation_leaves_the_rest_alone():
    """With identical tokens, only the turned channels can tell positions apart."""
    x = tokens(1, 1, WIDTH).expand(1, 5, WIDTH)
    for fraction, turned in ((0.0, 0), (0.5, 4), (1.0, 8)):
        mixer = build(attention.Config(heads=2, rotary_fraction=fraction))
        q, _, _ = attention.project_rotated(mixer, x, Layout.dense(1, 5))
        moves = (q - q[:, :1]).abs().amax((0, 1, 2)) > 1e-9
        assert moves.tolist() == [True] * turned + [False] * (8 - turned)


def test_decay_is_scaled_by_the_reading_token():
    """Head h keeps 1 - 2^-(3+h) a token; the divisor is not decayed (written out for a row of 6)."""
    mixer = build(based.Config(heads=2, feature_dim=4, decay_start=3))
    assert mixer.decay_proj.weight.shape == (2, WIDTH)
    x = tokens(1, 6, WIDTH)
    q, k, v = (p(x).view(6, 2, -1).transpose(0, 1) for p in (mixer.proj_q, mixer.proj_k, mixer.proj_v))
    s = q @ k.transpose(1, 2) / 2
    weights = (1 + s + s * s / 2).tril()
    age = torch.arange(6)[:, None] - torch.arange(6)
    decay = torch.tensor([7 / 8, 15 / 16], dtype=torch.float64)[:, None, None] ** age.clamp(min=0)
    factor = mixer.decay_proj(x).view(6, 2).T.unsqueeze(-1)
    y = factor * ((weights * decay) @ v) / weights.sum(-1, keepdim=True)
    expected = mixer.out_proj(y.transpose(0, 1).flatten(1))
    assert torch.allclose(mixer(x, Layout.dense(1, 6))[0], expected, atol=1e-12)


def test_muted_slots():
    """Their keys, of both paths, are zeroed before the map: weight 1 stays, and their values count."""
    muted = torch.tensor([[True, True, False, False, False]])
    layout = Layout.dense(1, 5).with_prefix(4).with_muted(muted)
    x = tokens(1, 5, WIDTH)
    mixer = build(prefix.Config(heads=2, feature_dim=4))
    q, k, v, k_enc, v_enc = (p(x).view(5, 2, -1).transpose(0, 1) for p in (
        mixer.proj_q, mixer.proj_k, mixer.proj_v, mixer.proj_k_enc, mixer.proj_v_enc))
    k, k_enc = (torch.where(muted[0, :, None], 0, keys) for keys in (k, k_enc))
    causal, encoder = (1 + s + s * s / 2 for s in (q @ k.transpose(1, 2) / 2, q @ k_enc.transpose(1, 2) / 2))
    causal, encoder = causal.tril(), encoder[..., :4]
    y = (causal @ v + encoder @ v_enc[:, :4]) / (causal.sum(-1, keepdim=True) + encoder.sum(-1, keepdim=True))
    assert torch.allclose(mixer(x, layout)[0], mixer.out_proj(y.transpose(0, 1).flatten(1)), atol=1e-12)
    with pytest.raises(UnsupportedUse, match="left_padded"):
        build(prefix.Config(heads=2, feature_dim=4, mask="exact"))(x, layout)


def test_convolution_weights_are_drawn_as_torch_does():
    mixer = registry.build(base_conv.Config(), 64, seed=1)
    assert mixer.conv_weight.shape == (128, 3) and mixer.keep_init == {"conv_weight"}
    assert 0.9 * 3**-0.5 < float(mixer.conv_weight.detach().abs().max()) <= 3**-0.5


def test_the_synthetic_convolution():
    """compress(conv(expand(x))) * projection(x) + x, taps before the row are zero."""
    mixer = build(base_conv.Config(variant="synthetic"))
    x = tokens(2, 7, WIDTH)
    inner = torch.nn.functional.pad(mixer.expand(x).transpose(1, 2), (2, 0))
    conv = torch.nn.functional.conv1d(inner, mixer.conv_weight[:, None], mixer.conv_bias, groups=WIDTH).transpose(1, 2)
    expected = mixer.out_proj(conv) * mixer.projection(x) + x
    assert torch.allclose(mixer(x, Layout.dense(2, 7)), expected, atol=1e-12)


def test_based_refuses_a_decay_that_keeps_nothing():
    """decay_start 0 gave head 0 a decay of 0, whose logarithm turned every output into NaN."""
    with pytest.raises(ValidationError, match="decay_start"):
        based.Config(decay_start=0)
    y = build(based.Config(heads=2, feature_dim=4, decay_start=1))(tokens(1, 9, WIDTH), Layout.dense(1, 9))
    assert y.isfinite().all()


@torch.no_grad()
def test_a_shared_encoder_reads_with_the_decoders_projections():
    """encoder 'shared': the separate one whose k_enc and v_enc are k and v, without their parameters."""
    separate, shared = build(prefix.Config(heads=2, feature_dim=4)), build(prefix.Config(heads=2, feature_dim=4, encoder="shared"))
    assert separate.state_dict().keys() - shared.state_dict().keys() == {"proj_k_enc.weight", "proj_v_enc.weight"}
    weights = shared.state_dict()
    separate.load_state_dict(weights | {f"proj_{name}_enc.weight": weights[f"proj_{name}.weight"] for name in "kv"})
    x, layout = tokens(2, 9, WIDTH), Layout.left_padded([9, 6]).with_prefix([4, 6])
    assert torch.equal(shared(x, layout), separate(x, layout))
    muted = Layout.dense(2, 9).with_prefix(4).with_muted(torch.arange(9).expand(2, 9) < 2)
    assert torch.equal(shared(x, muted), separate(x, muted))
    assert separate.cost(9).flops - shared.cost(9).flops == 9 * 2 * (16 * 8 + 16 * 16)
    assert separate.cost(9).state_bytes == shared.cost(9).state_bytes


@select(causal=True)
def test_a_model_starts_with_the_vectors_that_its_mixer_drew(case):
    """Also biases: one that does not start at 0 must be in keep_init, or the trunk zeroes it."""
    trunk = LanguageModel(ModelConfig(width=WIDTH, vocabulary=8, mixers={"m": case.config}, plan=("m",))).blocks[0].mixer
    alone = registry.build(case.config, WIDTH)
    alone.reset_parameters(seeded(0, 0))
    for (name, found), drawn in zip(trunk.named_parameters(), alone.parameters()):
        if drawn.ndim < 2 or name in trunk.keep_init:
            assert torch.equal(found, drawn), name
    for (name, found), drawn in zip(trunk.named_buffers(), alone.buffers()):
        assert torch.equal(found, drawn), name


@pytest.mark.parametrize(("plan", "message"), [(None, "valid tuple"), (5, "valid tuple"), ("m*", r"name\*count"), ("m*²", r"name\*count"),
                                               ("m*0", "at least one layer"), ("other", r"plan names \['other'\]")])
def test_a_plan_that_is_none(plan, message):
    with pytest.raises(ValidationError, match=message):
        ModelConfig(width=WIDTH, vocabulary=8, mixers={"m": attention.Config()}, plan=plan)


@whatever
def test_draws_depend_on_the_generator_alone(case):
    """Not on torch's default dtype and device."""
    mixer = registry.build(case.config, WIDTH, seed=1)
    drawn = {name: tensor.clone() for name, tensor in mixer.state_dict().items()}
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        with torch.device("meta"):
            mixer.reset_parameters(seeded(1, 0))
    finally:
        torch.set_default_dtype(default)
    for name, tensor in mixer.state_dict().items():
        assert torch.equal(tensor, drawn[name]), name
