"""The truth of the gated scan: one token after another, decay first, then the write, then the read."""

from __future__ import annotations

import torch

from kernels.taylor.features import accumulator_dtype


def gated_naive(
    q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor, log_decay: torch.Tensor, *,
    lengths_B: torch.Tensor | None = None, state: torch.Tensor | None = None, scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y_BLHV, state after each row's own length). See `kernels.gated_scan.gated_scan`."""
    B, L, H, K = q_BLHK.shape
    V, kept = v_BLHV.shape[-1], accumulator_dtype(q_BLHK.dtype)
    state = torch.zeros(B, H, K, V, dtype=kept, device=q_BLHK.device) if state is None else state
    q, k, v, decay = (x.to(kept) for x in (q_BLHK, k_BLHK, v_BLHV, log_decay))
    decay = decay if decay.dim() == 4 else decay.unsqueeze(-1)
    if lengths_B is not None:  # whatever pads hold must not reach the exponential
        real_BL = torch.arange(L, device=lengths_B.device) < lengths_B[:, None]
        decay, k, v = (torch.where(real_BL[:, :, None, None], x, 0) for x in (decay, k, v))
    decay = decay.exp()
    outputs = []
    for t in range(L):
        after = decay[:, t, :, :, None] * state + k[:, t, :, :, None] * v[:, t, :, None, :]
        state = after if lengths_B is None else torch.where((t < lengths_B)[:, None, None, None], after, state)
        outputs.append(scale * (q[:, t, :, :, None] * after).sum(-2))
    y = torch.stack(outputs, 1) if outputs else torch.zeros_like(v)
    return y.to(v_BLHV.dtype), state
