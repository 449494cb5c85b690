"""Preset: a named config with what was published about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from models.config import ModelConfig

Family = Literal["small", "published", "modern", "zoo", "zoo-state"]
FAMILIES: tuple[Family, ...] = get_args(Family)


@dataclass(frozen=True)
class Preset:
    """`build` makes the config, when asked; the rest is for people.

    source: where its numbers come from. published: the parameter figure as printed, with its place. counted: the exact
    count of the released configuration, where one is known. conflicts: where paper, release and arithmetic disagree.
    """

    name: str
    family: Family
    about: str
    source: str
    build: Callable[[], ModelConfig]
    published: str | None = None
    counted: int | None = None
    conflicts: tuple[str, ...] = ()


def catalogue(*presets: Preset) -> dict[str, Preset]:
    """By name. The order is kept."""
    return {preset.name: preset for preset in presets}
