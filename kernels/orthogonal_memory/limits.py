"""What the Triton forms cannot take; apart from them, so that asking does not load Triton."""

from __future__ import annotations

import torch

WIDEST = 128  # of a head's width and of its slots: what the kernel's block holds


def triton_refusal(q_BLHK: torch.Tensor, basis_HRK: torch.Tensor, shared: bool) -> str | None:
    """Why these inputs have no Triton form, None if they have one."""
    if q_BLHK.dtype == torch.float64:
        return "float64 has no GPU form"
    if shared:
        return "a memory that the heads share sums over programs that do not meet"
    if max(q_BLHK.shape[-1], basis_HRK.shape[1]) > WIDEST:
        return f"heads or memories wider than {WIDEST} do not fit its blocks"
    return None
