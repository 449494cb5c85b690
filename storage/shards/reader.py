"""Reading shards by memory map: `TokenShards` for fixed rows, `RowTable` for rows of variable length."""

from __future__ import annotations

import bisect
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage.errors import ShardError
from storage.shards.verification import verify_files, verify_folder


class TokenShards:
    """Random access to fixed rows over all `*.arrow` files of a folder, in name order.

    row(i)     np.ndarray[N+1], uint16 or uint32: a view of the mapped file
    starts(i)  np.ndarray, int32: where documents start inside row i
    verify     compare every file with its checksum in the manifest (of this folder or the two above) first
    """

    def __init__(self, folder: str | os.PathLike, verify: bool = True) -> None:
        self.folder = Path(folder)
        files = _arrow_files(self.folder)
        if verify:
            verify_folder(self.folder)
        self._ends: list[int] = []
        self._tokens: list[np.ndarray] = []
        self._starts: list[tuple[np.ndarray, np.ndarray]] = []
        rows, self.row_tokens = 0, 0
        for path in files:
            for batch in _batches(path):
                tokens = _fixed(batch, path)
                if self.row_tokens not in (0, tokens.shape[1]):
                    raise ShardError(f"{path} has rows of {tokens.shape[1]} tokens, others here have "
                                     f"{self.row_tokens}; they come from different runs: delete the folder and rerun")
                self.row_tokens = tokens.shape[1]
                rows += len(tokens)
                self._ends.append(rows)
                self._tokens.append(tokens)
                self._starts.append(_lists(batch.column("starts")))
        self._count = rows

    def __len__(self) -> int:
        return self._count

    def __reduce__(self):
        return TokenShards, (self.folder, False)

    def row(self, i: int) -> np.ndarray:
        batch, inside = self._find(i)
        return self._tokens[batch][inside]

    def starts(self, i: int) -> np.ndarray:
        batch, inside = self._find(i)
        values, offsets = self._starts[batch]
        return values[offsets[inside]:offsets[inside + 1]]

    def _find(self, i: int) -> tuple[int, int]:
        if not 0 <= i < self._count:
            raise IndexError(f"row {i} of {self._count} in {self.folder}")
        batch = bisect.bisect_right(self._ends, i)
        return batch, i - (self._ends[batch - 1] if batch else 0)


class RowTable:
    """Rows of variable length from one `.arrow` file or all of a folder, mapped.

    column(name)  ints, floats, booleans: one numpy array; lists of those: (values, offsets), row i is
                  values[offsets[i]:offsets[i+1]]; anything else: a list of Python values
    row(i)        one row as a dict, lists as numpy arrays
    """

    def __init__(self, path: str | os.PathLike, verify: bool = True) -> None:
        self.path = Path(path)
        files = [self.path] if self.path.is_file() else _arrow_files(self.path)
        if verify:
            verify_files(files) if self.path.is_file() else verify_folder(self.path)
        self.table = pa.concat_tables([pa.Table.from_batches(_batches(file), schema=_schema(file)) for file in files])
        self._columns: dict[str, Any] = {}

    def __len__(self) -> int:
        return self.table.num_rows

    def __reduce__(self):
        return RowTable, (self.path, False)

    @property
    def names(self) -> list[str]:
        return self.table.column_names

    def column(self, name: str) -> Any:
        if name not in self._columns:
            if name not in self.table.column_names:
                raise ShardError(f"{self.path} has no column {name!r}; it has {', '.join(self.table.column_names)}")
            self._columns[name] = _column(self.table.column(name))
        return self._columns[name]

    def row(self, i: int) -> dict[str, Any]:
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} of {len(self)} in {self.path}")
        found = {}
        for name in self.table.column_names:
            column = self.column(name)
            if isinstance(column, tuple):
                found[name] = column[0][column[1][i]:column[1][i + 1]]
            else:
                value = column[i]
                found[name] = value.item() if isinstance(value, np.generic) else value
        return found


def _arrow_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.arrow"))
    if not files:
        raise ShardError(f"no .arrow files in {folder}; expected the folder of one split of an artifact")
    return files


def _batches(path: Path) -> list[pa.RecordBatch]:
    try:
        return list(pa.ipc.open_stream(pa.memory_map(str(path))))
    except (pa.ArrowInvalid, OSError) as error:
        raise ShardError(f"{path} is not an Arrow stream: {error}; delete its artifact folder and run the stage "
                         "again") from error


def _schema(path: Path) -> pa.Schema:
    return pa.ipc.open_stream(pa.memory_map(str(path))).schema


def _fixed(batch: pa.RecordBatch, path: Path) -> np.ndarray:
    """The tokens of a batch as an array [rows, N+1] over the mapped bytes."""
    position = batch.schema.get_field_index("tokens")
    if position < 0 or not pa.types.is_fixed_size_list(batch.schema.field(position).type):
        raise ShardError(f"{path} has no fixed-size `tokens` column (found {batch.schema.names}); it is not a token "
                         "shard")
    column = batch.column(position)
    return column.flatten().to_numpy(zero_copy_only=True).reshape(len(column), column.type.list_size)


def _lists(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """(values, offsets) of a list array without copying."""
    return column.values.to_numpy(zero_copy_only=True), column.offsets.to_numpy(zero_copy_only=True)


def _numeric(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _column(column: pa.ChunkedArray) -> Any:
    kind = column.type
    if _numeric(kind) or pa.types.is_boolean(kind):
        return column.to_numpy()
    if pa.types.is_list(kind) and _numeric(kind.value_type):
        values, offsets, total = [], [np.zeros(1, dtype=np.int64)], 0
        for chunk in column.chunks:
            found, ends = _lists(chunk)
            values.append(found[ends[0]:ends[-1]])
            offsets.append(ends[1:].astype(np.int64) - ends[0] + total)
            total += int(ends[-1] - ends[0])
        empty = np.zeros(0, dtype=kind.value_type.to_pandas_dtype())
        return np.concatenate(values) if values else empty, np.concatenate(offsets)
    return column.to_pylist()
