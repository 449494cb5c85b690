"""One token: plain softmax over the cached keys that are near and the summaries that are closed."""

from __future__ import annotations

import torch

from kernels.summary_window.near import Rule, first_near
from kernels.taylor.features import accumulator_dtype, without_autocast


def summary_window_step(
    q_BHK: torch.Tensor, k_BNHK: torch.Tensor, v_BNHV: torch.Tensor, far_k_BSHK: torch.Tensor, far_v_BSHV: torch.Tensor, *,
    rule: Rule, past_B: torch.Tensor, near_BHO: torch.Tensor | None = None, far_BHS: torch.Tensor | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """y_BHV of one token a row at position past_B, whose own key is the last of the N.

    near_BHO (1 or B, 1 or H, O): added to near scores by offset back; far_BHS to far ones by slots back, as in `Places`.
    """
    dtype, N, S = accumulator_dtype(q_BHK.dtype), k_BNHK.shape[1], far_k_BSHK.shape[1]
    scale = q_BHK.shape[-1] ** -0.5 if scale is None else scale
    with without_autocast(q_BHK.device):
        q = q_BHK.to(dtype)[:, :, None] * scale
        k, v, far_k, far_v = (t.to(dtype).transpose(1, 2) for t in (k_BNHK, v_BNHV, far_k_BSHK, far_v_BSHV))
        offset = torch.arange(N - 1, -1, -1, device=q.device)
        near, far = (q @ k.transpose(2, 3))[:, :, 0], (q @ far_k.transpose(2, 3))[:, :, 0]
        if near_BHO is not None:
            near = near + near_BHO[..., offset.clamp(max=near_BHO.shape[-1] - 1)]
        seen_BN = past_B[:, None] - offset >= first_near(rule, past_B).clamp(min=0)[:, None]
        back_BS = (past_B // rule.chunk * rule.rank)[:, None] - 1 - torch.arange(S, device=q.device)
        if far_BHS is not None and S:
            index = back_BS.clamp(0, far_BHS.shape[-1] - 1)[:, None].expand_as(far)
            far = far + far_BHS.expand(*far.shape[:2], -1).gather(2, index)
        both = torch.cat((near.masked_fill(~seen_BN[:, None], float("-inf")),
                          far.masked_fill((back_BS < 0)[:, None], float("-inf"))), -1).softmax(-1)[:, :, None]
        return (both[..., :N] @ v + both[..., N:] @ far_v)[:, :, 0].to(v_BNHV.dtype)
