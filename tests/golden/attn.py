"""Reference arrays of attention methods: what the authors' own code, or loops over the formulas, gave on a CPU.

The folder golden/attn holds one .npz a method: random inputs and weights, the settings, and what came out. LAVO's are
float64, the others float32. Tolerances: float64 rtol 1e-10 atol 1e-12; float32 rtol 1e-4 atol 1e-5.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT


def attn(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(settings, arrays) of golden/attn/<name>.npz; skips the test if the folder is not here."""
    path = Path(os.environ.get("REREAD_SHARED", ROOT.parent / "shared")) / "golden" / "attn" / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"reference vectors are not here: {name} (set REREAD_SHARED)")
    with np.load(path) as stored:
        arrays = {key: stored[key] for key in stored.files}
    return json.loads(str(arrays.pop("meta"))), arrays


def heads_second(array: np.ndarray) -> np.ndarray:
    """(B, H, N, d) of the stored files to (B, N, H, d), our order, and back."""
    return np.ascontiguousarray(array.swapaxes(1, 2))
