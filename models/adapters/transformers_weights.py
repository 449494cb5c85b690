"""Weights in from transformers: Mamba and Mamba-2 checkpoints as models of ours, with the same logits.

Their mixers keep their parameter names here (models/mixers/mamba.py, mamba2.py); the trunk around them is RMSNorm,
mixer, residual in float32, a last RMSNorm and a head that may or may not be tied: ours, without MLPs. Field names are
those of transformers 5.24's MambaConfig and Mamba2Config.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from kernels.errors import ConfigError
from models.adapters.weight_files import Imported, fill, number
from models.config import ModelConfig

KINDS = ("mamba", "mamba2")
TIED = {"mamba": True, "mamba2": False}            # defaults of the two configs, which a file need not repeat


def matches(config: dict[str, Any]) -> bool:
    """Whether config.json is one of these."""
    return config.get("model_type") in KINDS


def read(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Imported:
    """The model. Raises ConfigError for settings that our mixers do not have, and for weights that do not fit."""
    kind = config["model_type"]
    tensors = {name.replace("backbone.embedding.", "backbone.embeddings."): tensor for name, tensor in tensors.items()}
    tied = config.get("tie_word_embeddings", TIED[kind])
    if tied:                                        # an older file may hold the one matrix twice
        tensors.pop("lm_head.weight", None)
    ours = model_config(config)
    notes = () if config.get("residual_in_fp32", True) else (
        "residual_in_fp32 is false: our residual stream is float32 all the same, which differs only below float32",)
    return Imported(fill(ours, tensors, parameter_names(ours)), f"transformers {kind}", notes)


def model_config(config: dict[str, Any]) -> ModelConfig:
    """Our config of theirs. ConfigError for a field without a counterpart."""
    kind = config["model_type"]
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ConfigError(f"hidden_act is {config['hidden_act']!r}; our {kind} has silu alone")
    expand = number(config.get("expand", 2))
    if expand != int(expand):
        raise ConfigError(f"expand is {expand}; our {kind} takes whole numbers")
    mixer = {"kind": kind, "expand": int(expand), "conv_width": config.get("conv_kernel", 4),
             "conv_bias": config.get("use_conv_bias", True), "bias": config.get("use_bias", False),
             "dt_min": config.get("time_step_min", 0.001), "dt_max": config.get("time_step_max", 0.1),
             "dt_floor": config.get("time_step_floor", 1e-4)}
    eps = config.get("layer_norm_epsilon", 1e-5)
    mixer |= _mamba(config) if kind == "mamba" else _mamba2(config, int(expand), eps)
    fields = {
        "width": _needed(config, "hidden_size"), "vocabulary": _needed(config, "vocab_size"), "vocabulary_multiple": 1,
        "plan": [f"{kind}*{_needed(config, 'num_hidden_layers')}"], "mixers": {kind: mixer}, "norm_eps": eps,
        "tie": config.get("tie_word_embeddings", TIED[kind])}
    try:
        return ModelConfig.model_validate(fields)
    except ValueError as error:
        raise ConfigError(f"config.json of {kind} cannot be built: {error}") from error


def _mamba(config: dict[str, Any]) -> dict[str, Any]:
    return {"state_size": config.get("state_size", 16), "dt_rank": config.get("time_step_rank", "auto")}


def _mamba2(config: dict[str, Any], expand: int, eps: float) -> dict[str, Any]:
    heads, head_dim = config.get("num_heads", 128), config.get("head_dim", 64)
    if heads * head_dim != expand * _needed(config, "hidden_size"):
        raise ConfigError(f"num_heads {heads} times head_dim {head_dim} is not expand {expand} times hidden_size "
                          f"{config['hidden_size']}")
    limit = config.get("time_step_limit", (0.0, math.inf))
    if not isinstance(limit, (list, tuple)) or len(limit) != 2:
        raise ConfigError(f"time_step_limit is {limit!r}; expected two numbers, the least and the most")
    least, most = map(number, limit)
    return {"state_size": config.get("state_size", 128), "head_dim": head_dim, "n_groups": config.get("n_groups", 8),
            "dt_limit": (least, None if math.isinf(most) else most), "norm_eps": eps}


def _needed(config: dict[str, Any], field: str) -> Any:
    if field not in config:
        raise ConfigError(f"config.json has no {field}")
    return config[field]


def parameter_names(config: ModelConfig) -> dict[str, str]:
    """Their name -> ours, for a config that `model_config` made."""
    mixer = config.mixers[config.plan[0]]
    inner = ["A_log", "D", "conv1d.weight", "in_proj.weight", "out_proj.weight"]
    inner += ["conv1d.bias"] * mixer.conv_bias + ["in_proj.bias", "out_proj.bias"] * mixer.bias
    inner += (["dt_proj.weight", "dt_proj.bias", "x_proj.weight"] if mixer.kind == "mamba" else
              ["dt_bias", "norm.weight"])
    names = {"backbone.embeddings.weight": "embedding.weight", "backbone.norm_f.weight": "norm.weight"}
    if not config.tie:
        names["lm_head.weight"] = "head_proj.weight"
    for layer in range(config.layers):
        names[f"backbone.layers.{layer}.norm.weight"] = f"blocks.{layer}.norm1.weight"
        names |= {f"backbone.layers.{layer}.mixer.{name}": f"blocks.{layer}.mixer.{name}" for name in inner}
    return names
