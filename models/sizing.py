"""How large a model is, and which size hits a target: counted on the meta device, without memory for its weights.

Letters: L tokens. One block of each name of the plan is built and its layers share it, so that 46 equal layers cost one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Literal

import torch
from torch import nn

from kernels.errors import ConfigError, RereadError
from models.config import ModelConfig
from models.cost import Abilities, Cost, conjunction
from models.language_model import LanguageModel
from models.layers import Block

TOLERANCE = 0.02                    # share of the target that a matched size may be off
START, LARGEST = 128, 1 << 16       # first size and largest size that `match` tries
SIDES, FAR = 3, 300                 # admissible sizes compared on either side of the best; how far off they may lie

Figure = Literal["parameters", "state_bytes"]


@dataclass(frozen=True)
class Part:
    """One layer: parameters of its mixer, of its MLP and of its norms."""

    name: str
    kind: str
    mixer: int
    mlp: int
    norms: int

    @property
    def parameters(self) -> int:
        """Of the whole block."""
        return self.mixer + self.mlp + self.norms


class Sketch:
    """The sizes and abilities of a config's model; equal to those of the built model, in a fraction of the time."""

    def __init__(self, config: ModelConfig):
        names = tuple(dict.fromkeys(config.plan))
        with torch.device("meta"):
            self._model = LanguageModel(config.model_copy(update={"plan": names}), initialise=False)
        self.config, self._block = config, dict(zip(names, self._model.blocks))
        self._outside = _count(self._model) - sum(map(_count, self._block.values()))
        self._model.config, self._model.blocks = config, nn.ModuleList(self._block[name] for name in config.plan)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Layer by layer."""
        of = {name: Part(name, block.mixer.config.kind, *_shares(block)) for name, block in self._block.items()}
        return tuple(of[name] for name in self.config.plan)

    @property
    def outside(self) -> int:
        """Parameters of embedding, positions, last norm and an untied head."""
        return self._outside

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        return self._outside + sum(part.parameters for part in self.parts)

    @property
    def able(self) -> Abilities:
        """What the model can do."""
        return conjunction([block.mixer.able for block in self._model.blocks], self._model.able.max_length)

    def cost(self, length: int) -> Cost:
        """One row of `length` tokens through the model, float32."""
        return replace(self._model.cost(length), parameters=self.parameters)

    def layer_costs(self, length: int) -> tuple[Cost, ...]:
        """The mixer's cost, layer by layer."""
        of = {name: block.mixer.cost(length) for name, block in self._block.items()}
        return tuple(of[name] for name in self.config.plan)


@dataclass(frozen=True)
class Match:
    """The size chosen, its config, and the figure that came out."""

    size: int
    config: ModelConfig
    figure: int


def match(build: Callable[[int], ModelConfig], target: int, of: Figure = "parameters", length: int = 2048,
          step: int = 1, tolerance: float | None = TOLERANCE) -> Match:
    """The multiple of `step` whose model comes closest to `target`: parameters, or bytes of state at `length` tokens.

    `build` maps a size (most often the width) to a config; sizes that it or the model refuses are passed over. The
    figure should grow with the size, small dips aside. ConfigError when nothing lies within `tolerance` of the target
    (None: take the closest, however far).
    """
    if target < 1:
        raise ConfigError(f"{of}: got a target of {target:,}, expected at least 1")
    candidates = _Candidates(build, of, length, step)
    best, guesses = None, set()
    guess = max(1, START // step)
    while guess not in guesses and (one := candidates.nearest(guess)) is not None:
        guesses.add(guess)
        best = min((one, best or one), key=lambda found: abs(found.figure - target))
        guess = candidates.next_guess(one, target)
    if best is None:
        raise ConfigError(f"no size fits, the first was refused because {candidates.refusal}")
    while True:
        around = [best, *candidates.neighbours(best.size)]
        around.sort(key=lambda found: abs(found.figure - target))
        if around[0] is best:
            break
        best = around[0]
    if tolerance is not None and abs(best.figure - target) > tolerance * target:
        closest = " and ".join(f"size {one.size} gives {one.figure:,}" for one in around[:2])
        raise ConfigError(f"{of}: no size comes within {tolerance:.0%} of {target:,}: {closest}; "
                          "change the target or a setting")
    return best


class _Candidates:
    """Sizes tried so far, each counted once."""

    def __init__(self, build: Callable[[int], ModelConfig], of: Figure, length: int, step: int):
        self.build, self.of, self.length, self.step = build, of, length, step
        self.tried: dict[int, Match | None] = {}
        self.refusal: Exception | None = None
        self.last: Match | None = None

    def get(self, number: int) -> Match | None:
        """The model of size number * step; None if it was refused or is beyond the largest."""
        size = number * self.step
        if size > LARGEST:
            return None
        if number not in self.tried:
            try:
                sketch = Sketch(config := self.build(size))
                figure = sketch.parameters if self.of == "parameters" else sketch.cost(self.length).state_bytes
                self.tried[number] = Match(size, config, figure)
            except (RereadError, ValueError) as refusal:          # pydantic's ValidationError is a ValueError
                self.tried[number], self.refusal = None, self.refusal or refusal
        return self.tried[number]

    def nearest(self, guess: int) -> Match | None:
        """The admissible size closest to `guess`, the smaller of two."""
        for away in range(FAR):
            for number in (guess - away, guess + away):
                if number >= 1 and (found := self.get(number)) is not None:
                    return found
        return None

    def neighbours(self, size: int) -> list[Match]:
        """The admissible sizes next to this one, SIDES below and SIDES above."""
        found = []
        for direction in (-1, 1):
            side = (self.get(size // self.step + direction * away) for away in range(1, FAR)
                    if size // self.step + direction * away >= 1)
            found += list(islice((one for one in side if one is not None), SIDES))
        return found

    def next_guess(self, one: Match, target: int) -> int:
        """Where a power law through the last two sizes meets the target."""
        power, last = 1.5, self.last
        if last is not None and last.size != one.size and last.figure != one.figure:
            power = math.log(one.figure / last.figure) / math.log(one.size / last.size)
        self.last = one
        size = one.size * (target / one.figure) ** (1 / min(max(power, 0.5), 3.0))
        return min(max(1, round(size / self.step)), LARGEST // self.step)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _shares(block: Block) -> tuple[int, int, int]:
    """Parameters of a block's mixer, MLP and norms."""
    mixer, mlp = _count(block.mixer), 0 if block.mlp is None else _count(block.mlp)
    return mixer, mlp, _count(block) - mixer - mlp
