"""Loading a causal model of transformers, with one clear message for each thing that can be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from kernels.errors import ConfigError, UnsupportedUse
from models.adapters.weight_files import CONFIG, read_config


def load(source: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The float32 model in a folder or under a hub name, complete: no weight is left as it was drawn.

    Raises ConfigError (no such folder or name, no network, damaged or missing weights) and UnsupportedUse (the
    architecture is unknown or has no causal head, or needs code that was not allowed to run).
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging as bars

    check_place(source)
    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(source, **options)
        if getattr(config, "quantization_config", None) is not None:
            raise UnsupportedUse(f"{source}: the weights are quantised, so padding and caches cannot be checked in "
                                 "float32; give the unquantised model")
        model, info = AutoModelForCausalLM.from_pretrained(source, config=config, dtype=torch.float32,
                                                           ignore_mismatched_sizes=True,        # told below, by name
                                                           output_loading_info=True, **options)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise _translated(source, error) from error
    finally:
        if shown:
            bars.enable_progress_bar()
    missing, wrong = sorted(info["missing_keys"]), sorted(map(str, info.get("mismatched_keys") or ()))
    if missing or wrong:
        raise ConfigError(f"{source}: its weights do not fill a {type(model).__name__}: missing {missing[:3]}, of another "
                          f"shape {wrong[:3]}; those would stay random. Is it a model without a language-model head?")
    return model


def check_place(source: str) -> Path | None:
    """The folder that `source` names, or None where it is a hub name. Raises ConfigError for a folder without a model
    or with a config that is no JSON object."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not (folder / CONFIG).is_file():
            raise ConfigError(f"{folder}: no {CONFIG} there; expected a folder written by save_pretrained")
        read_config(folder)
        return folder
    if folder.exists():
        raise ConfigError(f"{folder} is a file; give the folder that holds config.json and the weights")
    if source.startswith((".", "/", "~")) or source.count("/") > 1 or not source:
        raise ConfigError(f"{source!r}: there is no such folder; give one with config.json and weights, or a hub name "
                          "such as owner/model")
    return None


def _translated(source: str, error: Exception) -> ConfigError | UnsupportedUse:
    text = str(error).strip()
    first = text.splitlines()[0] if text else type(error).__name__
    if "trust_remote_code" in text:
        return UnsupportedUse(f"{source} brings model code of its own, which is not run here; "
                              "HuggingFaceModel.load(..., trust_remote_code=True) runs it")
    if "kind of AutoModel" in text:
        kind = text.partition("configuration class <class '")[2].partition("'")[0].rpartition(".")[2]
        return UnsupportedUse(f"{source} is a {kind.removesuffix('Config') or 'model'} without a causal language-model "
                              "head; give a decoder such as GPT-2, Llama or Mamba")
    if "model_type" in text or "does not recognize this architecture" in text:
        return UnsupportedUse(f"{source}: transformers does not know its architecture ({first}); a newer transformers "
                              "may, and a checkpoint of reread is given by its id")
    if any(words in text for words in ("connect", "offline mode", "Name or service", "couldn't find them in the cache")):
        return ConfigError(f"{source}: not in the local cache, and the hub cannot be reached; download it first "
                           "(huggingface-cli download) or give a folder")
    return ConfigError(f"{source}: cannot be loaded ({first}); expected a folder or hub name with config.json and weights")
