"""How Triton runs here: on a GPU, or in its interpreter, where kernels execute as numpy code on CPU tensors.

The interpreter keeps bfloat16 as bit patterns: every arithmetic on it is silently wrong (Triton 3.6 to 3.9). Kernels
therefore take a constant `FD`, the type of operands, and cast to it at every load and before every product: bfloat16 on
a GPU, float32 in the interpreter, so that the interpreter checks the algebra.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
from typing import Any

import torch

CAPABILITIES = (80, 90, 100)  # compute capability times ten: Ampere, Hopper, Blackwell


Version = tuple[int, int, int]


@functools.cache
def library_version(*distributions: str) -> Version | None:
    """Version of the first of these distributions that is installed, or None."""
    for name in distributions:
        try:
            return parse_version(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def parse_version(text: str) -> Version:
    """(major, minor, patch) of a version string. A pre-release counts as just before its release."""
    text = text.split("!")[-1].split("+")[0].strip().lower()
    numbers = [int(n) for n in re.match(r"v?((?:\d+\.)*\d+)", text)[1].split(".")][:3]
    major, minor, patch = (*numbers, 0, 0)[:3]
    if re.search(r"(a|b|c|rc|alpha|beta|pre|preview|dev)[._-]?\d*", text):
        if patch:
            return major, minor, patch - 1
        return (major, minor - 1, 999) if minor else (major - 1, 999, 999)
    return major, minor, patch


def triton_version() -> Version | None:
    """Version of the Triton that would be imported, or None."""
    return library_version("triton", "pytorch-triton", "pytorch-triton-rocm")


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
