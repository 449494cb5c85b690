"""Finds the mixers: every file of models/mixers is one kind, with one `Config` and one Mixer subclass (contract 7).

Nothing is listed by hand. A folder added to `models.mixers.__path__` is searched too. A file that cannot be used is
listed as broken, with its reason; only asking for that kind raises.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from types import ModuleType
from typing import Any, get_args

from pydantic import BaseModel

import models.mixers
from kernels.errors import ConfigError
from models.initialise import seeded
from models.mixer import Mixer

PACKAGE = "models.mixers"


@dataclass(frozen=True)
class Entry:
    """One file: its kind, and either its two classes or the reason why it is broken."""

    kind: str
    module: str
    config: type[BaseModel] | None = None
    mixer: type[Mixer] | None = None
    broken: str | None = None


def names() -> list[str]:
    """Kinds in name order, broken ones included; nothing is imported."""
    return sorted(info.name for info in pkgutil.iter_modules(models.mixers.__path__) if info.name[0] != "_")


def entry(kind: str) -> Entry:
    """The file of one kind, imported; a broken one is described, not raised. ConfigError if there is none."""
    known = names()
    if kind not in known:
        raise ConfigError(f"no mixer of kind {kind!r}; there are {', '.join(known) or 'none'}. "
                          f"A kind is a file models/mixers/<kind>.py.")
    module = f"{PACKAGE}.{kind}"
    try:
        config, mixer = _classes(importlib.import_module(module), kind)
    except Exception as error:  # noqa: BLE001  a user's file may fail in any way; the reason is kept and shown
        return Entry(kind, module, broken=f"{type(error).__name__}: {error}")
    return Entry(kind, module, config, mixer)


def entries() -> list[Entry]:
    """Every mixer file, in name order."""
    return [entry(kind) for kind in names()]


def kinds() -> list[str]:
    """Kinds that can be used, in name order."""
    return [found.kind for found in entries() if found.broken is None]


def broken() -> dict[str, str]:
    """Kind to reason, for files that cannot be used."""
    return {found.kind: found.broken for found in entries() if found.broken is not None}


def _usable(kind: str) -> Entry:
    found = entry(kind)
    if found.broken is not None:
        raise ConfigError(f"mixer {kind!r} ({found.module}) cannot be used: {found.broken}")
    return found


def config_class(kind: str) -> type[BaseModel]:
    """The `Config` of a kind. Raises ConfigError."""
    return _usable(kind).config


def mixer_class(kind: str) -> type[Mixer]:
    """The Mixer subclass of a kind. Raises ConfigError."""
    return _usable(kind).mixer


def abilities(config: Any):
    """What a mixer can do under `config`."""
    return mixer_class(config.kind).abilities(config)


def build(config: Any, width: int, layer: int = 0, seed: int | None = None) -> Mixer:
    """The mixer of `config`; with a seed its parameters are drawn, otherwise the owner draws them."""
    mixer = mixer_class(config.kind)(config, width, layer)
    if seed is not None:
        mixer.reset_parameters(seeded(seed, layer))
    return mixer


def _classes(module: ModuleType, kind: str) -> tuple[type[BaseModel], type[Mixer]]:
    config = getattr(module, "Config", None)
    if not (isinstance(config, type) and issubclass(config, BaseModel)):
        raise ConfigError(f"{module.__name__} has no pydantic class `Config`")
    literal = get_args(config.model_fields["kind"].annotation) if "kind" in config.model_fields else ()
    if literal != (kind,):
        raise ConfigError(f"{module.__name__}.Config.kind is {literal}, expected Literal[{kind!r}], the file's name")
    found = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Mixer)
             and value.__module__ == module.__name__]
    if len(found) != 1:
        raise ConfigError(f"{module.__name__} defines {len(found)} Mixer subclasses, expected exactly one")
    return config, found[0]
