"""Turns what a user hands to `Layout` into Python integers, or says what is wrong with it.

Nothing here reads a device: lengths and masks come from the host, where the data loader made them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import torch

from kernels.errors import LayoutError

Document = tuple[int, int]
"""(n, m): real tokens of a document and how many of them are prefix."""


def refuse(field: str, row: int | None, got: object, expected: object, remedy: str) -> NoReturn:
    """Raise the one form of `LayoutError`: field, row, got, expected, remedy."""
    where = field if row is None else f"{field}, row {row}"
    raise LayoutError(f"{where}: got {got}, expected {expected}. {remedy}")


def integers(field: str, values: object, row: int | None = None) -> list[int]:
    """A flat list of Python integers from integers, numpy or a CPU integer tensor. Raises LayoutError."""
    if isinstance(values, torch.Tensor):
        if values.device.type != "cpu":
            refuse(field, row, f"a tensor on {values.device}", "Python or CPU integers",
                   "Lengths are facts of the host: keep them there instead of reading a device back.")
        values = values.tolist()
    elif isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, str) or not isinstance(values, Sequence):
        refuse(field, row, type(values).__name__, "a sequence of integers", "Give one integer for each row.")
    out = []
    for value in values:
        if isinstance(value, (torch.Tensor, np.generic)):
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, int):
            refuse(field, row, repr(value), "an integer", "Give counts of tokens, one for each row.")
        out.append(value)
    return out


def is_nested(values: object) -> bool:
    """Whether `values` lists one sequence per row rather than one number."""
    return isinstance(values, (list, tuple)) and any(
        isinstance(v, (list, tuple, np.ndarray)) or (isinstance(v, torch.Tensor) and v.ndim > 0) for v in values)


def check_lengths(field: str, lengths_per_row: Sequence[Sequence[int]], L: int) -> None:
    """Raise LayoutError for a negative length or a row longer than its L slots."""
    for row, lengths in enumerate(lengths_per_row):
        for n in lengths:
            if n < 0:
                refuse(field, row, n, "0 or more", "A length counts real tokens.")
        if sum(lengths) > L:
            refuse(field, row, f"{sum(lengths)} tokens", f"at most L = {L}", "Cut the row or allocate more slots.")


def check_size(field: str, value: object) -> int:
    """A batch size or number of slots: an integer of at least 0. Raises LayoutError."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        refuse(field, None, repr(value), "an integer of 0 or more", "Sizes are host integers.")
    return int(value)


def prefix_lengths(M: object, rows: Sequence[Sequence[Document]], segment_BL: np.ndarray | None) -> list[list[int]]:
    """M for every document: from one integer, one per row, one per document (nested or flat), or one per slot.

    segment_BL (int, -1 = pad) is needed for the per-slot form alone, where M may not change inside a document.
    """
    def checked(row: int, value: int) -> int:
        if value < 0:
            refuse("prefix", row, value, "0 or more", "0 means causal.")
        return value

    if isinstance(M, (int, np.integer)) and not isinstance(M, bool):
        return [[checked(b, int(M))] * len(documents) for b, documents in enumerate(rows)]
    if isinstance(M, (torch.Tensor, np.ndarray)) and M.ndim == 2:
        return _prefix_per_slot(M, rows, segment_BL)
    if is_nested(M):
        nested = [integers("prefix", values, b) for b, values in enumerate(M)]
        if len(nested) != len(rows):
            refuse("prefix", None, f"{len(nested)} rows", f"{len(rows)} rows", "Give one list for each row.")
        for b, (values, documents) in enumerate(zip(nested, rows)):
            if len(values) != len(documents):
                refuse("prefix", b, f"{len(values)} values", f"{len(documents)} documents", "Give one per document.")
        return [[checked(b, value) for value in values] for b, values in enumerate(nested)]
    flat = integers("prefix", M)
    if len(flat) == len(rows):
        return [[checked(b, flat[b])] * len(documents) for b, documents in enumerate(rows)]
    if len(flat) == sum(len(documents) for documents in rows):
        source = iter(flat)
        return [[checked(b, next(source)) for _ in documents] for b, documents in enumerate(rows)]
    refuse("prefix", None, f"{len(flat)} values", f"1, {len(rows)} (rows) or one for each document",
           "Give an integer, one per row, or one per document.")


def _prefix_per_slot(M: torch.Tensor | np.ndarray, rows: Sequence[Sequence[Document]],
                     segment_BL: np.ndarray | None) -> list[list[int]]:
    if isinstance(M, torch.Tensor):
        if M.device.type != "cpu":
            refuse("prefix", None, f"a tensor on {M.device}", "CPU integers", "Move it to the host first.")
        M = M.numpy()
    if segment_BL is None or M.shape != segment_BL.shape:
        refuse("prefix", None, f"shape {tuple(M.shape)}", "(B, L)", "Give one value for each slot.")
    out: list[list[int]] = []
    for b, documents in enumerate(rows):
        out.append([])
        for s, (n, _) in enumerate(documents):
            values = sorted(set(M[b][segment_BL[b] == s].tolist()))
            if len(values) > 1:
                refuse("prefix", b, f"{values} inside document {s}", "one value over a document",
                       "The prefix length belongs to the document, not to the token.")
            if values and values[0] < 0:
                refuse("prefix", b, values[0], "0 or more", "0 means causal.")
            out[-1].append(values[0] if n else 0)
    return out
