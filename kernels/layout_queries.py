"""What kernels and mixers ask of a Layout: tensors made once on its device, then shared (contract 1).

Letters: B rows, L slots, K rotary width, W window. `position` counts real tokens of the slot's own document.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from kernels.layout import Layout


class LayoutQueries:
    """Mixed into `Layout`; every tensor is cached under its name."""

    shape: tuple[int, int]
    aligned: bool
    padded: bool
    lengths: tuple[int, ...]
    device: torch.device
    offset_B: torch.Tensor | None
    cached: Callable[..., Any]

    # ---------------------------------------------------------------------------------------------------- fields
    @property
    def segment_BL(self) -> torch.Tensor:
        """int32 (B, L): number of the slot's document in its row; -1 = pad."""
        return self._field(0)

    @property
    def position_BL(self) -> torch.Tensor:
        """int32 (B, L): real tokens of the same document before this one, earlier calls included; 0 at pads."""
        if self.offset_B is None:
            return self._field(1)
        return self.cached("position", lambda: torch.where(
            self.real_BL, self._field(1) + self.offset_B[:, None], 0).to(torch.int32))

    @property
    def prefix_BL(self) -> torch.Tensor:
        """int32 (B, L): prefix length m of the slot's document; 0 = causal, at pads, and once tokens came before."""
        if self.offset_B is None:
            return self._field(2)
        return self.cached("prefix", lambda: torch.where(self.offset_B[:, None] > 0, 0, self._field(2)))

    def _field(self, which: int) -> torch.Tensor:
        return self.cached("fields", lambda: torch.from_numpy(fill_slots(self)).to(self.device))[which]

    # --------------------------------------------------------------------------------------------------- queries
    @property
    def plain(self) -> bool:
        """Host fact: aligned, one document a row, nothing before: slot i of every row is position i or a pad."""
        return self.aligned and not self.packed and self.offset_B is None

    @property
    def real_BL(self) -> torch.Tensor:
        """bool (B, L): not a pad."""
        return self.cached("real", lambda: self.segment_BL >= 0)

    @property
    def lengths_B(self) -> torch.Tensor:
        """int64 (B,): real tokens of each row in this layout."""
        return self.cached("lengths", lambda: torch.tensor(self.lengths, dtype=torch.int64, device=self.device))

    @property
    def prefix_B(self) -> torch.Tensor:
        """int64 (B,): prefix length of each row's only document (packed layouts have no such number)."""
        return self.cached("prefix_B", self._prefix_B)

    def _prefix_B(self) -> torch.Tensor:
        prefix = torch.tensor([documents[0][1] for documents in self._rows], dtype=torch.int64, device=self.device)
        return prefix if self.offset_B is None else torch.where(self.offset_B > 0, 0, prefix)

    @property
    def start_BL(self) -> torch.Tensor:
        """bool (B, L): the first token of its document. Position 0 alone is not enough: pads have it too."""
        return self.cached("start", lambda: self.real_BL & (self.position_BL == 0))

    @property
    def in_prefix_BL(self) -> torch.Tensor:
        """bool (B, L): a real token inside its document's prefix."""
        return self.cached("in_prefix", lambda: self.real_BL & (self.position_BL < self.prefix_BL))

    def reaches_BL(self, offset: int) -> torch.Tensor:
        """bool (B, L): in aligned rows the slot `offset` earlier belongs to the same document."""
        return self.cached(("reaches", offset), lambda: self.position_BL >= offset)

    def chunk_BL(self, chunk: int) -> torch.Tensor:
        """int32 (B, L): number of the semantic chunk of `chunk` tokens, anchored at the document's first token."""
        return self.cached(("chunk", chunk), lambda: self.position_BL // chunk)

    @property
    def cu_documents(self) -> torch.Tensor:
        """int32 (N+1,): running sum of document lengths in order, for variable-length kernels."""
        return self.cached("cu", lambda: torch.tensor(
            np.cumsum([0] + [n for _, n, _ in self.documents]), dtype=torch.int32, device=self.device))

    def tail_index(self, k: int) -> torch.Tensor:
        """int64 (B, k): where the last k real entries of each row stand in [k cached | L new] along the slots."""
        return self.cached(("tail", k), lambda: self._tail_index(k))

    def _tail_index(self, k: int) -> torch.Tensor:
        last = self.lengths_B[:, None] + torch.arange(k, device=self.device)
        if self.aligned:
            return last
        index_BL, _ = self.align()
        cache = torch.arange(k, device=self.device).expand(self.shape[0], k)
        return torch.cat([cache, index_BL + k], dim=1).gather(1, last)

    @property
    def restore_BL(self) -> torch.Tensor:
        """int64 (B, L): inverse of align's index; slot i here is slot restore_BL[b, i] of the aligned row."""
        return self.cached("restore", lambda: torch.argsort(self.align()[0], dim=1))

    @property
    def repack_BL(self) -> torch.Tensor:
        """int64 (B, L): inverse of unpack's index; flat slot of the unpacked (N, longest) rows; 0 at pads."""
        return self.cached("repack", self._repack)

    def _repack(self) -> torch.Tensor:
        segment, position, _ = fill_slots(self)
        first = np.cumsum([0] + [len(documents) for documents in self._rows])[:-1, None]
        flat = (first + segment).astype(np.int64) * self.longest + position
        return torch.from_numpy(np.where(segment >= 0, flat, 0)).to(self.device)

    def rope(self, width: int, base: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin) of position * base^(-2i/width), each (1 or B, L, width/2); one row where all rows agree.

        Angles are formed in float64 and then cast: in float32 they are off by 1.5e-3 at position 131,071.
        """
        return self.cached(("rope", width, base, dtype), lambda: self._rope(width, base, dtype))

    def _rope(self, width: int, base: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        position = torch.arange(self.shape[1], device=self.device)[None] if self.plain else self.position_BL
        rate = base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=self.device) / width)
        angle = position.to(torch.float64)[..., None] * rate
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def visible_BLL(self, window: int | None = None, prefix: bool = False) -> torch.Tensor:
        """bool (1 or B, L query, L key), aligned rows: key of the same document, not later, within `window` keys.

        `prefix` adds the keys inside the document's prefix. Queries that are pads may see keys: they are zeroed.
        """
        prefix = prefix and self.prefixed
        return self.cached(("visible", window, prefix), lambda: self._visible(window, prefix))

    def _visible(self, window: int | None, prefix: bool) -> torch.Tensor:
        slot = torch.arange(self.shape[1], device=self.device)
        back = (slot[:, None] - slot[None, :])[None]
        visible = back >= 0
        if window is not None:
            visible = visible & (back < window)
        if self.packed:
            same = self.segment_BL[:, :, None] == self.segment_BL[:, None, :]
            visible = visible & same
            return visible | (same & self.in_prefix_BL[:, None, :]) if prefix else visible
        return visible | self.in_prefix_BL[:, None, :] if prefix else visible


def fill_slots(layout: Layout) -> np.ndarray:
    """int32 (3, B, L): segment, position and prefix of every slot, before any `after`."""
    rows, (B, L) = layout._rows, layout.shape
    out = np.zeros((3, B, L), np.int32)
    segment, position, prefix = out
    if layout.packed:
        segment[:] = -1
        for b, documents in enumerate(rows):
            numbers = [n for n, _ in documents]
            total = sum(numbers)
            first = np.cumsum([0] + numbers[:-1])
            segment[b, :total] = np.repeat(np.arange(len(numbers)), numbers)
            position[b, :total] = np.arange(total) - np.repeat(first, numbers)
            prefix[b, :total] = np.repeat([m for _, m in documents], numbers)
    else:
        slot = np.arange(L, dtype=np.int32)[None, :]
        real = slot < np.asarray(layout.lengths, np.int64).reshape(-1, 1)
        segment[:] = np.where(real, 0, -1)
        position[:] = np.where(real, slot, 0)
        if layout.prefixed:
            prefix[:] = np.where(real, np.asarray([documents[0][1] for documents in rows]).reshape(-1, 1), 0)
    if layout._real is not None:
        order = np.argsort(~layout._real, axis=1, kind="stable")
        scattered = np.empty_like(out)
        for source, target in zip(out, scattered):
            np.put_along_axis(target, order, source, axis=1)
        return scattered
    return out
