"""The zoo: every causal mixer in one trunk, sized by the solver. Kinds are found, none is listed.

The trunk is convolution, mixer, convolution, mixer, without MLPs. `zoo-KIND` has as many parameters as based-tiny,
`zoo-state-256-KIND` and `zoo-state-2048-KIND` as many bytes of state after so many tokens as attention of width 32 has. A
new file models/mixers/KIND.py is in it at once: fields that many kinds share get the small values of `FIELDS`, others keep
their defaults, and what one kind needs beyond that stands in `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from pydantic import BaseModel

from kernels.errors import ConfigError, UnsupportedUse
from models import registry
from models.config import ModelConfig
from models.mixers import base_conv
from models.presets.card import Family, Preset, catalogue
from models.sizing import TOLERANCE, match

VOCABULARY = 1024
PARAMETERS = 378_880                                # of based-tiny
STATE_BYTES = {256: 131_072, 2048: 1_048_576}       # by tokens: k and v of two layers, 32 numbers each, 4 bytes a number
HEAD_DIM, SPREADS = 32, (1.5, 2.0)      # heads of 21 to 48; where no width with such heads will do, of 16 to 64


def heads(width: int, spread: float) -> int:
    """The divisor of the width whose heads come closest to HEAD_DIM, as a ratio. ConfigError if that exceeds `spread`."""
    ratio, number = min((max(width / n / HEAD_DIM, HEAD_DIM * n / width), n) for n in range(1, width + 1) if width % n == 0)
    if ratio > spread:
        raise ConfigError(f"width {width} has no heads of {HEAD_DIM / spread:.0f} to {HEAD_DIM * spread:.0f}")
    return number


# small values of fields that many kinds have; a function is of the width and the spread
FIELDS: dict[str, Any] = {"heads": heads, "window": 16, "chunk": 8, "slots": 16, "features": 32, "state_size": 16,
                          "expand_k": 1.0, "expand_v": 1.0}
# the first of these that a kind has grows, for a given size of the state, and the others are set beside it
STATE_FIELDS: dict[str, dict[str, Any]] = {"slots": {}, "features": {}, "state_size": {}, "feature_dim": {}, "window": {},
                                           "expand_v": {"heads": 1}}


@dataclass(frozen=True)
class Kind:
    """What one kind needs beyond FIELDS. A setting may be a function of the width and the spread.

    grows: the field that the solver enlarges for a given size of the state, instead of the first of STATE_FIELDS; plan: of
    zoo-KIND.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    grows: str | None = None
    plan: tuple[str, ...] | None = None


