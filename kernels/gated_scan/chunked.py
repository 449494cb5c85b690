"""The gated scan in pure torch: linear in the length, with or without a backward."""

from __future__ import annotations

import torch

from kernels.checks import writable
from kernels.gated_scan.decay import power_of_two
from kernels.gated_scan.scan import GatedScan, scan
from kernels.taylor.chunked import differentiable
from kernels.taylor.features import first_tokens

CHUNK = 64  # tokens a step (measured, README.md)


def gated_chunked(
    q_BLHK, k_BLHK, v_BLHV, log_decay, *, lengths_B, state, scale, chunk, return_state,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """See `kernels.gated_scan.gated_scan`. `chunk` is rounded up to a power of two."""
    B, L = q_BLHK.shape[:2]
    # in aligned rows pads come last, so that only the state can see them
    keep_BL = first_tokens(lengths_B, L) if return_state else None
    log_decay = log_decay if log_decay.dim() == 4 else log_decay.unsqueeze(-1)
    form = GatedScan.apply if differentiable(q_BLHK, k_BLHK, v_BLHV, log_decay, state) else scan
    if state is not None and form is scan:  # the loop overwrites it, which callers expect with gradients off alone
        state = state.clone() if torch.is_grad_enabled() else writable(state)
    y_BLHV, after = form(
        q_BLHK, k_BLHK, v_BLHV, log_decay, None if state is None else state.flatten(0, 1), keep_BL, scale,
        power_of_two(min(chunk or CHUNK, L)), return_state)
    return y_BLHV, after.unflatten(0, (B, -1)) if return_state else None
