"""Between the public order of axes, (B, L, H, ·), and the one that batched products want, heads before positions.

Letters: G = B·H.
"""

from __future__ import annotations

import torch


def heads_first(x_BLHK: torch.Tensor, dtype: torch.dtype, factor: float = 1.0) -> torch.Tensor:
    """(B, L, H, K) -> a contiguous copy (B·H, L, K), times `factor`."""
    B, L, H, K = x_BLHK.shape
    out = torch.empty(B, H, L, K, dtype=dtype, device=x_BLHK.device).copy_(x_BLHK.transpose(1, 2)).view(B * H, L, K)
    return out if factor == 1.0 else out.mul_(factor)


def heads_last(x_GLK: torch.Tensor, H: int, factor: float, dtype: torch.dtype) -> torch.Tensor:
    """(B·H, L, K) -> contiguous (B, L, H, K), times `factor`."""
    G, L, K = x_GLK.shape
    out = torch.empty(G // H, L, H, K, dtype=dtype, device=x_GLK.device)
    return torch.mul(x_GLK.view(G // H, H, L, K).transpose(1, 2), factor, out=out)
