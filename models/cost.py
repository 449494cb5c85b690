"""What a mixer or a model can do and what it costs (contract 4, 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Abilities:
    """What a mixer can do (contract 4). `reach`: tokens back that one layer sees, None = all; both ways if non-causal.

    `iterative`: it inverts a matrix by iteration, so that its results agree with themselves to 1e-3 in float32.
    """

    causal: bool = True
    non_causal: bool = False
    cross: bool = False
    prefix: bool = False
    streaming: bool = True
    native_packing: bool = False
    growth: Literal["constant", "log", "linear"] = "constant"
    reach: int | None = None
    max_length: int | None = None
    randomness: Literal["none", "features", "per_call"] = "none"
    iterative: bool = False


@dataclass(frozen=True)
class Cost:
    """For one row of `length` tokens: parameters, FLOPs of the whole forward, of the next token, bytes of the state.

    A multiply-add counts 2; exponentials, norms, gates and sums 0 (contract 7). Training is 3 times the forward.
    """

    parameters: int
    flops: int
    step_flops: int
    state_bytes: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.parameters + other.parameters, self.flops + other.flops,
                    self.step_flops + other.step_flops, self.state_bytes + other.state_bytes)


GROWTHS = ("constant", "log", "linear")
RANDOMNESS = ("none", "features", "per_call")


def conjunction(layers: Sequence[Abilities], max_length: int | None) -> Abilities:
    """Of a stack of layers: what all can do; prefix if any reads one; reach the sum, None if any sees all.

    max_length: the model's own limit (a table of positions), or None.
    """
    reach = [able.reach for able in layers]
    limits = [limit for limit in (max_length, *(able.max_length for able in layers)) if limit is not None]
    return Abilities(
        causal=all(able.causal for able in layers), non_causal=False, cross=False,
        prefix=any(able.prefix for able in layers), streaming=all(able.streaming for able in layers),
        native_packing=all(able.native_packing for able in layers),
        growth=max((able.growth for able in layers), key=GROWTHS.index),
        reach=None if None in reach else sum(reach), max_length=min(limits, default=None),
        randomness=max((able.randomness for able in layers), key=RANDOMNESS.index))
