"""One token of the gated scan: decay, write, read."""

from __future__ import annotations

import torch

from kernels.checks import check_step, sizes, writable
from kernels.taylor.features import accumulator_dtype, without_autocast


def empty_state(B: int, H: int, K: int, V: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """State before the first token: zeros (B, H, K, V) of the accumulator dtype that belongs to inputs of `dtype`."""
    return torch.zeros(B, H, K, V, dtype=accumulator_dtype(dtype), device=device)


def gated_step(
    q_BHK: torch.Tensor, k_BHK: torch.Tensor, v_BHV: torch.Tensor, log_decay: torch.Tensor, state: torch.Tensor, *,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y_BHV, state afterwards), in place when gradients are off. `log_decay` (B, H, K) or (B, H), as in `gated_scan`.

    Cost 4·K·V FLOPs a head, whatever the length so far. LayoutError: a token or state that does not fit.
    """
    B, H, K = sizes("q_BHK", q_BHK, "BHK")
    V = v_BHV.shape[-1]
    check_step("gated_step", (
        ("k_BHK", k_BHK, (B, H, K)), ("v_BHV", v_BHV, (B, H, V)),
        ("log_decay", log_decay, (B, H, K) if log_decay.dim() == 3 else (B, H))),
        (("state", state, (B, H, K, V)),), accumulator_dtype(k_BHK.dtype))
    with without_autocast(q_BHK.device):
        q, k, v, logs = (x.to(state.dtype) for x in (q_BHK, k_BHK, v_BHV, log_decay))
        decay = logs.exp().reshape(B * H, K if logs.dim() == 3 else 1, 1)
        held = state.reshape(B * H, K, V)
        key, value = k.reshape(B * H, K, 1), v.reshape(B * H, 1, V)
        if torch.is_grad_enabled():
            held = torch.baddbmm(held * decay, key, value)
        else:
            held = writable(held).mul_(decay).baddbmm_(key, value)
        query = q.reshape(B * H, 1, K) * (K**-0.5 if scale is None else scale)
        y_BHV = torch.bmm(query, held).view(B, H, V).to(v_BHV.dtype)
    return y_BHV, held.view(state.shape)
