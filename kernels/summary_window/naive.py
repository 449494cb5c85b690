"""The truth: one query after another, over exactly the keys and summaries it may read."""

from __future__ import annotations

import torch

from kernels.summary_window.near import Places, Rule, first_near


def summary_window_naive(q_BLHK, k_BNHK, v_BNHV, far_k_BSHK, far_v_BSHV, *, rule: Rule, places: Places | None = None,
                         past_B=None, scale: float | None = None) -> torch.Tensor:
    """See `kernels.summary_window.summary_window`."""
    B, L, H, K = q_BLHK.shape
    P, places = k_BNHK.shape[1] - L, places or Places()
    scale = K**-0.5 if scale is None else scale
    rows = []
    for b in range(B):
        before = 0 if past_B is None else int(past_B[b])
        outputs = []
        for i in range(L):
            p, q = before + i, q_BLHK[b, i] * scale
            scores, values = [], []
            for j in range(max(first_near(rule, p), 0), p + 1):
                column, o = P + j - before, p - j
                score = (q * k_BNHK[b, column]).sum(-1)
                if places.near_OHK is not None:
                    score = score + (q * places.near_OHK[o]).sum(-1)
                if places.table_HO is not None:
                    score = score + places.table_HO[:, o]
                if places.key_BNH is not None:
                    score = score + places.key_BNH[b, column]
                scores.append(score)
                values.append(v_BNHV[b, column])
            for s in range(p // rule.chunk * rule.rank):
                score = (q * far_k_BSHK[b, s]).sum(-1)
                if places.far_SHK is not None:
                    score = score + (q * places.far_SHK[p // rule.chunk * rule.rank - 1 - s]).sum(-1)
                scores.append(score)
                values.append(far_v_BSHV[b, s])
            outputs.append(torch.einsum("jh,jhv->hv", torch.stack(scores).softmax(0), torch.stack(values)))
        rows.append(torch.stack(outputs))
    return torch.stack(rows)
