"""Sizes by GPU, fixed before the first launch: found by compiling (README.md), not yet by timing."""

from __future__ import annotations

from dataclasses import dataclass

SEGMENT = 512  # tokens between boundary sums: twice as many halve their bytes and double the quadratic part


@dataclass(frozen=True)
class Launch:
    """C: tokens a block."""

    C: int = 64
    num_warps: int = 4
    num_stages: int = 2


def config(capability: int | str, wide: bool, single: bool) -> dict[str, Launch]:
    """Kernel name -> launch, for capability 80, 90, 100 or "gfx942".

    Args:
        wide: more than 64 values a head. single: float32 operands (float32 and float16 inputs).
    """
    table = {name: Launch() for name in ("state_scan", "outputs", "query_gradient", "key_gradient", "output_gradient")}
    return table


def sequence_parts(programs: int, segments: int, processors: int) -> int:
    """Parts that the sums of a row are cut into: its segments where `programs` would leave processors idle, else 1.

    Args:
        programs: heads x feature groups, what whole rows would start.
    """
    return segments if programs < 2 * processors else 1
