"""Named models: `preset(name)` is a config, `describe(name)` says where it comes from and what was published about it.

    card.py     what a preset is
    small.py    the small ones that learn recall on a CPU
    jrt.py      JRT's models and those that it compares with
    lavo.py     LAVO's language models
    modern.py   modern mixers at the sizes of JRT's models
    zoo.py      every causal mixer in one trunk, as it is found: at equal parameters, at equal bytes of state
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from kernels.errors import ConfigError
from models.config import ModelConfig
from models.presets import jrt, lavo, modern, small, zoo
from models.presets.card import FAMILIES, Family, Preset

WRITTEN = {**small.PRESETS, **jrt.PRESETS, **lavo.PRESETS, **modern.PRESETS}


def preset_names(*families: Family) -> list[str]:
    """Names that `preset` takes, family by family. Without families all but the zoo, whose names follow from the mixers."""
    wanted = families or ("small", "published", "modern")
    names = []
    for family in wanted:
        if family not in FAMILIES:
            raise ConfigError(f"no family of presets {family!r}; there are {', '.join(FAMILIES)}")
        found = zoo.presets(family) if family.startswith("zoo") else WRITTEN
        names += [name for name, preset in found.items() if preset.family == family]
    return names


def describe(name: str) -> Preset:
    """What is known about a preset. ConfigError for an unknown name, with those close to it."""
    if name in WRITTEN:
        return WRITTEN[name]
    if name.startswith("zoo-"):
        found = zoo.find(name)
        if found is not None:
            return found
    known = preset_names(*FAMILIES)
    close = get_close_matches(name.lower(), known, n=4, cutoff=0.5)
    raise ConfigError(f"no model preset {name!r}; " + (f"close to it are {', '.join(close)}" if close else
                                                       f"there are {', '.join(preset_names())} and the zoo"))


def preset(name: str, **changes: Any) -> ModelConfig:
    """The config of a named model, with `changes` to its top-level fields (seed=1, vocabulary=512). ConfigError."""
    config = describe(name).build()
    if not changes:
        return config
    return ModelConfig.model_validate(config.model_dump() | changes)
