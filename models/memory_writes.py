"""What LAVO's memory could take from a token otherwise than all alike: two ablations that add nothing to its state.

Letters: H heads, R slots, K head width.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from kernels.gated_scan import gated_scan
from kernels.layout import Layout
from kernels.orthogonal_memory.read import read
from kernels.taylor.features import accumulator_dtype, without_autocast
from models.initialise import draw_normal


class WriteGate(nn.Module):
    """x_j times g_j = sigmoid(w·x_j + b), w and b a head's own: how much of what a memory is given it takes.

    The gate sees what is compressed and no more, so that a window read again when it closes has the same gates.
    """

    OPEN = 2.0  # the bias at first: g is 0.88 for x = 0

    def __init__(self, heads: int, head_width: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(heads, head_width)), nn.Parameter(torch.empty(heads))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Weights N(0, 1/K), and a bias that leaves the gate nearly open."""
        draw_normal(self.weight, self.weight.shape[1] ** -0.5, generator)
        nn.init.constant_(self.bias, self.OPEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., H, K) as it enters the memory, in x's dtype."""
        wide = accumulator_dtype(x.dtype)
        scores = (x.to(wide) * self.weight.to(wide)).sum(-1, keepdim=True) + self.bias.to(wide)[:, None]
        return x * scores.sigmoid().to(x.dtype)


def fading_memory(
    q_BLHK: torch.Tensor, x_BLHK: torch.Tensor, basis_HRK: torch.Tensor, sum_BhR: torch.Tensor | None, layout: Layout, *,
    keep: float, shared: bool, scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y_BLHK, sums after the last real token): an exponential average instead of the mean.

    The sum fades by `keep` before each token, and is divided by what its weights, 1 + keep + ... + keep^p, add up to.
    sum_BhR: before the first token of the call, h = 1 if the heads share it; None before the first of all.
    """
    log_keep = math.log(keep)
    with without_autocast(q_BLHK.device):
        features = torch.einsum("blhk,hrk->blhr", x_BLHK.to(basis_HRK.dtype), basis_HRK)
        if shared:
            features = features.sum(2, keepdim=True)
        one = torch.ones_like(features[..., :1])
        sums, after = gated_scan(
            one, one, features, one[..., 0] * log_keep, lengths_B=layout.lengths_B, scale=1.0, return_state=True,
            state=None if sum_BhR is None else sum_BhR.unsqueeze(2))
        weights_BL = torch.expm1(log_keep * (layout.position_BL.to(basis_HRK.dtype) + 1)) / math.expm1(log_keep)
        mean = (sums / weights_BL[..., None, None]).transpose(1, 2)
        return read(q_BLHK, basis_HRK, mean, 1, scale), after.squeeze(2)
