"""Checkpoints of JRT's and Based's authors: config by config, name by name; logits in tests/golden/test_jrt_model.py."""

import pytest
import torch

from kernels.errors import ConfigError
from kernels.layout import Layout
from models import preset
from models.adapters import released
from models.language_model import LanguageModel

CONV = {"_target_": "based.models.mixers.convolution.BaseConv", "l_max": 2048, "use_bias": True, "expand_proj": 4,
        "kernel_sizes": [3]}
PREFIX = {"_target_": "based.models.mixers.prefix_linear_attention.PrefixLinearAttention", "feature_dim": 16,
          "feature_name": "taylor_exp", "num_heads": 16, "enc_length": 1024, "use_mask": True}
LINEAR = {"_target_": "based.models.mixers.linear_attention.LinearAttention", "feature_dim": 16, "num_heads": 16,
          "feature_map": {"_target_": "based.models.mixers.linear_attention.TaylorExp", "input_dim": 16}}
WINDOW = {"_target_": "based.models.mixers.slide_attention.SlidingAttention", "window_size": 256, "num_heads": 16}


def config(layers: int = 26, width: int = 1024, linear: dict = PREFIX, more: tuple[int, ...] = (), **fields) -> dict:
    """A configuration as released (train/configs/experiment/baselines)."""
    at = [1, 6, 11, 16, 21, *more]
    return {"n_embd": width, "n_layer": layers, "n_head": 16, "n_inner": 2 * width, "rms_norm": True, "n_positions": 2048,
            "mlp_fc1_bias": False, "mlp_fc2_bias": False, "out_proj_bias": False, "qkv_proj_bias": False,
            "activation_function": "swiglu", "rotary_emb_fraction": 1, "max_position_embeddings": 0,
            "pad_vocab_size_multiple": 8, "residual_in_fp32": True, "alt_mixer_layers": at,
            "alt_mixer_2_layers": [i + 1 for i in at], "mixer": CONV, "alt_mixer": linear, "alt_mixer_2": WINDOW, **fields}


def small(linear: dict, layers: int = 4, **fields) -> dict:
    """The same form, narrow: convolution, linear attention, window, convolution."""
    narrow = {"num_heads": 2, "feature_dim": 4}
    if "feature_map" in linear:
        narrow["feature_map"] = {**linear["feature_map"], "input_dim": 4}
    return config(layers, 16, {**linear, **narrow}, n_head=2, vocab_size=61, alt_mixer_layers=[1], alt_mixer_2_layers=[2],
                  **fields)


def as_released(model: LanguageModel) -> dict[str, torch.Tensor]:
    """A training run's file: their names behind `model.`, their shapes, the head twice, counters beside."""
    ours = model.state_dict()
    found = {f"model.{theirs}": ours[name].clone() for theirs, name in released.parameter_names(model.config).items()}
    found = {name: tensor[:, None] if "conv.conv" in name else tensor for name, tensor in found.items()}
    if model.config.tie:
        found["model.lm_head.weight"] = found[f"model.{released.TABLE}"].clone()
    return found | {"train_metrics.num-tokens.count": torch.tensor(7), "val_metrics.num-tokens.count": torch.tensor(7)}


@pytest.mark.parametrize(("given", "name", "decays"), [
    (config(), "jrt-360m", False),
    (config(36, 1792, more=(27, 33)), "jrt-1.3b", False),
    (config(36, 1792, LINEAR, (27, 33)), "based-1.3b", False),
    (config(27, 1024, {**LINEAR, "use_decay_proj": True}, fixed_decay=True, decay_const=-3, decay_denom=False),
     "based-360m", True),
    (config(26, 1024, LINEAR), "based-360m-26", False),
])
def test_released_configs_are_our_presets(given, name, decays):
    found, notes = released.model_config(given, decays)
    assert found == preset(name)
    assert notes and all(note.startswith(f"known conflict of {name}: ") for note in notes)
    assert any("64/16" in note for note in notes)


@pytest.mark.parametrize(("linear", "fields", "decays"), [
    (PREFIX, {}, False), (LINEAR, {}, False),
    ({**LINEAR, "use_decay_proj": True}, {"fixed_decay": True, "decay_const": -3}, True),
])
@torch.no_grad()
def test_every_weight_arrives_at_its_place(linear, fields, decays):
    given = small(linear, **fields)
    ours, _ = released.model_config(given, decays)
    model = LanguageModel(ours.model_copy(update={"seed": 5, "init_std": 0.3})).eval()
    tensors = as_released(model)
    if decays:
        tensors[f"model.{released.DECAY}"] = torch.log(1 - 2.0 ** (-3 - torch.arange(16.0)))
    found = released.read(given, tensors)
    assert found.kind == ("released JRT" if linear is PREFIX else "released Based") and not found.notes
    ids, layout = torch.arange(30).reshape(2, 15) * 2, Layout.dense(2, 15).with_prefix(6)
    assert torch.equal(found.model(ids, layout), model(ids, layout))
    assert found.model.config.prefix_tokens == (1024 if linear is PREFIX else None)
    assert (ours.mixers.get("based") is not None and ours.mixers["based"].decay_start == 3) == decays


