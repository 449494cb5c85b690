"""Layout: which slots of a batch are real, where documents begin, and how far each document's prefix reaches.

Letters: B rows, L slots, N documents, W window. A batch is a list of documents; pads are not part of it
(contract 0). Facts about sizes stay Python values from the constructor on, so that no kernel ever waits for a
device; tensors are made once, when first asked for, and shared by every layer that uses the same Layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import FrozenInstanceError
from typing import Any, TypeVar

import numpy as np
import torch

from kernels.layout_input import (
    Document,
    check_lengths,
    check_size,
    integers,
    is_nested,
    prefix_lengths,
    refuse,
)
from kernels.layout_queries import LayoutQueries, fill_slots

T = TypeVar("T")


class Layout(LayoutQueries):
    """Frozen description of a (B, L) batch. Fields and laws: contract 1.

    Build it with `dense`, `right_padded`, `left_padded`, `packed` or `from_mask`; the class itself takes the three
    tensors (CPU, int32) and checks that they agree. Host facts: `shape`, `aligned` (every row's real tokens come
    first), `padded`, `packed` (some row holds more than one document), `prefixed` (some m > 0), `lengths` (real
    tokens of each row), `documents` ((row, n, m), ...), `longest` (tokens of the longest document).
    `offset_B` is None, or the tokens each row had before (`after`).
    """

    shape: tuple[int, int]
    aligned: bool
    padded: bool
    prefixed: bool
    lengths: tuple[int, ...]
    documents: tuple[tuple[int, int, int], ...]
    longest: int
    device: torch.device
    muted_BL: torch.Tensor | None
    offset_B: torch.Tensor | None

    def __init__(self, segment_BL: torch.Tensor, position_BL: torch.Tensor, prefix_BL: torch.Tensor,
                 muted_BL: torch.Tensor | None = None):
        segment = np.asarray(segment_BL.cpu())
        position = np.asarray(position_BL.cpu())
        if segment.ndim != 2 or position.shape != segment.shape or tuple(prefix_BL.shape) != segment.shape:
            refuse("shape", None, [tuple(t.shape) for t in (segment_BL, position_BL, prefix_BL)],
                   "three times (B, L)", "Give one value for each slot.")
        rows = [_row_of(b, segment[b], position[b]) for b in range(segment.shape[0])]
        self._set(rows, segment.shape[1], segment >= 0, segment_BL.device)
        wanted = prefix_lengths(np.asarray(prefix_BL.cpu()), rows, segment)
        for b, (documents, prefixes) in enumerate(zip(rows, wanted)):
            for (n, _), m in zip(documents, prefixes):
                if m > n:
                    refuse("prefix", b, m, f"at most the document's {n} tokens", "Use with_prefix, which clips.")
        self._set([[(n, m) for (n, _), m in zip(*pair)] for pair in zip(rows, wanted)], segment.shape[1],
                  segment >= 0, segment_BL.device)
        if muted_BL is not None:
            self.__dict__["muted_BL"] = self.with_muted(muted_BL).muted_BL

    def _set(self, rows: Sequence[Sequence[Document]], L: int, real_BL: np.ndarray | None, device: Any,
             muted_BL: torch.Tensor | None = None, offset_B: torch.Tensor | None = None) -> None:
        lengths = tuple(sum(n for n, _ in documents) for documents in rows)
        if real_BL is not None and _is_aligned(real_BL, lengths):
            real_BL = None
        self.__dict__.update(
            shape=(len(rows), L), aligned=real_BL is None, padded=any(n != L for n in lengths),
            packed=any(len(documents) > 1 for documents in rows), lengths=lengths,
            prefixed=any(m > 0 for documents in rows for _, m in documents),
            documents=tuple((b, n, m) for b, documents in enumerate(rows) for n, m in documents),
            longest=max((n for documents in rows for n, _ in documents), default=0),
            device=torch.device(device or "cpu"), muted_BL=muted_BL, offset_B=offset_B,
            _rows=tuple(tuple(documents) for documents in rows), _real=real_BL, _cache={})

    @classmethod
    def _make(cls, *args: Any, **options: Any) -> Layout:
        layout = cls.__new__(cls)
        layout._set(*args, **options)
        return layout

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"a Layout is frozen: {name} cannot change; make another one")

    def __repr__(self) -> str:
        facts = [name for name in ("aligned", "padded", "packed", "prefixed") if getattr(self, name)]
        return f"Layout({self.shape[0]}x{self.shape[1]}, {', '.join(facts)}, {self.device})"

    def cached(self, key: Any, build: Callable[[], T]) -> T:
        """The value under `key`, built on first use; layers that share this Layout share the value."""
        cache = self.__dict__["_cache"]
        if key not in cache:
            with torch.inference_mode(False):  # it may serve a training later
                cache[key] = build()
        return cache[key]

    # ---------------------------------------------------------------------------------------------- constructors
    @classmethod
    def dense(cls, B: int, L: int, device: Any = None) -> Layout:
        """Every slot real, one document a row."""
        B, L = check_size("B", B), check_size("L", L)
        return cls._make([((L, 0),)] * B, L, None, device)

    @classmethod
    def right_padded(cls, lengths: Any, L: int | None = None, device: Any = None) -> Layout:
        """One document a row, its tokens first. L defaults to the longest row."""
        lengths = integers("lengths", lengths)
        L = max(lengths, default=0) if L is None else check_size("L", L)
        check_lengths("lengths", [[n] for n in lengths], L)
        return cls._make([((n, 0),) for n in lengths], L, None, device)

    @classmethod
    def left_padded(cls, lengths: Any, L: int | None = None, device: Any = None) -> Layout:
        """One document a row, its tokens last. L defaults to the longest row."""
        lengths = integers("lengths", lengths)
        L = max(lengths, default=0) if L is None else check_size("L", L)
        check_lengths("lengths", [[n] for n in lengths], L)
        real_BL = np.arange(L)[None, :] >= L - np.asarray(lengths, np.int64).reshape(-1, 1)
        return cls._make([((n, 0),) for n in lengths], L, real_BL, device)

    @classmethod
    def packed(cls, lengths_per_row: Sequence[Any], L: int | None = None, device: Any = None) -> Layout:
        """Several documents a row, one after the other; a row may end in pads.

        On the class this is the constructor; on a Layout, `packed` is the host fact of that name.
        """
        rows = [integers("packed lengths", lengths, b) or [0] for b, lengths in enumerate(lengths_per_row)]
        L = max(map(sum, rows), default=0) if L is None else check_size("L", L)
        check_lengths("packed lengths", rows, L)
        return cls._make([[(n, 0) for n in lengths] for lengths in rows], L, None, device)

    @classmethod
    def from_mask(cls, real_BL: torch.Tensor, lengths_per_row: Sequence[Any] | None = None,
                  device: Any = None) -> Layout:
        """Real slots given one by one (bool, CPU; pads may stand anywhere), documents by their lengths in order."""
        if not isinstance(real_BL, torch.Tensor) or real_BL.dtype != torch.bool or real_BL.ndim != 2:
            got = f"{real_BL.dtype} {tuple(real_BL.shape)}" if isinstance(real_BL, torch.Tensor) else type(real_BL)
            refuse("mask", None, got, "a bool tensor (B, L)", "Use `mask != 0`, True = real.")
        if real_BL.device.type != "cpu":
            refuse("mask", None, f"a tensor on {real_BL.device}", "a CPU tensor", "Build it on the host, then `to`.")
        real = real_BL.numpy().copy()
        found = real.sum(1).tolist()
        if lengths_per_row is None:
            return cls._make([((n, 0),) for n in found], real.shape[1], real, device)
        if len(lengths_per_row) != len(found):
            refuse("packed lengths", None, f"{len(lengths_per_row)} rows", f"{len(found)} rows", "One list a row.")
        if not is_nested(lengths_per_row):
            lengths_per_row = [[n] for n in integers("packed lengths", lengths_per_row)]
        rows = [integers("packed lengths", lengths, b) or [0] for b, lengths in enumerate(lengths_per_row)]
        check_lengths("packed lengths", rows, real.shape[1])
        for b, lengths in enumerate(rows):
            if sum(lengths) != found[b]:
                refuse("packed lengths", b, f"a sum of {sum(lengths)}", f"the mask's {found[b]} real slots",
                       "Document lengths and mask must tell the same story.")
        return cls._make([[(n, 0) for n in lengths] for lengths in rows], real.shape[1], real, device)

    # ------------------------------------------------------------------------------------------------ transforms
    def _like(self, **changes: Any) -> Layout:
        options = {"muted_BL": self.muted_BL, "offset_B": self.offset_B, "rows": self._rows, "L": self.shape[1],
                   "real_BL": self._real, "device": self.device} | changes
        return type(self)._make(**options)

    def with_prefix(self, M: Any, keep_out: int = 0) -> Layout:
        """Each document's prefix m = min(M, n - keep_out), at least 0. M: an integer, per row, or per document."""
        if isinstance(keep_out, bool) or not isinstance(keep_out, int) or keep_out < 0:
            refuse("keep_out", None, repr(keep_out), "an integer of 0 or more", "It counts tokens kept as suffix.")
        segment = fill_slots(self)[0] if getattr(M, "ndim", 0) == 2 else None
        wanted = prefix_lengths(M, self._rows, segment)
        return self._like(rows=[[(n, max(0, min(m, n - keep_out))) for (n, _), m in zip(documents, prefixes)]
                                for documents, prefixes in zip(self._rows, wanted)])

    def with_muted(self, muted_BL: torch.Tensor) -> Layout:
        """Mark real tokens that the released prefix attention zeroes before its feature map (contract 3)."""
        if muted_BL.dtype != torch.bool or tuple(muted_BL.shape) != self.shape:
            refuse("muted", None, f"{muted_BL.dtype} {tuple(muted_BL.shape)}", f"bool {self.shape}", "One per slot.")
        if self.padded or self.packed:
            refuse("muted", None, "a padded or packed layout", "real tokens only, one document a row",
                   "The released mask knows no pads: group prompts of one length.")
        return self._like(muted_BL=muted_BL.to(self.device))

    def align(self) -> tuple[torch.Tensor, Layout]:
        """(index_BL int64, layout): slot j of the aligned row is slot index_BL[b, j] here; real tokens first."""
        if self.aligned:
            return self.cached("identity", lambda: torch.arange(self.shape[1], device=self.device).expand(
                self.shape)), self
        return self.cached("align", self._align)

    def _align(self) -> tuple[torch.Tensor, Layout]:
        order = np.argsort(~self._real, axis=1, kind="stable")
        return torch.from_numpy(order).to(self.device), self._like(real_BL=None)

    def unpack(self) -> tuple[torch.Tensor, Layout]:
        """(index_NL int64, layout): one document per row, aligned; token j of document s is flat slot index_NL[s, j].

        Flat slots count b·L + i over this layout; beyond a document's end the index is 0 and the slot a pad.
        """
        return self.cached("unpack", self._unpack)

    def _unpack(self) -> tuple[torch.Tensor, Layout]:
        lengths = np.asarray([n for _, n, _ in self.documents], np.int64)
        index = np.zeros((len(lengths), self.longest), np.int64)
        # the n-th real slot in row-major order is the n-th token in document order
        index[np.arange(self.longest)[None, :] < lengths[:, None]] = np.flatnonzero(fill_slots(self)[0] >= 0)
        layout = self._like(rows=[((n, m),) for _, n, m in self.documents], L=self.longest, real_BL=None)
        return torch.from_numpy(index).to(self.device), layout

    def after(self, count_B: torch.Tensor) -> Layout:
        """The same slots when each row already holds count_B tokens (int64): positions go on, m = 0 where any."""
        if self.packed:
            refuse("documents", None, "packed rows", "one document a row", "Use unpack() first.")
        if tuple(count_B.shape) != (self.shape[0],):
            refuse("count", None, f"shape {tuple(count_B.shape)}", f"({self.shape[0]},)", "One count a row.")
        count_B = count_B.to(self.device)
        return self._like(offset_B=count_B if self.offset_B is None else self.offset_B + count_B)

    def cut(self, lengths: Any) -> Layout:
        """Keep the first `lengths` real tokens of each row; the slots behind them become pads, the shape stays.

        Raises LayoutError where a cut would fall inside a prefix: the prefix is read as a whole.
        """
        keep = [lengths] * self.shape[0] if isinstance(lengths, int) else integers("cut", lengths)
        if len(keep) != self.shape[0]:
            refuse("cut", None, f"{len(keep)} values", f"{self.shape[0]} rows", "Give one length a row.")
        rows: list[list[Document]] = []
        for b, (left, documents) in enumerate(zip(keep, self._rows)):
            if not 0 <= left <= self.lengths[b]:
                refuse("cut", b, left, f"0 to {self.lengths[b]}", "Rows can only be shortened.")
            rows.append([])
            for n, m in documents:
                n, left = min(n, left), left - min(n, left)
                if n < m:
                    refuse("cut", b, f"{n} tokens", f"at least the prefix, {m}", "Set the prefix after the cut.")
                rows[-1].append((n, m))
        if self.muted_BL is not None and list(keep) != list(self.lengths):
            refuse("muted", None, "a cut", "whole rows", "The released mask knows no pads.")
        if self._real is None:
            return self._like(rows=rows)
        kept = self._real & (np.cumsum(self._real, axis=1) <= np.asarray(keep).reshape(-1, 1))
        return self._like(rows=rows, real_BL=kept)

    def to(self, device: Any) -> Layout:
        """The same layout with its tensors on `device`."""
        if torch.device(device) == self.device:
            return self
        moved = {name: None if getattr(self, name) is None else getattr(self, name).to(device)
                 for name in ("muted_BL", "offset_B")}
        return self._like(device=device, **moved)


def _is_aligned(real_BL: np.ndarray, lengths: Sequence[int]) -> bool:
    first = np.arange(real_BL.shape[1])[None, :] < np.asarray(lengths, np.int64).reshape(-1, 1)
    return bool((real_BL == first).all())


def _row_of(row: int, segment_L: np.ndarray, position_L: np.ndarray) -> list[Document]:
    """Documents of one row, from its segments and positions. Raises LayoutError where the two contradict."""
    real = segment_L >= 0
    found, where = segment_L[real], position_L[real]
    if position_L[~real].any():
        refuse("position", row, "non-zero at a pad", "0", "Pads take no position.")
    if (np.diff(found) < 0).any():
        refuse("segment", row, found.tolist(), "documents one after the other", "Number them in order from 0.")
    lengths = np.bincount(found, minlength=1).tolist()
    wanted = np.concatenate([np.arange(n) for n in lengths])
    if not np.array_equal(where, wanted):
        refuse("position", row, where.tolist(), wanted.tolist(), "Positions count from each document's first token.")
    return [(n, 0) for n in lengths]
