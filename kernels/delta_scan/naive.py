"""The truth of the delta rule: one token after another; the state fades, is corrected, is read."""

from __future__ import annotations

import torch

from kernels.taylor.features import accumulator_dtype


def delta_naive(
    q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor, beta_BLH: torch.Tensor, *,
    log_decay_BLH: torch.Tensor | None = None, lengths_B: torch.Tensor | None = None,
    state: torch.Tensor | None = None, scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (y_BLHV, state after each row's own length). See `kernels.delta_scan.delta_scan`."""
    B, L, H, K = q_BLHK.shape
    V, kept = v_BLHV.shape[-1], accumulator_dtype(q_BLHK.dtype)
    state = torch.zeros(B, H, K, V, dtype=kept, device=q_BLHK.device) if state is None else state
    q, k, v, beta = (x.to(kept) for x in (q_BLHK, k_BLHK, v_BLHV, beta_BLH))
    decay = None if log_decay_BLH is None else log_decay_BLH.to(kept)
    if lengths_B is not None:  # whatever pads hold must not reach products and exponentials
        real_BL = torch.arange(L, device=lengths_B.device) < lengths_B[:, None]
        k, v = (torch.where(real_BL[:, :, None, None], x, 0) for x in (k, v))
        beta = torch.where(real_BL[:, :, None], beta, 0)
        decay = None if decay is None else torch.where(real_BL[:, :, None], decay, 0)
    outputs = []
    for t in range(L):
        key = k[:, t, :, :, None]
        faded = state if decay is None else state * decay[:, t, :, None, None].exp()
        recalled = (key * faded).sum(-2, keepdim=True)
        after = faded + beta[:, t, :, None, None] * key * (v[:, t, :, None, :] - recalled)
        state = after if lengths_B is None else torch.where((t < lengths_B)[:, None, None, None], after, state)
        outputs.append(scale * (q[:, t, :, :, None] * after).sum(-2))
    y = torch.stack(outputs, 1) if outputs else torch.zeros_like(v)
    return y.to(v_BLHV.dtype), state
