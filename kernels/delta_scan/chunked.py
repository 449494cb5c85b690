"""The delta rule in pure torch: linear in the length, with or without a backward."""

from __future__ import annotations

import torch

from kernels.checks import writable
from kernels.delta_scan.scan import DeltaScan, scan
from kernels.gated_scan.decay import power_of_two
from kernels.taylor.chunked import differentiable
from kernels.taylor.features import first_tokens

CHUNK = 32  # tokens a step (measured, README.md)


def delta_chunked(
    q_BLHK, k_BLHK, v_BLHV, beta_BLH, *, log_decay_BLH, lengths_B, state, scale, chunk, return_state,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """See `kernels.delta_scan.delta_scan`. `chunk` is rounded up to a power of two."""
    B, L = q_BLHK.shape[:2]
    # in aligned rows pads come last, so that only the state can see them
    keep_BL = first_tokens(lengths_B, L) if return_state else None
    if log_decay_BLH is None:  # a decay of 1 multiplies exactly
        log_decay_BLH = torch.zeros_like(beta_BLH, requires_grad=False)
    needs = differentiable(q_BLHK, k_BLHK, v_BLHV, beta_BLH, log_decay_BLH, state)
    if state is not None and not needs:  # the loop overwrites it, which callers expect with gradients off alone
        state = state.clone() if torch.is_grad_enabled() else writable(state)
    y_BLHV, after = (DeltaScan.apply if needs else scan)(
        q_BLHK, k_BLHK, v_BLHV, beta_BLH.unsqueeze(-1), log_decay_BLH.unsqueeze(-1),
        None if state is None else state.flatten(0, 1), keep_BL, scale, power_of_two(min(chunk or CHUNK, L)),
        return_state)
    return y_BLHV, after.unflatten(0, (B, -1)) if return_state else None
