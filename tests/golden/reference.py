"""Reference arrays: from the folder of reference vectors, or, for the key ones, from the small copy kept here.

jrt_*.npz are numbers alone (random inputs and weights, and what came out), made by running the official code of
HazyResearch/prefix-linear-attention @7490f22 on a CPU, in float64.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import ROOT

COPIES = Path(__file__).parent


class Arrays(dict):
    """Arrays by name; a test that asks for one that is not here is skipped."""

    def __missing__(self, name: str) -> np.ndarray:
        pytest.skip(f"the small copy of the reference vectors holds no {name} (set REREAD_SHARED)")


def reference(name: str) -> dict[str, np.ndarray]:
    """Arrays of golden/jrt/<name>.npz; without that folder, those kept beside the tests. Skips if there are none."""
    path = Path(os.environ.get("REREAD_SHARED", ROOT.parent / "shared")) / "golden" / "jrt" / f"{name}.npz"
    if not path.is_file():
        path = COPIES / f"jrt_{name}.npz"
    if not path.is_file():
        pytest.skip(f"reference vectors are not here: {name} (set REREAD_SHARED)")
    with np.load(path) as arrays:
        return Arrays(arrays)


def tensor(array: np.ndarray, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Weights and inputs are stored as float16, exactly; they are widened before use."""
    return torch.from_numpy(np.asarray(array)).to(dtype)


def fill(module: torch.nn.Module, arrays: dict[str, np.ndarray]) -> None:
    """Load every parameter of the module, by its name, exactly."""
    parameters = dict(module.named_parameters())
    assert parameters.keys() == arrays.keys(), parameters.keys() ^ arrays.keys()
    with torch.no_grad():
        for name, parameter in parameters.items():
            value = tensor(arrays[name], parameter.dtype)
            assert value.numel() == parameter.numel() and value.squeeze().shape == parameter.squeeze().shape, name
            parameter.copy_(value.view_as(parameter))


def symmetric(phi: np.ndarray, width: int) -> torch.Tensor:
    """Features [1, x, vec(x xᵀ)/sqrt2] of the released code to ours, where equal pairs are one: (..., 1+d+d²) to (..., F)."""
    phi = tensor(phi, torch.float64)
    square = phi[..., 1 + width :].unflatten(-1, (width, width))
    pairs = []
    for i in range(width):
        for j in range(i, width):
            pairs.append(square[..., i, j] if i == j else (square[..., i, j] + square[..., j, i]) / 2**0.5)
    return torch.cat([phi[..., : 1 + width], torch.stack(pairs, -1)], -1)
