"""What the Triton form cannot take; apart from it, so that asking does not load Triton."""

from __future__ import annotations

import torch

WIDEST = 128  # of a head's K or V: what the kernels' blocks hold


def triton_refusal(q_BLHK: torch.Tensor, v_BLHV: torch.Tensor) -> str | None:
    """Why these inputs have no Triton form, None if they have one."""
    if q_BLHK.dtype == torch.float64:
        return "float64 has no GPU form"
    if max(q_BLHK.shape[-1], v_BLHV.shape[-1]) > WIDEST:
        return f"heads wider than {WIDEST} do not fit its blocks"
    return None