KINDS: dict[str, Kind] = {
    "attention": Kind(plan=("attention",) * 4),
    "base_conv": Kind(grows="kernel"),
    "based": Kind({"feature_dim": 8}),
    "prefix": Kind({"feature_dim": 8}),
    "lavo": Kind(grows="window"),                   # slots are at most the width of a head
    "mamba2": Kind({"head_dim": lambda width, spread: 2 * width // heads(2 * width, spread)}),
}


def kinds() -> list[str]:
    """Kinds that a language model can use and stream, in name order."""
    return [entry.kind for entry in registry.entries() if entry.broken is None and _usable(entry.config)]


def _usable(config_class: type[BaseModel]) -> bool:
    try:
        return _causal(config_class) is not None
    except Exception:  # noqa: BLE001  a user's file may fail in any way; `reread models mixers` says how
        return False


@lru_cache(maxsize=256)
def _causal(config_class: type[BaseModel]) -> BaseModel | None:
    """The default settings if they are causal, else the first case that is."""
    for config in (*_default(config_class), *config_class.cases().values()):
        able = registry.abilities(config)
        if able.causal and able.streaming:
            return config
    return None


def _default(config_class: type[BaseModel]) -> tuple[BaseModel, ...]:
    try:
        return (config_class(),)
    except ValueError:                              # a field without a default, or defaults that do not fit together
        return ()


def form(kind: str, width: int, spread: float, plan: tuple[str, ...] | None = None, **settings: Any) -> ModelConfig:
    """The trunk of one width with the kind's small settings, changed by `settings`. ConfigError if its heads do not fit."""
    config_class = registry.config_class(kind)
    base = _causal(config_class)
    if base is None:
        raise UnsupportedUse(f"{kind} cannot be causal and stream: it has no place in a language model of the zoo")
    small = {name: value for name, value in FIELDS.items() if name in config_class.model_fields}
    small |= _kind(kind).settings | settings
    small = {name: value(width, spread) if callable(value) else value for name, value in small.items()}
    mixers = {kind: config_class.model_validate(base.model_dump() | small)}
    plan = plan or ("conv", kind, "conv", kind)
    if "conv" in plan:
        mixers["conv"] = base_conv.Config()
    return ModelConfig(width=width, vocabulary=VOCABULARY, plan=plan, init_std=0.1, mixers=mixers)


def _kind(kind: str) -> Kind:
    return KINDS.get(kind, Kind())


def by_parameters(kind: str, plan: tuple[str, ...] | None = None) -> ModelConfig:
    """The width that comes closest to PARAMETERS. ConfigError when none is within 2 %."""
    return _by_parameters(kind, plan, registry.config_class(kind))


@lru_cache(maxsize=256)
def _by_parameters(kind: str, plan: tuple[str, ...] | None, config_class: type[BaseModel]) -> ModelConfig:
    return _first(lambda spread: match(lambda width: form(kind, width, spread, plan), PARAMETERS).config)


def by_state(kind: str, length: int) -> ModelConfig:
    """STATE_BYTES after `length` tokens, at the width of zoo-KIND if one of the kind's settings can be enlarged for it."""
    return _by_state(kind, length, registry.config_class(kind))


@lru_cache(maxsize=256)
def _by_state(kind: str, length: int, config_class: type[BaseModel]) -> ModelConfig:
    target = STATE_BYTES[length]
    grows = _kind(kind).grows or next((name for name in STATE_FIELDS if name in config_class.model_fields), None)
    settings = STATE_FIELDS.get(grows, {})
    if grows is not None:
        width = by_parameters(kind).width
        found = match(lambda size: form(kind, width, SPREADS[-1], **settings, **{grows: size}), target, "state_bytes", length,
                      tolerance=None)
        if abs(found.figure - target) <= TOLERANCE * target:
            return found.config
        settings = settings | {grows: found.size}
    return _first(lambda spread: match(lambda width: form(kind, width, spread, **settings), target, "state_bytes", length).config)


def _first(solve: Callable[[float], ModelConfig]) -> ModelConfig:
    """With the narrowest spread of heads that has a solution."""
    for spread in SPREADS[:-1]:
        with suppress(ConfigError):
            return solve(spread)
    return solve(SPREADS[-1])


def presets(family: Family) -> dict[str, Preset]:
    """Presets of the family `zoo` or `zoo-state`, by name; nothing is solved before a config is asked for."""
    return catalogue(*(preset for kind in kinds() for preset in _of(kind) if preset.family == family))


def find(name: str) -> Preset | None:
    """The zoo's preset of that name; of the mixers, only the one whose kind it ends with is imported."""
    for kind in registry.names():
        if name.endswith(f"-{kind}"):
            entry = registry.entry(kind)
            if entry.broken is None and _usable(entry.config):
                return next((preset for preset in _of(kind) if preset.name == name), None)
    return None


def _of(kind: str) -> list[Preset]:
    def made(name: str, family: Family, about: str, build: Callable[[], ModelConfig]) -> Preset:
        return Preset(name, family, about, "sized by models/sizing.py in the trunk of models/presets/zoo.py", build)

    plan = _kind(kind).plan
    found = [made(f"zoo-{kind}", "zoo", f"{kind} with the parameters of based-tiny", partial(by_parameters, kind, plan))]
    if plan is not None:
        found.append(made(f"zoo-conv-{kind}", "zoo", f"{kind} in the trunk of the other kinds", partial(by_parameters, kind)))
    found += [made(f"zoo-state-{length}-{kind}", "zoo-state", f"{kind} with {size:,} bytes of state after {length:,} tokens",
                   partial(by_state, kind, length)) for length, size in STATE_BYTES.items()]
    return found
