"""Memory for one stretch, filled again for every stretch of a row: fresh memory and fresh views would cost a seventh.

Letters: S chunks of the stretch, G = B·H, C tokens of a chunk, N = S·G, h half a block of 2h tokens, P = C / 2h.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.gated_scan.decay import Triangle, halves, in_halves


class Level(NamedTuple):
    """What one doubling from h to 2h touches: views (N·P, h or 1, K), and memory for its results."""

    earlier: torch.Tensor  # keys of the earlier halves
    later: torch.Tensor  # queries of the later halves
    products: torch.Tensor  # (N·P, h, h)
    quarter: torch.Tensor  # (N, P, h, h): where the products belong in the weights
    first: torch.Tensor  # decay of each earlier half
    second: torch.Tensor  # decay of each later half
    both: torch.Tensor  # decay of each block of 2h tokens


class Room:
    """q, k, v, y (S, G, C, ·) and log-decays of a stretch, its weights, and, with a decay a channel, its levels."""

    def __init__(self, S: int, G: int, C: int, K: int, V: int, decays: int, dtype: torch.dtype, device: torch.device):
        self.q, self.k, self.logs, self.v, self.y = (
            torch.empty(S, G, C, width, dtype=dtype, device=device) for width in (K, K, decays, V, V))
        self.triangle = Triangle(S * G, C, dtype, device)
        self.own = torch.empty_like(self.q) if decays > 1 else None  # products of a token's query with its key
        self.levels: list[Level] = []
        block = self.logs
        for h, quarter in zip(halves(C) if decays > 1 else (), self.triangle.quarters):
            products = torch.empty(quarter.shape, dtype=dtype, device=device).view(-1, h, h)
            both = torch.empty(quarter.shape[0] * quarter.shape[1], 1, decays, dtype=dtype, device=device)
            self.levels.append(Level(
                in_halves(self.k, h)[0], in_halves(self.q, h)[1], products, quarter, *in_halves(block, 1), both))
            block = both
