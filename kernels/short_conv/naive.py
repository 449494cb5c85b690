"""The truth of the short convolution: every output is a written-out sum over its own document's inputs."""

from __future__ import annotations

import torch


def short_conv_naive(
    x_BLD: torch.Tensor, weight_DK: torch.Tensor, *, bias_D: torch.Tensor | None = None,
    past_BPD: torch.Tensor | None = None, position_BL: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `kernels.short_conv.short_conv`."""
    B, L, D = x_BLD.shape
    K = weight_DK.shape[1]
    rows = []
    for b in range(B):
        outputs = []
        for i in range(L):
            total = torch.zeros_like(x_BLD[b, i]) if bias_D is None else bias_D + torch.zeros_like(x_BLD[b, i])
            for offset in range(K):
                if position_BL is not None and position_BL[b, i] < offset:
                    continue
                if i >= offset:
                    total = total + weight_DK[:, K - 1 - offset] * x_BLD[b, i - offset]
                elif past_BPD is not None:
                    total = total + weight_DK[:, K - 1 - offset] * past_BPD[b, i - offset]
            outputs.append(total)
        rows.append(torch.stack(outputs))
    return torch.stack(rows)
