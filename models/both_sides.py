"""Near keys on both sides: blocks of a document read themselves, some tokens before and after, and summaries of it all.

What long_short and eva do where nothing is causal. Letters: B rows, H heads, N tokens of every row, G blocks, W tokens of a
block, E tokens on each side of it, S summaries. Blocks begin at the document's first token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def neighbours(x_BHNK: torch.Tensor, W: int, E: int) -> torch.Tensor:
    """(B, H, G, W + 2E, K): each block with E tokens on each side, 0 beyond the document."""
    N = x_BHNK.shape[2]
    return F.pad(x_BHNK, (0, 0, E, E - N % -W)).unfold(2, W + 2 * E, W).mT


def read_both_sides(
    q_BHNK: torch.Tensor, k_BHNK: torch.Tensor, v_BHNV: torch.Tensor, far_k_BHSK: torch.Tensor, far_v_BHSV: torch.Tensor, *,
    W: int, E: int, table_HO: torch.Tensor | None = None,
) -> torch.Tensor:
    """y (B, H, N, V): one softmax over the near keys and all summaries, scores q·k / sqrt(K).

    table_HO: added to near scores, by offset -(W - 1 + E) .. W - 1 + E of the key; (1, O) serves all heads.
    """
    N, scale = q_BHNK.shape[2], q_BHNK.shape[3] ** -0.5
    q = scale * neighbours(q_BHNK, W, 0)
    near = q @ neighbours(k_BHNK, W, E).mT
    place, block = torch.arange(W + 2 * E, device=q.device), torch.arange(q.shape[2], device=q.device) * W
    if table_HO is not None:
        offset = place - torch.arange(W, device=q.device)[:, None]
        near = near + table_HO[:, offset + W - 1][:, None]
    key = block[:, None] + place - E
    near = near.masked_fill(((key < 0) | (key >= N))[:, None], -torch.inf)
    far = q @ far_k_BHSK.mT[:, :, None]
    near, far = torch.cat((near, far), -1).softmax(-1).split((W + 2 * E, far.shape[-1]), -1)
    y = near @ neighbours(v_BHNV, W, E) + far @ far_v_BHSV[:, :, None]
    return y.flatten(2, 3)[:, :, :N]


def pairs_both_sides(N: int, W: int, E: int) -> int:
    """Query-key pairs of the near part."""
    starts = range(0, N, W)
    return sum((min(start + W, N) - start) * (min(start + W + E, N) - max(start - E, 0)) for start in starts)
