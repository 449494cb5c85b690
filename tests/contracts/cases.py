"""What the contract suite runs on: every registered mixer kind times its own `Config.cases()`, built narrow.

There is no list to maintain: a new file in models/mixers is picked up by discovery. Weights are redrawn so that a
fault shows: N(0, 1/fan_in), every bias non-zero (a zeroed pad then still acts), parameters in `keep_init` kept.
"""

import copy
import functools
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from models import registry

WIDTH = 16


@dataclass(frozen=True)
class Case:
    """One mode of one mixer. `abilities` is what the mixer declares for this config."""

    kind: str
    name: str
    config: Any
    abilities: Any

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.name}"

    @property
    def window(self) -> int:
        return _size(self.config, "window")

    @property
    def chunk(self) -> int:
        return _size(self.config, "chunk")

    @property
    def prefixes(self) -> list[int]:
        """Values of M worth trying; 99 is longer than every short row, so m = n."""
        return [0, 3, 99] if self.abilities.prefix else [0]


def _size(config: Any, field: str) -> int:
    value = getattr(config, field, None)
    return value if isinstance(value, int) and 0 < value <= 16 else 4


@functools.lru_cache(1)
def all_cases() -> tuple[Case, ...]:
    found = []
    for kind in registry.kinds():
        mixer, config_class = registry.mixer_class(kind), registry.config_class(kind)
        for name, config in config_class.cases().items():
            found.append(Case(kind, name, config, mixer.abilities(config)))
    return tuple(found)


def select(**wanted: Any) -> Any:
    """Parametrise a test over the cases whose abilities have these values."""
    chosen = [case for case in all_cases() if all(getattr(case.abilities, key) == value for key, value in wanted.items())]
    return pytest.mark.parametrize("case", chosen, ids=[case.id for case in chosen])


whatever = select()                    # for tests that build a mixer and call nothing
every = select(cross=False)            # one sequence, mixed with itself: forward works
crossing = select(cross=True)
both_ways = select(non_causal=True)
streaming = select(streaming=True)
prefix_readers = select(prefix=True, streaming=True)


def redraw(module: torch.nn.Module, keep: frozenset[str], seed: int) -> None:
    """Replace the weights by draws that leave nothing at zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in keep:
                continue
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.dim() > 1:
                value = noise / parameter[0].numel() ** 0.5
            elif name.endswith("bias"):
                value = noise * 0.3 + 0.2 * noise.sign()
            else:
                value = 1 + 0.2 * noise
            parameter.copy_(value)


@functools.lru_cache(512)
def _built(kind: str, name: str, seed: int) -> torch.nn.Module:
    case = next(case for case in all_cases() if (case.kind, case.name) == (kind, name))
    mixer = registry.mixer_class(kind)(case.config, WIDTH, 0)
    mixer.reset_parameters(torch.Generator().manual_seed(seed))
    mixer = mixer.double().eval()
    redraw(mixer, frozenset(mixer.keep_init), seed + 1)
    return mixer


def build(case: Case, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.nn.Module:
    """A fresh copy of the case's mixer; the same seed gives the same weights in every dtype."""
    return copy.deepcopy(_built(case.kind, case.name, seed)).to(dtype)
