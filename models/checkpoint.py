"""A model on disk: config.json and model.safetensors in one folder, each written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from kernels.errors import ConfigError
from models.config import ModelConfig
from models.language_model import LanguageModel

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save_model(model: LanguageModel, folder: str | Path) -> None:
    """Write config and weights (on the CPU, in their dtype) into `folder`, made if need be."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / (WEIGHTS + ".partial"))
    os.replace(folder / (WEIGHTS + ".partial"), folder / WEIGHTS)
    (folder / (CONFIG + ".partial")).write_text(model.config.model_dump_json(indent=2) + "\n")
    os.replace(folder / (CONFIG + ".partial"), folder / CONFIG)


def load_config(folder: str | Path) -> ModelConfig:
    """The config in `folder`. Raises ConfigError naming the file and what is wrong with it."""
    path = Path(folder) / CONFIG
    try:
        return ModelConfig.model_validate_json(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); "
                          "expected a folder written by save_model") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: not a model config of this version: {error}") from error


def load_model(folder: str | Path, dtype: torch.dtype | None = None, device: str | torch.device = "cpu",
               ) -> LanguageModel:
    """The model in `folder`; its logits are bit for bit those of the model saved, if dtype is left alone.

    Raises ConfigError naming the file for missing, damaged or foreign files.
    """
    model = LanguageModel(load_config(folder), initialise=False)
    path = Path(folder) / WEIGHTS
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); expected weights written by save_model") from error
    expected = model.state_dict()
    missing, extra = expected.keys() - tensors.keys(), tensors.keys() - expected.keys()
    wrong = [f"{name} {tuple(tensors[name].shape)} instead of {tuple(expected[name].shape)}"
             for name in expected.keys() & tensors.keys() if tensors[name].shape != expected[name].shape]
    if missing or extra or wrong:
        raise ConfigError(f"{path} does not fit its config: missing {sorted(missing)[:3]}, unknown "
                          f"{sorted(extra)[:3]}, wrong shape {wrong[:3]}; was a mixer file changed since?")
    model.load_state_dict(tensors, assign=True)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model.to(device=device, dtype=dtype)
