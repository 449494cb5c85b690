"""Named models: `preset(name)` is a config, `describe(name)` says where it comes from and what was published about it.

    card.py    what a preset is
    small.py   the small ones that learn recall on a CPU
    jrt.py     JRT's models and those that it compares with
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from kernels.errors import ConfigError
from models.config import ModelConfig
from models.presets import jrt, small
from models.presets.card import Preset

WRITTEN = {**small.PRESETS, **jrt.PRESETS}


def preset_names() -> list[str]:
    """Names that `preset` takes, small ones first."""
    return list(WRITTEN)


def describe(name: str) -> Preset:
    """What is known about a preset. ConfigError for an unknown name, with those close to it."""
    if name in WRITTEN:
        return WRITTEN[name]
    known = preset_names()
    close = get_close_matches(name, known, n=4, cutoff=0.5)
    raise ConfigError(f"no model preset {name!r}; {'close to it' if close else 'there'} are {', '.join(close or known)}")


def preset(name: str, **changes: Any) -> ModelConfig:
    """The config of a named model, with `changes` to its top-level fields (seed=1, vocabulary=512). ConfigError."""
    config = describe(name).build()
    if not changes:
        return config
    return ModelConfig.model_validate(config.model_dump() | changes)
