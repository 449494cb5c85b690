"""Weights in: whose checkpoint a folder is, and a model of ours made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from kernels.errors import ConfigError
from models.adapters import released, transformers_weights
from models.adapters.weight_files import CONFIG, Imported, fill, read_config, read_tensors
from models.config import ModelConfig
from models.language_model import LanguageModel

IMPORTABLE = ("a folder that `reread export` wrote; Mamba and Mamba-2 of transformers (model_type mamba, mamba2); the released "
              "Based and JRT checkpoints (a GPT-2 config with mixer, alt_mixer and alt_mixer_2)")


def import_model(folder: str | Path, preset: str | None = None) -> Imported:
    """The model of another's checkpoint folder. preset: weights of a released Based or JRT model without a config.

    Raises ConfigError: a folder of another kind, a setting that we do not have, weights that do not fit.
    """
    folder = Path(folder)
    if preset is not None:
        released.published(preset)                  # refused before anything large is read
        return released.read_preset(preset, read_tensors(folder))
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; expected that of a checkpoint, with {CONFIG} and weights")
    config = read_config(folder)
    for known in (_Exported, transformers_weights, released):
        if known.matches(config):
            return known.read(config, read_tensors(folder))
    raise ConfigError(f"{folder / CONFIG}: {_described(config)} cannot be imported; what can: {IMPORTABLE}")


def _described(config: dict[str, Any]) -> str:
    kind = config.get("model_type")
    if kind:
        return f"a {kind} model of transformers"
    if {"d_model", "n_layer", "ssm_cfg"} & set(config):
        return "the original code's Mamba (take the same model in transformers' format)"
    if "plan" in config and "mixers" in config:
        return "a model folder of reread itself, which needs no import and"
    return "a checkpoint of an unknown kind"


class _Exported:
    """Our own export, back again."""

    @staticmethod
    def matches(config: dict[str, Any]) -> bool:
        return config.get("model_type") == "reread"

    @staticmethod
    def read(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Imported:
        try:
            ours = ModelConfig.model_validate(config.get("reread"))
        except ValueError as error:
            raise ConfigError(f"{CONFIG}: written by reread {config.get('reread_version', 'unknown')}, and its section "
                              f"`reread` does not fit this version: {error}") from error
        return Imported(fill(ours, tensors, {name: name.removeprefix("model.") for name in _names(ours)}), "reread export")


def _names(config: ModelConfig) -> list[str]:
    with torch.device("meta"):
        return [f"model.{name}" for name in LanguageModel(config, initialise=False).state_dict()]
