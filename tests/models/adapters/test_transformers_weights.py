"""Mamba and Mamba-2 of transformers: built from small configs, given other weights than those at first, same logits."""

import json
import math

import pytest
import torch
from transformers import AutoModelForCausalLM, Mamba2Config, MambaConfig

from kernels.errors import ConfigError
from kernels.layout import Layout
from models.adapters import transformers_weights
from models.adapters.weights_in import import_model

SMALL = {"vocab_size": 61, "num_hidden_layers": 2}
CASES = {
    "mamba": MambaConfig(hidden_size=32, state_size=5, **SMALL),
    "mamba_untied": MambaConfig(hidden_size=16, tie_word_embeddings=False, layer_norm_epsilon=1e-2, use_bias=True,
                                time_step_rank=3, conv_kernel=3, use_conv_bias=False, expand=3, **SMALL),
    "mamba2": Mamba2Config(hidden_size=32, num_heads=8, head_dim=8, state_size=6, n_groups=2, layer_norm_epsilon=1e-2,
                           use_bias=True, **SMALL),
    "mamba2_tied": Mamba2Config(hidden_size=32, num_heads=4, head_dim=16, state_size=6, n_groups=1, use_conv_bias=False,
                                time_step_limit=(0.01, 0.05), tie_word_embeddings=True, **SMALL),
}


def theirs(name: str, dtype: torch.dtype = torch.float32):
    """A model of transformers whose every parameter is off its first value."""
    model = AutoModelForCausalLM.from_config(CASES[name], dtype=dtype).eval()
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw).to(dtype))
    return model


@pytest.fixture
def saved(tmp_path):
    def save(name: str, dtype: torch.dtype = torch.float32):
        model = theirs(name, dtype)
        model.save_pretrained(tmp_path / name)
        return model, tmp_path / name

    return save


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_the_same_logits_from_a_saved_folder(name, saved):
    model, folder = saved(name)
    found = import_model(folder)
    assert found.kind == f"transformers {CASES[name].model_type}" and not found.notes
    ids = torch.randint(0, 61, (2, 70), generator=torch.Generator().manual_seed(1))
    wanted = model(ids).logits
    assert wanted.abs().max() > 0.5
    torch.testing.assert_close(found.model(ids, Layout.dense(2, 70)), wanted, rtol=0, atol=5e-6)
    logits_BE, state = found.model.prefill(ids[:, :40], Layout.dense(2, 40))
    torch.testing.assert_close(logits_BE, wanted[:, 39], rtol=0, atol=5e-6)
    for slot in range(40, 44):
        logits_BE, state = found.model.step(ids[:, slot], state)
        torch.testing.assert_close(logits_BE, wanted[:, slot], rtol=0, atol=5e-6)
    assert found.model.config.tie == CASES[name].tie_word_embeddings
    assert found.model.config.table_rows == 61


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
@torch.no_grad()
def test_bfloat16_stays_so(name, saved):
    model, folder = saved(name, torch.bfloat16)
    found = import_model(folder).model
    assert {parameter.dtype for parameter in found.parameters()} == {torch.bfloat16}
    ids = torch.arange(60)[None]
    wanted, ours = model(ids).logits.float(), found(ids, Layout.dense(1, 60)).float()
    assert (ours - wanted).norm() < 3e-2 * wanted.norm()


def test_the_older_names_are_read():
    """Files of the first transformers releases say `embedding`, and hold a tied head twice."""
    model = theirs("mamba")
    tensors = {name.replace("embeddings", "embedding"): tensor for name, tensor in model.state_dict().items()}
    assert "lm_head.weight" in tensors and "backbone.embedding.weight" in tensors
    found = transformers_weights.read(json.loads(CASES["mamba"].to_json_string()), tensors).model
    assert torch.equal(found.embedding.weight, model.backbone.embeddings.weight)


@pytest.mark.parametrize(("change", "message"), [
    ({"hidden_act": "gelu"}, "gelu"), ({"expand": 1.5}, "whole numbers"), ({"num_heads": 3}, "num_heads 3 times head_dim"),
    ({"time_step_limit": ["no", 1]}, "'no' where a number"), ({"hidden_size": None}, "hidden_size"),
    ({"time_step_limit": [0]}, "expected two numbers"), ({"time_step_limit": 5}, "expected two numbers"),
    ({"num_hidden_layers": 0}, "mamba2 cannot be built"), ({"state_size": "many"}, "mamba2 cannot be built"),
])
def test_settings_without_a_counterpart(change, message):
    config = json.loads(CASES["mamba2"].to_json_string()) | change
    config = {name: value for name, value in config.items() if value is not None or name not in change}
    with pytest.raises(ConfigError, match=message):
        transformers_weights.model_config(config)


@pytest.mark.parametrize("config", [MambaConfig(), Mamba2Config()], ids=["mamba", "mamba2"])
def test_what_a_file_leaves_out_is_as_in_transformers(config):
    whole = json.loads(config.to_json_string(use_diff=False))
    least = {name: whole[name] for name in ("model_type", "hidden_size", "vocab_size", "num_hidden_layers")}
    assert "tie_word_embeddings" in whole and transformers_weights.model_config(least) == transformers_weights.model_config(
        whole | {"time_step_rank": "auto"})


@pytest.mark.parametrize("most", [math.inf, "Infinity", {"__float__": "Infinity"}])
def test_infinity_in_any_spelling(most):
    config = json.loads(CASES["mamba2"].to_json_string()) | {"time_step_limit": [0.0, most]}
    assert transformers_weights.model_config(config).mixers["mamba2"].dt_limit == (0.0, None)


def test_what_differs_below_float32_is_told():
    config = json.loads(CASES["mamba"].to_json_string()) | {"residual_in_fp32": False}
    assert "float32" in transformers_weights.read(config, theirs("mamba").state_dict()).notes[0]


def test_weights_that_do_not_fit():
    tensors = theirs("mamba2").state_dict()
    del tensors["backbone.layers.1.mixer.dt_bias"]
    tensors["backbone.layers.0.mixer.x_proj.weight"] = torch.zeros(2, 2)
    tensors["backbone.layers.0.mixer.D"] = torch.zeros(9)
    with pytest.raises(ConfigError) as refused:
        transformers_weights.read(json.loads(CASES["mamba2"].to_json_string()), tensors)
    message = str(refused.value)
    assert "missing: backbone.layers.1.mixer.dt_bias" in message and "not known: backbone.layers.0.mixer.x_proj.weight" in message
    assert "backbone.layers.0.mixer.D (9,) instead of (8,)" in message
