"""Stretches of the public layout as chunks, heads before tokens, in the accumulator dtype; and back.

Letters: S chunks of a stretch, C tokens of a chunk, G = B·H. A packed stretch is (S, G, C, ·): every chunk is contiguous.
"""

from __future__ import annotations

import torch


def pack(
    x_BLHK: torch.Tensor, part: slice, chunk: int, dtype: torch.dtype, *, keep_BL: torch.Tensor | None = None,
    factor: float = 1.0, out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Tokens `part` as (S, G, C, K), times `factor`; 0 where `keep_BL` is False and behind the last token.

    `out`: memory of that shape to write to.
    """
    x = x_BLHK[:, part]
    B, n, H, K = x.shape
    S = -(-n // chunk)
    shape = (S, B, H, chunk, K)
    out = torch.empty(shape, dtype=dtype, device=x.device) if out is None else out.view(shape)
    if n % chunk:
        out[-1, :, :, n % chunk :] = 0.0
    sources, places = in_chunks(x, chunk), in_slots(out, n)
    keeps = places if keep_BL is None else in_chunks(keep_BL[:, part, None, None], chunk)
    for source, into, keep in zip(sources, places, keeps):
        if source.dtype != dtype:  # a product in bfloat16 would be rounded before it is widened
            source = into.copy_(source)
        if keep is not into:
            source = torch.mul(source, keep, out=into)
        if factor != 1.0:
            torch.mul(source, factor, out=into)
        elif source is not into:
            into.copy_(source)
    return out.view(S, B * H, chunk, K)


def unpack(x_SGCK: torch.Tensor, part: slice, out_BLHK: torch.Tensor, *, keep_BL: torch.Tensor | None = None) -> None:
    """Writes a packed stretch to its place in the public layout, 0 where `keep_BL` is False."""
    S, G, C, K = x_SGCK.shape
    into = out_BLHK[:, part]
    sources = in_slots(x_SGCK.view(S, into.shape[0], -1, C, K), into.shape[1])
    for place, source in zip(in_chunks(into, C), sources):
        place.copy_(source)
    if keep_BL is not None:
        into.mul_(keep_BL[:, part, None, None])


def in_chunks(x_BLHK: torch.Tensor, chunk: int) -> list[torch.Tensor]:
    """Views of the public layout: the whole chunks (S, B, H, C, K), then the tokens left over (1, B, H, rest, K)."""
    B, n, H, K = x_BLHK.shape
    whole, rest = divmod(n, chunk)
    head = x_BLHK[:, : n - rest] if rest else x_BLHK
    views = [head.view(B, whole, chunk, H, K).permute(1, 0, 3, 2, 4)] if whole else []
    return [*views, x_BLHK[:, n - rest :].transpose(1, 2).unsqueeze(0)] if rest else views


def in_slots(x_SBHCK: torch.Tensor, n: int) -> list[torch.Tensor]:
    """The places of `in_chunks` in a packed stretch of n tokens."""
    whole, rest = divmod(n, x_SBHCK.shape[3])
    views = [x_SBHCK[:whole] if rest else x_SBHCK] if whole else []
    return [*views, x_SBHCK[whole:, :, :, :rest]] if rest else views