def test_a_head_of_its_own_is_kept():
    model = LanguageModel(released.model_config(small(PREFIX))[0])
    tensors = as_released(model)
    tensors["model.lm_head.weight"] *= 2
    found = released.read(small(PREFIX), tensors)
    assert not found.model.config.tie and torch.equal(found.model.head_proj.weight, 2 * model.embedding.weight)
    assert any("matrix of its own" in note for note in found.notes)


def test_half_precision_is_widened():
    tensors = {name: tensor.half() for name, tensor in as_released(LanguageModel(released.model_config(small(LINEAR))[0])).items()}
    found = released.read(small(LINEAR), tensors).model
    assert found.embedding.weight.dtype == torch.float32
    assert torch.equal(found.embedding.weight.half(), tensors[f"model.{released.TABLE}"])


def test_one_message_names_all_that_does_not_fit():
    tensors = as_released(LanguageModel(released.model_config(small(PREFIX))[0]))
    del tensors["model.transformer.layers.1.mixer.proj_k_enc.weight"]
    tensors["model.transformer.layers.0.mixer.conv.conv.bias"] = torch.zeros(32)
    tensors["model.transformer.layers.3.mlp.fc2.weight"] = torch.zeros(16, 300)
    with pytest.raises(ConfigError) as refused:
        released.read(small(PREFIX), tensors)
    message = str(refused.value)
    assert "missing: transformer.layers.1.mixer.proj_k_enc.weight" in message
    assert "not known: transformer.layers.0.mixer.conv.conv.bias" in message
    assert "transformer.layers.3.mlp.fc2.weight (16, 300) instead of (16, 256)" in message


@pytest.mark.parametrize(("change", "message"), [
    ({"rms_norm": False}, "rms_norm"), ({"qkv_proj_bias": True}, "qkv_proj_bias"), ({"activation_function": "gelu"}, "gelu"),
    ({"max_position_embeddings": 1024}, "max_position_embeddings"),
    ({"mixer": {"_target_": "based.models.mixers.hyena.Hyena"}}, "Hyena; known are BaseConv"),
    ({"mixer": {**CONV, "use_bias": False}}, "use_bias"),
    ({"alt_mixer": {**PREFIX, "feature_name": "elu"}}, "feature map is 'elu'"),
    ({"alt_mixer": {**LINEAR, "feature_map": {"_target_": "based.models.mixers.linear_attention.FeatureMap"}}}, "FeatureMap"),
    ({"alt_mixer": {**LINEAR, "use_decay_proj": True}, "fixed_decay": True, "decay_denom": True}, "decay_denom"),
    ({"alt_mixer": {**LINEAR, "use_decay_proj": True}, "fixed_decay": True, "decay_const": -0.5}, "decay_const"),
    ({"n_head": 0}, "cannot be built"),
])
def test_other_settings_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        released.model_config(config(**change), decays=True)


@pytest.mark.parametrize("change", [{"n_layer": None}, {"n_inner": "wide"}, {"alt_mixer": 5}, {"alt_mixer_layers": 5}])
def test_a_field_of_another_type_is_named(change):
    given = {name: value for name, value in config(**change).items() if value is not None}
    with pytest.raises(ConfigError, match="absent or of another type"):
        released.read(given, {})


def test_decay_rates_must_be_those_of_the_config():
    given = small({**LINEAR, "use_decay_proj": True}, fixed_decay=True, decay_const=-3)
    tensors = as_released(LanguageModel(released.model_config(given, True)[0]))
    tensors[f"model.{released.DECAY}"] = torch.log(1 - 2.0 ** (-5 - torch.arange(16.0)))
    with pytest.raises(ConfigError, match="decay begins"):
        released.read(given, tensors)


@pytest.mark.parametrize(("given", "decays", "said"), [
    (config(36, 1792, LINEAR, (27, 33), alt_mixer_2={**WINDOW, "window_size": 128}), False,
     "mixers.window.window is 65, in preset based-1.3b 129"),
    (config(36, 1792, LINEAR, (27, 33), fixed_decay=True), False, "no decay_proj"),
    (config(27, 1024, LINEAR), True, "does not ask for decay: read with decay"),
    (config(mixer={**CONV, "kernel_sizes": [3, 5]}), False, "kernel_sizes [3, 5] is read by nobody"),
    (config(residual_in_fp32=False), False, "residual_in_fp32"),
])
def test_what_a_config_leaves_open_is_told(given, decays, said):
    assert any(said in note for note in released.model_config(given, decays)[1])


def test_both_spellings_of_the_window_layers():
    given = config()
    given["alt_2_mixer_layers"] = given.pop("alt_mixer_2_layers")
    assert released.model_config(given)[0] == preset("jrt-360m")


def test_weights_without_a_config_take_a_preset_by_name():
    with pytest.raises(ConfigError, match="no released Based or JRT model; there are jrt-360m"):
        released.read_preset("transformer-360m", {})
    with pytest.raises(ConfigError, match="missing: transformer.embeddings.word_embeddings.weight") as refused:
        released.read_preset("jrt-360m", {})
    assert "more" in str(refused.value)
