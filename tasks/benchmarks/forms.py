"""What the operations' files share: our own backends as implementations, layouts of peers, formulas in float64."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from tasks.benchmarks.machine import installed
from tasks.benchmarks.operation import NAIVE_TOKENS, Implementation, Inputs

WIDTH = 64        # values of a head; of attention keys too
FEATURES = 16     # keys of a Taylor head before expansion


def ours(call: Callable[[Inputs, str], torch.Tensor], *kernels: str, fast: tuple[str, ...] = ()) -> tuple[Implementation, ...]:
    """Every backend of an operation: `chunked`, `triton` where its kernels have one, other GPU forms by their package,
    and `naive` on rows short enough."""
    if all(installed(f"{kernel}.triton") for kernel in kernels):
        fast = ("triton", *fast)
    short = lambda setting: setting.n <= NAIVE_TOKENS and setting.device == "cpu"  # noqa: E731
    return (Implementation("chunked", lambda inputs: call(inputs, "chunked")),
            *(_on_gpu(name, call) for name in fast),
            Implementation("naive", lambda inputs: call(inputs, "naive"), takes=short))


def _on_gpu(name: str, call: Callable[[Inputs, str], torch.Tensor]) -> Implementation:
    return Implementation(name, lambda inputs: call(inputs, name), needs=(name,), devices=("cuda",))


def swapped(x: torch.Tensor) -> torch.Tensor:
    """[B, L, H, ·] <-> [B, H, L, ·], laid out anew."""
    return x.transpose(1, 2).contiguous()


def head_first(inputs: Inputs) -> Inputs:
    """Every tensor of tokens and heads with its heads first, for peers of that layout."""
    return {name: swapped(x) if x.dim() >= 3 and x.is_floating_point() else x for name, x in inputs.items()}


def scores(q: torch.Tensor, k: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """q·k (B, H, S, n) of the queries at `at` with every key."""
    return torch.einsum("bshk,bjhk->bhsj", q[:, at], k)


def past(at: torch.Tensor, n: int) -> torch.Tensor:
    """(S, n) true where key j is not after query at[s]."""
    return torch.arange(n, device=at.device) <= at[:, None]


def read(weights: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """sum_j w_sj v_j: (B, H, S, n), (B, n, H, V) -> (B, S, H, V)."""
    return torch.einsum("bhsj,bjhv->bshv", weights, v)


def fla_naive(operation: str) -> ModuleType:
    """fla/ops/<operation>/naive.py alone: the package around it takes seconds to import and wants a GPU."""
    name = f"tasks.benchmarks.peer_{operation}"
    if name not in sys.modules:
        root = importlib.util.find_spec("fla").submodule_search_locations[0]
        spec = importlib.util.spec_from_file_location(name, Path(root, "ops", operation, "naive.py"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]
