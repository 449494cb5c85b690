"""How Triton runs here: on a GPU, or in its interpreter, where kernels execute as numpy code on CPU tensors.

The interpreter keeps bfloat16 as bit patterns: every arithmetic on it is silently wrong (Triton 3.6 to 3.9). Kernels
therefore take a constant `FD`, the type of operands, and cast to it at every load and before every product: bfloat16 on
a GPU, float32 in the interpreter, so that the interpreter checks the algebra.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
from typing import Any

import torch

CAPABILITIES = (80, 90, 100)  # compute capability times ten: Ampere, Hopper, Blackwell


@functools.cache
def library_version(distribution: str) -> tuple[int, int, int] | None:
    """(major, minor, patch) of an installed distribution, or None."""
    try:
        parts = importlib.metadata.version(distribution).split("+")[0].split(".")
    except importlib.metadata.PackageNotFoundError:
        return None
    major, minor, patch = (int("".join(filter(str.isdigit, part)) or 0) for part in (*parts, "0", "0")[:3])
    return major, minor, patch


def triton_version() -> tuple[int, int, int] | None:
    """Version of the Triton that would be imported, or None."""
    return library_version("triton")


def interpreted() -> bool:
    """Whether kernels of this process run in the interpreter. Fixed when Triton is imported: one process is one or the other."""
    if triton_version() is None:
        return False
    import triton

    knobs = getattr(triton, "knobs", None)
    return bool(knobs.runtime.interpret) if knobs else os.environ.get("TRITON_INTERPRET") == "1"


def operand_type(dtype: torch.dtype) -> Any:
    """The Triton type that products of inputs of `dtype` are computed from."""
    import triton.language as tl

    if interpreted() or dtype == torch.float32:
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]


def capability(device: torch.device) -> int:
    """The device's entry of the configuration tables: the greatest of CAPABILITIES that is not above its own.

    The interpreter takes the middle one, so that what is tested is what runs on Hopper.
    """
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return max((c for c in CAPABILITIES if c <= 10 * major + minor), default=CAPABILITIES[0])
