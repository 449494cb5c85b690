"""Products of decays between the tokens of a chunk; every factor is a decay, so it lies in [0, 1].

The decay between two tokens is split at the middle of the smallest aligned block of 2h tokens that holds both: what the
later token sees since the middle (`prefix`) times what the earlier one loses until it (`suffix`). From h to 2h either
takes one more factor, the decay of a neighbouring block. There is no cumulative sum to subtract or to overflow.

Letters: N chunks (of a stretch and all its heads), C tokens of a chunk (a power of two), h half a block, P = C / 2h.
"""

from __future__ import annotations

import torch


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def halves(C: int) -> list[int]:
    """1, 2, 4 ... C / 2."""
    return [1 << level for level in range(C.bit_length() - 1)]


def in_halves(x_NCK: torch.Tensor, h: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(earlier, later) halves of every block of 2h tokens: views (N·P, h, K) of a contiguous tensor."""
    blocks = x_NCK.view(-1, 2, h, x_NCK.shape[-1])
    return blocks[:, 0], blocks[:, 1]


def lower_left(matrix_NCC: torch.Tensor, h: int) -> torch.Tensor:
    """Later half against earlier half in every diagonal block of 2h tokens: a view (N, P, h, h)."""
    N, C, _ = matrix_NCC.shape
    blocks = matrix_NCC.view(N, C // (2 * h), 2 * h, C // (2 * h), 2 * h).diagonal(dim1=1, dim2=3)
    return blocks.permute(0, 3, 1, 2)[:, :, h:, :h]


class Triangle:
    """Memory for (N, C, C) matrices that are 0 above the diagonal, with its diagonal and `lower_left` for every h."""

    def __init__(self, N: int, C: int, dtype: torch.dtype, device: torch.device):
        self.matrix = torch.zeros(N, C, C, dtype=dtype, device=device)
        self.diagonal = self.matrix.diagonal(dim1=1, dim2=2)
        self.quarters = [lower_left(self.matrix, h) for h in halves(C)]


def head_decay(logs_NC1: torch.Tensor, between: Triangle) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of one decay a token and head: fills `between` with the decay from each token to each later one.

    Returns (prefix_NC1, the decay since the chunk's start, own token included; suffix_NC1, after the token until the
    chunk's end; total_N11, of the whole chunk). The total is exp of a sum and not a product of rounded factors, whose
    errors would add up from chunk to chunk.
    """
    N, C, _ = logs_NC1.shape
    prefix, block = logs_NC1.exp(), logs_NC1.exp()
    suffix = torch.ones_like(prefix)
    between.diagonal.fill_(1.0)
    for h, quarter in zip(halves(C), between.quarters):
        (_, later), (earlier, _), (first, second) = in_halves(prefix, h), in_halves(suffix, h), in_halves(block, 1)
        torch.mul(later.view(N, -1, h, 1), earlier.view(N, -1, 1, h), out=quarter)
        later.mul_(first)
        earlier.mul_(second)
        block = first * second
    return prefix, suffix, logs_NC1.sum(1, keepdim=True).exp()
