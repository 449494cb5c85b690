"""A gated scan over short rows as one masked product, for heads that share queries and keys (SSD's quadratic form).

Letters: G groups of heads that share q and k, J heads of a group, H = G·J. The scan in chunks multiplies q and k once a head;
here once a group, and L² weights a head are kept for the backward, so that rows must be short (Dao and Gu 2024, §3).
"""

from __future__ import annotations

import math

import torch

from kernels.taylor.features import accumulator_dtype, without_autocast

LONGEST, LARGEST = 256, 2**22  # tokens of a row, weights of all rows and heads together (measured: twice as fast at 150)


def is_short(B: int, L: int, heads: int) -> bool:
    """Whether rows are short enough for the weights of all pairs of tokens."""
    return L <= LONGEST and B * heads * L * L <= LARGEST


def decayed_attention(
    q_BLGK: torch.Tensor, k_BLGK: torch.Tensor, v_BLHV: torch.Tensor, log_decay_BLH: torch.Tensor,
) -> torch.Tensor:
    """y_BLHV = sum over j <= i of exp(log-decays of j + 1 ... i) q_i·k_j v_j, as `gated_scan` with scale 1 and no state.

    Sums are in float32 at least. Log-decays are added up in float64, so that neighbours of a gate of -1e4 keep theirs.
    """
    (B, L, G, _), (H, V), dtype = q_BLGK.shape, v_BLHV.shape[2:], accumulator_dtype(v_BLHV.dtype)
    with without_autocast(v_BLHV.device):
        q, k, v = (t.to(dtype).transpose(1, 2).flatten(0, 1) for t in (q_BLGK, k_BLGK, v_BLHV))
        total_BHL = log_decay_BLH.double().cumsum(1).transpose(1, 2)
        passed = (total_BHL.unsqueeze(-1) - total_BHL.unsqueeze(-2)).to(dtype)
        later = torch.ones(L, L, dtype=torch.bool, device=v.device).triu(1)
        weights = torch.bmm(q, k.transpose(1, 2)).view(B, G, 1, L, L) * passed.masked_fill(later, -math.inf).exp().view(B, G, -1, L, L)
        y = torch.bmm(weights.view(B * H, L, L), v).view(B, H, L, V).transpose(1, 2)
    return y.to(v_BLHV.dtype)
