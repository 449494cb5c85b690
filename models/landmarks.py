"""Landmarks of a document: means of its segments, and the inverse of a small matrix by iteration.

Letters: B rows, H heads, N tokens of every row, C landmarks, K width of a head. All counts come from N, the document's
own length.
"""

from __future__ import annotations

import torch


def segment_means(x_BHNK: torch.Tensor, C: int) -> torch.Tensor:
    """(B, H, min(C, N), K): means of C segments of N // C tokens, of which the last N % C hold one more (CAB, EVA).

    A document of no more than C tokens is its own landmarks.
    """
    N = x_BHNK.shape[2]
    if N <= C:
        return x_BHNK
    size, longer = divmod(N, C)
    short, long = x_BHNK.split(((C - longer) * size, longer * (size + 1)), 2)
    means = short.unflatten(2, (-1, size)).mean(3)
    return torch.cat((means, long.unflatten(2, (-1, size + 1)).mean(3)), 2) if longer else means


def column_sum(a_BHCC: torch.Tensor) -> torch.Tensor:
    """(B, H, 1, 1): greatest column sum of each matrix. Released code takes the greatest of the whole tensor by default,
    which ties documents and heads together; ours has no such setting."""
    return a_BHCC.sum(-2).amax(-1)[..., None, None]


def iterative_inverse(a_BHCC: torch.Tensor, scale: torch.Tensor, iterations: int) -> torch.Tensor:
    """Approximate pseudo-inverse (Nyströmformer, Eq. 11): Z = Aᵀ / scale, then Z (13 - AZ (15 - AZ (7 - AZ))) / 4.

    Converges if `scale` is at least the product of A's greatest row and column sums.
    """
    eye = torch.eye(a_BHCC.shape[-1], dtype=a_BHCC.dtype, device=a_BHCC.device)
    z = a_BHCC.mT / scale
    for _ in range(iterations):
        az = a_BHCC @ z
        z = z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4
    return z


def segment_places(N: int, C: int, E: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Places of segment_means' segments with E tokens on each side: (index_SJ int64, is_token_SJ, places_S).

    places: slots of a segment and its sides, those beyond the document included; is_token leaves them out.
    """
    size, longer = divmod(N, C) if N > C else (1, 0)
    length_S = torch.full((min(C, N),), size, device=device)
    length_S[len(length_S) - longer:] += 1
    start_S = length_S.cumsum(0) - length_S
    index_SJ = start_S[:, None] + torch.arange(-E, int(size) + bool(longer) + E, device=device)
    is_token_SJ = (index_SJ >= 0) & (index_SJ < N) & (index_SJ < (start_S + length_S + E)[:, None])
    return index_SJ.clamp(0, N - 1), is_token_SJ, length_S + 2 * E
