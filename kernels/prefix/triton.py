"""Prefix attention on GPUs is `kernels.taylor.triton.attend` with an encoder: these are the launches it adds.

Forward, one more pass of the sums, over encoder tokens and without boundaries; backward, the gradient of encoder keys
and values, whose queries are all in one sum. Rows are padded here, as prefixes differ.
"""

from __future__ import annotations

from kernels.compile import Variant
from kernels.taylor.triton_gradient import key_gradient, query_gradient
from kernels.taylor.triton_launch import key_gradient_passes
from kernels.taylor.triton_output import outputs
from kernels.taylor.triton_state import state_scan
from kernels.taylor.triton_variants import SIZES, key_gradient_label, variant


def variants(target: int | str) -> list[Variant]:
    """Launches that differ from those of kernels/taylor."""
    found = []
    for K, V, dtype in SIZES[:2]:
        for label, kernel, flags in (
                ("encoder sums", state_scan, {"LAST", "RAGGED"}), ("padded outputs", outputs, {"STATE", "RAGGED"}),
                ("padded dq", query_gradient, {"STATE", "RAGGED"}),
                *((f"encoder {key_gradient_label(keys, values)}", key_gradient,
                   {"STATE", "RAGGED", *("KEYS",) * keys, *("VALUES",) * values})
                  for keys, values in key_gradient_passes(dtype))):
            found.append(variant(target, label, kernel, K, V, dtype, flags))
    return found
