"""Which form of an operation runs: `naive` (the truth), `chunked` (torch, linear in length), or a form for GPUs.

"auto" prefers, on CUDA, the first GPU form that is installed, takes the inputs and is not known to be wrong on this
machine; everywhere else it is "chunked". Asking for a form by name either runs it or says why it cannot.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

import torch

from kernels import toolchain
from kernels.errors import UnsupportedUse
from kernels.triton_mode import interpreted, library_version, triton_version

PACKAGES = {"triton": "triton", "fla": "fla", "mamba_ssm": "mamba_ssm", "causal_conv1d": "causal_conv1d"}
DISTRIBUTIONS = {"triton": "triton", "fla": "fla-core", "mamba_ssm": "mamba-ssm", "causal_conv1d": "causal-conv1d"}
PORTABLE = ("naive", "chunked")
NOTHING: Mapping[str, str | None] = {}


def choose_backend(operation: str, backend: str, device: torch.device, *, fast: Mapping[str, str | None] = NOTHING) -> str:
    """The form that `backend` means for this operation on this device.

    Args:
        backend: "auto", "naive", "chunked", or a name in `fast`.
        fast: the operation's GPU forms, best first -> why it cannot take these inputs, None if it can.
    Raises:
        UnsupportedUse: an unknown form, or one that was asked for by name and cannot run.
    """
    if backend in PORTABLE:
        return backend
    if backend == "auto":
        if device.type != "cuda":
            return "chunked"
        return next((form for form, reason in fast.items() if (reason or obstacle(operation, form, device)) is None), "chunked")
    if backend not in fast:
        raise UnsupportedUse(
            f"{operation}: {'no' if backend in PACKAGES else 'unknown'} backend {backend!r}; choose "
            f"{', '.join(map(repr, ('auto', *PORTABLE, *fast)))}")
    reason = fast[backend] or obstacle(operation, backend, device)
    if reason:
        raise UnsupportedUse(f"{operation}: backend {backend!r} cannot run here: {reason}. Use backend='auto' or 'chunked'")
    return backend


def obstacle(operation: str, form: str, device: torch.device) -> str | None:
    """Why this machine cannot run a GPU form, None if it can."""
    if importlib.util.find_spec(PACKAGES[form]) is None:
        return f"the package {PACKAGES[form]} is not installed"
    if device.type != "cuda" and not (form == "triton" and interpreted()):
        return f"the tensors are on {device.type}, it needs a GPU" + (
            " (or TRITON_INTERPRET=1 for a slow check)" if form == "triton" else "")
    rule = toolchain.refusal(operation, form, toolchain.Use(
        major=torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else None,
        triton=triton_version() or (0, 0, 0), library=library_version(DISTRIBUTIONS[form]),
        gradients=torch.is_grad_enabled()))
    return f"{rule.problem} ({rule.source}): {rule.remedy}" if rule else None
