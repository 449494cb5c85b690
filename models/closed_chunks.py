"""State of mixers that summarise closed chunks: tokens of the open chunk, and summaries appended as chunks close.

Letters: P cached tokens, G chunks, C tokens a chunk, S slots of summaries. Chunks begin at the document's first token; a
row's summaries stand at its first columns, zeros behind them, so that the cache holds exactly what the longest row needs.
"""

from __future__ import annotations

import torch

from kernels.layout import Layout
from models.state import State


def whole_chunks(past: torch.Tensor | None, new: torch.Tensor, layout: Layout, state: State | None, C: int) -> torch.Tensor:
    """(B, G, C, ...): each row's tokens from the start of its open chunk on, as many chunks as may close in this call.

    past (B, P, ...), newest last, with P >= C - 1, or None where nothing came before. Chunks that do not close hold
    anything finite.
    """
    if past is None:
        G = new.shape[1] // C
        return new[:, :G * C].unflatten(1, (G, C))
    P, (B, L) = past.shape[1], layout.shape
    G = (C - 1 + L) // C
    index = layout.cached(("open chunk", C, P), lambda: (P - state.count_B % C)[:, None] + torch.arange(
        G * C, device=new.device))
    both = torch.cat((past, new), 1)
    index = index.clamp(max=P + L - 1).view(B, G * C, *[1] * (new.dim() - 2))
    return both.gather(1, index.expand(-1, -1, *new.shape[2:])).unflatten(1, (G, C))


def closing(layout: Layout, state: State, C: int) -> tuple[torch.Tensor, torch.Tensor, int, bool]:
    """(chunks closed before, after, most after, whether any closes): tensors per row; the device is read once a call, for
    all layers of a model."""
    def count() -> tuple[torch.Tensor, torch.Tensor, int, bool]:
        before, after = state.count_B // C, (state.count_B + layout.lengths_B) // C
        most, grows = torch.stack((after.max(), (after - before).max())).tolist()
        return before, after, most, bool(grows)

    return layout.cached(("chunks closed", C), count)


def appended(cache_BS: torch.Tensor, new_BS: torch.Tensor, layout: Layout, state: State, C: int, rank: int) -> torch.Tensor:
    """A cache (B, S, ...) of its own memory with the summaries of chunks that close in this call behind each row's own."""
    before, after, most, _ = closing(layout, state, C)
    width, S, N = most * rank, cache_BS.shape[1], new_BS.shape[1]
    column = torch.arange(width, device=cache_BS.device)
    old = column < before[:, None] * rank
    source = torch.where(old, column, S + column - before[:, None] * rank).clamp(max=max(S + N - 1, 0))
    filled = column < after[:, None] * rank
    both = torch.cat((cache_BS, new_BS.to(cache_BS.dtype)), 1)
    shape = (*source.shape, *[1] * (both.dim() - 2))
    return torch.where(filled.view(shape), both.gather(1, source.view(shape).expand(-1, -1, *both.shape[2:])), 0)
