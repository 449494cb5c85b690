"""One token of the delta rule: decay, correction, read."""

from __future__ import annotations

import torch

from kernels.checks import check_step, sizes, writable
from kernels.taylor.features import accumulator_dtype, without_autocast


def delta_step(
    q_BHK: torch.Tensor, k_BHK: torch.Tensor, v_BHV: torch.Tensor, beta_BH: torch.Tensor, state: torch.Tensor, *,
    log_decay_BH: torch.Tensor | None = None, scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y_BHV, state afterwards), in place when gradients are off. Cost 6·K·V FLOPs a head, whatever the length so far.

    LayoutError: a token or state that does not fit.
    """
    B, H, K = sizes("q_BHK", q_BHK, "BHK")
    V = v_BHV.shape[-1]
    check_step("delta_step", (
        ("k_BHK", k_BHK, (B, H, K)), ("v_BHV", v_BHV, (B, H, V)), ("beta_BH", beta_BH, (B, H)),
        ("log_decay_BH", log_decay_BH, (B, H))), (("state", state, (B, H, K, V)),), accumulator_dtype(k_BHK.dtype))
    with without_autocast(q_BHK.device):
        q, k, v, beta = (x.to(state.dtype) for x in (q_BHK, k_BHK, v_BHV, beta_BH))
        held, in_place = state.reshape(B * H, K, V), not torch.is_grad_enabled()
        held = writable(held) if in_place else held
        if log_decay_BH is not None:
            decay = log_decay_BH.to(state.dtype).exp().reshape(B * H, 1, 1)
            held = held.mul_(decay) if in_place else held * decay
        key, value = k.reshape(B * H, 1, K), v.reshape(B * H, 1, V)
        correction = (value - torch.bmm(key, held)) * beta.reshape(B * H, 1, 1)
        held = (held.baddbmm_ if in_place else held.baddbmm)(key.transpose(1, 2), correction)
        query = q.reshape(B * H, 1, K) * (K**-0.5 if scale is None else scale)
        y_BHV = torch.bmm(query, held).view(B, H, V).to(v_BHV.dtype)
    return y_BHV, held.view(state.shape)
