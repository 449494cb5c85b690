"""Features laid out one after another along positions: (G, F, S), each the product of two rows of x1 = [1, sqrt(scale) x].

Design: with positions innermost a feature is one product of two contiguous rows, and a slice of rows times one row makes
many features in a single call: K+1 calls for all F, without the two one-hot products that features.py needs where
autograd follows. The map is split unevenly, keys plain and queries weighted, so that no root is taken:

    psi_k(x) = [x1_i^2 (i = 0..K) | x1_i x1_j (i < j, row-major)]      psi_q = psi_k times [2, 1, ..., 1 | 2, ..., 2]

and psi_q(q)·psi_k(k) = (q1·k1)^2 + 1 = 2w. `to_public` and `from_public` change sums of psi_k into sums of the map in
features.py, which is the order of `TaylorState`.

Shape letters: G = B·H of a group of rows and heads, S positions held at once; others: features.py.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from kernels.gradients import outside_inference
from kernels.taylor.features import expanded_width


@lru_cache(maxsize=32)
@outside_inference
def _order(width: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(public position of each own feature, own position of each public feature, factor of each public feature)."""
    first, second = torch.triu_indices(width + 1, width + 1)
    square = first == second
    own = torch.cat((square.nonzero()[:, 0], (~square).nonzero()[:, 0]))
    factor = torch.ones(square.shape, dtype=torch.float64).masked_fill_(square & (first > 0), 0.5**0.5).to(dtype)
    return own.to(device), own.argsort().to(device), factor.to(device)


def to_public(sums_GFV: torch.Tensor, z_GF: torch.Tensor, width: int) -> torch.Tensor:
    """Sums of psi_k -> (G, F, V+1) in the order and with the factors of features.py, a new tensor."""
    _, back, factor = _order(width, sums_GFV.dtype, sums_GFV.device)
    return torch.cat((sums_GFV, z_GF.unsqueeze(-1)), -1).index_select(1, back).mul_(factor[:, None])


def from_public(sums_GFV1: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The inverse: new tensors (G, F, V) and (G, F)."""
    own, _, factor = _order(width, sums_GFV1.dtype, sums_GFV1.device)
    sums = sums_GFV1.index_select(1, own).div_(factor[own][:, None])
    return sums[..., :-1].clone(memory_format=torch.contiguous_format), sums[..., -1].clone()


def gradient_from_public(d_sums_GFV1: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient of `to_public`'s result -> gradients of its sums (G, F, V) and (G, F)."""
    own, _, factor = _order(width, d_sums_GFV1.dtype, d_sums_GFV1.device)
    sums = d_sums_GFV1.index_select(1, own).mul_(factor[own][:, None])
    return sums[..., :-1].clone(memory_format=torch.contiguous_format), sums[..., -1].clone()


def gradient_to_public(d_sums_GFV: torch.Tensor, d_z_GF: torch.Tensor, width: int) -> torch.Tensor:
    """Gradients of `from_public`'s results -> gradient of its sums (G, F, V+1)."""
    _, back, factor = _order(width, d_sums_GFV.dtype, d_sums_GFV.device)
    return torch.cat((d_sums_GFV, d_z_GF.unsqueeze(-1)), -1).index_select(1, back).div_(factor[:, None])


class Augmented:
    """Buffers of one group for x1 and its features; filled for up to S positions at a time."""

    def __init__(self, B: int, H: int, K: int, S: int, dtype: torch.dtype, device: torch.device) -> None:
        self.x1_BHK1S = torch.empty(B, H, K + 1, S, dtype=dtype, device=device)
        self.psi_GFS = torch.empty(B * H, expanded_width(K), S, dtype=dtype, device=device)
        self.twice: torch.Tensor | None = None

    def fill(self, x_BSHK: torch.Tensor, factor: float, keep_BS: torch.Tensor | None = None) -> torch.Tensor:
        """[1, factor x], or zeros where `keep_BS` is False: (G, K+1, S) of the positions given."""
        n = x_BSHK.shape[1]
        rows = self.x1_BHK1S[..., :n]
        rows[:, :, 0] = 1.0
        source = x_BSHK.permute(0, 2, 3, 1)
        if source.dtype == rows.dtype:
            torch.mul(source, factor, out=rows[:, :, 1:])
        else:  # a product in bfloat16 would be rounded before it is widened
            rows[:, :, 1:].copy_(source).mul_(factor)
        if keep_BS is not None:
            rows.mul_(keep_BS[:, None, None])
        return self.x1_BHK1S.flatten(0, 1)[..., :n]

    def keys(self, n: int) -> torch.Tensor:
        """psi_k of the first n positions filled: (G, F, n)."""
        x = self.x1_BHK1S.flatten(0, 1)[..., :n]
        return self._products(x, x, n)

    def queries(self, n: int) -> torch.Tensor:
        """psi_q of the first n positions filled: (G, F, n)."""
        x = self.x1_BHK1S.flatten(0, 1)[..., :n]
        if self.twice is None:
            self.twice = torch.empty_like(self.x1_BHK1S).flatten(0, 1)
        psi = self._products(x, torch.add(x, x, out=self.twice[..., :n]), n)
        psi[:, 0] = 2.0
        return psi

    def pull_back(self, t_GFS, spare_GFS, out_GK1S, first: int, stop: int, *, query: bool) -> None:
        """Add half the gradient with respect to x1 of the features whose gradient is t to `out`, its first row aside.

        At positions first..stop of what was filled. Overwrites t and `spare`. Half: the quadratic part of a chunk leaves
        the same factor out.
        """
        t, spare, out = (x[..., first:stop] for x in (t_GFS, spare_GFS, out_GK1S))
        x, width = self.x1_BHK1S.flatten(0, 1)[..., first:stop], out.shape[1]
        if not query:
            t[:, width:].mul_(0.5)
        out.addcmul_(t[:, :width], x)
        start = width
        for i in range(width - 1):
            rows = slice(start, start + width - 1 - i)
            out[:, i + 1 :].addcmul_(t[:, rows], x[:, i : i + 1])
            if i:  # x1_0 is the constant
                out[:, i] += torch.mul(t[:, rows], x[:, i + 1 :], out=spare[:, rows]).sum(1)
            start = rows.stop

    def _products(self, x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
        psi, width = self.psi_GFS[..., :n], x.shape[1]
        torch.mul(x, x, out=psi[:, :width])
        start = width
        for i in range(width - 1):
            stop = start + width - 1 - i
            torch.mul(y[:, i + 1 :], x[:, i : i + 1], out=psi[:, start:stop])
            start = stop
        return psi
