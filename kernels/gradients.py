"""Hand-written gradients: what a backward that is not itself differentiable owes its caller.

torch's `once_differentiable` puts its error on a node that a search towards weights never visits, so that a second
derivative can come out wrong in silence. Here it is refused where it would begin.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kernels.errors import UnsupportedUse


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward of an autograd.Function that runs without gradients. Raises UnsupportedUse for a second derivative."""
    @functools.wraps(backward)
    def run(ctx, *gradients):
        if torch.is_grad_enabled() and any(isinstance(g, torch.Tensor) and g.requires_grad for g in gradients):
            raise UnsupportedUse(
                f"{type(ctx).__name__}: this operation's gradient has no gradient of its own (create_graph=True). Use "
                "backend='naive' for second derivatives")
        with torch.no_grad():
            return backward(ctx, *gradients)
    return run


def outside_inference(build: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose tensors are kept for later calls: made in inference mode they could not enter a graph."""
    @functools.wraps(build)
    def run(*arguments):
        with torch.inference_mode(False):
            return build(*arguments)
    return run
