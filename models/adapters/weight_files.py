"""Other people's checkpoint folders: config.json, weights in any of the usual files, and filling a model of ours.

Nothing here knows an architecture: who does (transformers_weights.py, released.py) gives a ModelConfig and a map from
their parameter names to ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from kernels.errors import ConfigError
from models.config import ModelConfig
from models.language_model import LanguageModel

CONFIG = "config.json"
WHOLE = ("model.safetensors", "pytorch_model.bin")
SHOWN = 6          # parameter names in one message


@dataclass(frozen=True)
class Imported:
    """A model made of another's checkpoint, what that was, and what its reader should know."""

    model: LanguageModel
    kind: str
    notes: tuple[str, ...] = ()


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a folder. ConfigError names the file."""
    path = folder / CONFIG
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); expected the folder of a checkpoint") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is no JSON ({error})") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: holds a {type(found).__name__}, expected an object")
    return found


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a folder: safetensors before pickles, whole before sharded. ConfigError names the file."""
    for name in WHOLE:
        if (folder / name).is_file():
            return _read(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            try:
                shards = sorted({Path(name).name for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise ConfigError(f"{index}: names no shards ({error}); expected {{\"weight_map\": {{tensor: file}}}}") from error
            return {key: tensor for shard in shards for key, tensor in _read(folder / shard).items()}
    raise ConfigError(f"{folder}: holds no weights; expected {' or '.join(WHOLE)}, whole or in shards")


def _read(path: Path) -> dict[str, torch.Tensor]:
    """One file. Pickles are read without running code from them; a training checkpoint gives its `state_dict`."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = _unpickled(path)
    except (OSError, SafetensorError, RuntimeError, EOFError, ValueError) as error:
        reason = (str(error).splitlines() or [repr(error)])[0]
        raise ConfigError(f"{path}: cannot be read as weights ({reason})") from error
    found = found.get("state_dict", found) if isinstance(found, dict) else found
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: holds a {type(found).__name__}, expected tensors by name")
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, torch.Tensor)}


def _unpickled(path: Path) -> Any:
    """The tensors of a pickle. ValueError for one that holds anything else, or is none: torch's own answer to some of
    these is to read them without that protection."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("no pickle of tensors alone; anything else in one is code, which is not run") from error


def fill(config: ModelConfig, tensors: dict[str, torch.Tensor], names: dict[str, str]) -> LanguageModel:
    """A model of `config` with these weights. names: their name -> ours, one for every parameter of ours.

    Axes of size 1 may differ (their convolutions keep one for groups). Half precision becomes float32, as do mixed
    dtypes, in which nothing is lost. Raises one ConfigError for missing, unknown and ill-shaped tensors together.
    """
    model = LanguageModel(config, initialise=False)
    expected = model.state_dict()
    unmapped = expected.keys() - set(names.values())
    if unmapped or len(set(names.values())) != len(names):
        raise ConfigError(f"no source is known for {listed(unmapped)} of this architecture")
    faults = []
    if missing := names.keys() - tensors.keys():
        faults.append(f"missing: {listed(missing)}")
    if extra := tensors.keys() - names.keys():
        faults.append(f"not known: {listed(extra)}")
    wrong = [f"{theirs} {tuple(tensors[theirs].shape)} instead of {tuple(expected[ours].shape)}"
             for theirs, ours in names.items()
             if theirs in tensors and tensors[theirs].squeeze().shape != expected[ours].squeeze().shape]
    if wrong:
        faults.append(f"of another shape: {listed(wrong)}")
    if faults:
        raise ConfigError(f"the weights do not fit the architecture that the config describes; {'; '.join(faults)}")
    dtype = _common([tensors[theirs].dtype for theirs in names])
    model.load_state_dict({ours: tensors[theirs].to(dtype).view(expected[ours].shape).clone()
                           for theirs, ours in names.items()}, assign=True)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model.eval()


def _common(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """The dtype that holds them all exactly; float16 alone becomes float32, which our sums are written for."""
    found = torch.float32 if torch.float16 in (dtypes := set(dtypes)) else next(iter(dtypes))
    for dtype in dtypes:
        found = torch.promote_types(found, dtype)
    return found


def listed(names: Iterable[str]) -> str:
    """The first few, in order, and how many more."""
    names = sorted(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def number(value: Any) -> float:
    """A number of a config, where infinity may be written in words. ConfigError for anything else."""
    if isinstance(value, dict):
        value = value.get("__float__")
    try:
        return math.inf if value == "Infinity" else float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{CONFIG}: got {value!r} where a number belongs") from error
