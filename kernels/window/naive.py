"""The truth of sliding-window attention: one query after another, over exactly the keys it may see."""

from __future__ import annotations

import torch


def window_naive(
    q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor, *, window: int,
    past_k: torch.Tensor | None = None, past_v: torch.Tensor | None = None, past_B: torch.Tensor | None = None,
    scale: float,
) -> torch.Tensor:
    """See `kernels.window.window`."""
    B, L = q_BLHK.shape[:2]
    P = 0 if past_k is None else past_k.shape[1]
    rows = []
    for b in range(B):
        keys, values = k_BLHK[b], v_BLHV[b]
        if P:
            known = min(int(past_B[b]), P)
            keys = torch.cat((past_k[b, P - known :], keys))
            values = torch.cat((past_v[b, P - known :], values))
        before = keys.shape[0] - L
        outputs = []
        for i in range(L):
            seen = slice(max(before + i - window + 1, 0), before + i + 1)
            scores = torch.einsum("hk,jhk->hj", q_BLHK[b, i], keys[seen]) * scale
            outputs.append(torch.einsum("hj,jhv->hv", scores.softmax(-1), values[seen]))
        rows.append(torch.stack(outputs))
    return torch.stack(rows)
