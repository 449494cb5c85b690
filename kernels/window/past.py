"""Keys and values of a row behind those of the tokens before it."""

from __future__ import annotations

import torch


def with_past(
    k_BLHK: torch.Tensor, v_BLHV: torch.Tensor, past_k: torch.Tensor | None, past_v: torch.Tensor | None,
    past_B: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """[past | new] keys and values, in the types of the new.

    Slots older than `past_B` may hold anything: they become 0, since a weight of 0 does not stop a NaN.
    """
    if past_k is None or past_k.shape[1] == 0:
        return k_BLHK, v_BLHV
    P = past_k.shape[1]
    old_BP11 = (torch.arange(P, device=past_B.device) < (P - past_B)[:, None])[..., None, None]
    k, v = (torch.cat((past.to(new.dtype).masked_fill(old_BP11, 0), new), 1)
            for past, new in ((past_k, k_BLHK), (past_v, v_BLHV)))
    return k, v
