"""Sizes by GPU, fixed before the first launch: found by compiling (README.md), not yet by timing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.triton_mode import triton_version

SEGMENT = 512  # tokens between boundary sums: twice as many halve their bytes and double the quadratic part


@dataclass(frozen=True)
class Launch:
    """C: tokens a block. unroll: feature groups without a loop (where there are 3 or fewer)."""

    C: int = 64
    num_warps: int = 4
    num_stages: int = 2
    unroll: bool = True


KERNELS = ("state_scan", "outputs", "output_gradient", "query_gradient", "key_gradient", "value_gradient")


def config(capability: int | str, wide: bool, single: bool) -> dict[str, Launch]:
    """Kernel name -> launch, for capability 80, 90, 100 or "gfx942"; "value_gradient" is `key_gradient` for dv alone.

    Args:
        wide: more than 64 values a head. single: float32 operands (float32 and float16 inputs); they fill registers.
    """
    if single:
        return SINGLE | SINGLE_BY_GPU.get(capability, {}) | (SINGLE_WIDE if wide else {})
    table = dict.fromkeys(KERNELS, Launch(num_warps=8 if wide else 4)) | BY_GPU.get((capability, wide), {})
    if capability == 100 and (triton_version() or (0, 0, 0)) < (3, 7, 0):  # 3.6 cannot pipeline this loop there
        table["state_scan"] = replace(table["state_scan"], num_stages=1)
    return table


BY_GPU = {
    (80, False): {"state_scan": Launch(C=32), "key_gradient": Launch(C=32)},
    (80, True): {"state_scan": Launch(C=32, num_warps=8), "key_gradient": Launch(C=32, num_warps=8, unroll=False)},
    (90, True): {"key_gradient": Launch(num_warps=8, unroll=False)},
    (100, True): {"state_scan": Launch()},
}
_LOOP = Launch(C=32, num_stages=1, unroll=False)
SINGLE = dict.fromkeys(KERNELS, _LOOP)
SINGLE |= dict.fromkeys(("state_scan", "outputs"), replace(_LOOP, num_warps=8))
SINGLE |= dict.fromkeys(("query_gradient", "key_gradient"), replace(_LOOP, C=16))
SINGLE_WIDE = dict.fromkeys(("query_gradient", "key_gradient", "value_gradient"), replace(_LOOP, C=16, num_warps=8))
SINGLE_BY_GPU = {80: {"state_scan": replace(_LOOP, C=16, num_warps=8)}}


def sequence_parts(programs: int, segments: int, processors: int) -> int:
    """Parts that the sums of a row are cut into: its segments where `programs` would leave processors idle, else 1.

    Args:
        programs: heads x feature groups, what whole rows would start.
    """
    return segments if programs < 2 * processors else 1
