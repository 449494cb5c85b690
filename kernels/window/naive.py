"""The truth of sliding-window attention: one query after another, over exactly the keys it may see."""

from __future__ import annotations

import torch


def seen_keys(reach: str, position: int, window: int, end: int) -> range:
    """Positions of the keys that the query at `position` may see, among keys 0 .. end-1."""
    first, after = {
        "causal": (position - window + 1, position + 1),
        "both": (position - window + 1, position + window),
        "own": (position // window * window, (position // window + 1) * window),
    }[reach]
    return range(max(first, 0), min(after, end))


def window_naive(
    q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor, *, window: int, reach: str,
    table: torch.Tensor | None = None, past_k: torch.Tensor | None = None, past_v: torch.Tensor | None = None,
    past_B: torch.Tensor | None = None, lengths_B: torch.Tensor | None = None, scale: float,
) -> torch.Tensor:
    """See `kernels.window.window`. Pads give 0."""
    B, L, H, _ = q_BLHK.shape
    P = 0 if past_k is None else past_k.shape[1]
    rows = []
    for b in range(B):
        n = L if lengths_B is None else int(lengths_B[b])
        keys, values = k_BLHK[b, :n], v_BLHV[b, :n]
        if P:
            known = min(int(past_B[b]), P)
            keys = torch.cat((past_k[b, P - known :], keys))
            values = torch.cat((past_v[b, P - known :], values))
        before = keys.shape[0] - n
        outputs = []
        for i in range(before, before + n):
            seen = seen_keys(reach, i, window, keys.shape[0])
            here = slice(seen.start, seen.stop)
            scores = torch.einsum("hk,jhk->hj", q_BLHK[b, i - before], keys[here]) * scale
            if table is not None:
                scores = scores + table[:, [j - i + window - 1 for j in seen]]
            outputs.append(torch.einsum("hj,jhv->hv", scores.softmax(-1), values[here]))
        outputs += [torch.zeros_like(v_BLHV[b, 0])] * (L - n)
        rows.append(torch.stack(outputs))
    return torch.stack(rows)
