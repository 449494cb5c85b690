"""One token of the gated scan: decay, write, read."""

from __future__ import annotations

import torch

from kernels.taylor.features import accumulator_dtype, without_autocast


def empty_state(B: int, H: int, K: int, V: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """State before the first token: zeros (B, H, K, V) of the accumulator dtype that belongs to inputs of `dtype`."""
    return torch.zeros(B, H, K, V, dtype=accumulator_dtype(dtype), device=device)


def gated_step(
    q_BHK: torch.Tensor, k_BHK: torch.Tensor, v_BHV: torch.Tensor, log_decay: torch.Tensor, state: torch.Tensor, *,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y_BHV, state afterwards), in place when gradients are off. `log_decay` (B, H, K) or (B, H), as in `gated_scan`.

    Cost 4·K·V FLOPs a head, whatever the length so far.
    """
    B, H, K = q_BHK.shape
    with without_autocast(q_BHK.device):
        q, k, v, logs = (x.to(state.dtype) for x in (q_BHK, k_BHK, v_BHV, log_decay))
        decay = logs.exp().reshape(B * H, -1, 1)
        held = state.view(B * H, K, -1)
        key, value = k.reshape(B * H, K, 1), v.reshape(B * H, 1, -1)
        if torch.is_grad_enabled():
            held = torch.baddbmm(held * decay, key, value)
        else:
            held.mul_(decay).baddbmm_(key, value)
        query = q.reshape(B * H, 1, K) * (K**-0.5 if scale is None else scale)
        y_BHV = torch.bmm(query, held).view(B, H, -1).to(v_BHV.dtype)
    return y_BHV, held.view(state.shape)
