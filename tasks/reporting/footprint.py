"""What an architecture takes: parameters, and the bytes that a text leaves behind. Counted, not measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LONG = 2048                            # tokens; a length at which fixed and growing states have parted


@dataclass(frozen=True)
class Footprint:
    """Of one model. `state_bytes`: after a text of the evaluation's length, `state_bytes_long`: after LONG tokens,
    both in float32; `grows`: whether the state grows with the text without end; `prefix`: whether it reads a prefix both
    ways; `flops`: of one token forward, at the evaluation's length."""

    parameters: int
    state_bytes: int
    state_bytes_long: int
    grows: bool
    prefix: bool = False
    flops: float = 0.0


def footprint(config: Any, length: int) -> Footprint:
    """Of the model of a config, without memory for its weights."""
    from models.sizing import Sketch

    model = Sketch(config)
    short, long = model.cost(length), model.cost(LONG)
    return Footprint(short.parameters, short.state_bytes, long.state_bytes, model.able.growth != "constant",
                     model.able.prefix, short.flops / length)
