"""Arrow shards: IPC *stream* files in record batches of 256 rows, written once and read by memory map.

The stream form (not the file form) is what `datasets.Dataset.from_file` maps too. Bytes are uncompressed, so a read
allocates nothing. Two shapes of table:

    fixed rows      tokens FixedSizeList<uint16|uint32>[N+1], starts List<int32>    `TokenShards`
    variable rows   any scalar and list columns                                     `RowTable`
"""

from __future__ import annotations

import bisect
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage.artifacts import file_sha256, read_manifest
from storage.errors import ShardError

BATCH_ROWS = 256


def token_schema(row_tokens: int, vocabulary: int) -> pa.Schema:
    """Schema of fixed rows of `row_tokens` (N+1) ids below `vocabulary`: uint16 if they fit, else uint32."""
    kind = pa.uint16() if vocabulary <= 1 << 16 else pa.uint32()
    return pa.schema([("tokens", pa.list_(kind, row_tokens)), ("starts", pa.list_(pa.int32()))])


class ShardWriter:
    """Writes one shard to `<path>.partial`; `close` gives it its name and returns {rows, sha256, size [bytes]}.

    Use it as a context manager: leaving by an exception removes the partial file.
    """

    def __init__(self, path: str | os.PathLike, schema: pa.Schema, batch_rows: int = BATCH_ROWS) -> None:
        self.path = Path(path)
        self.schema, self.batch_rows = schema, batch_rows
        self.partial = self.path.with_name(self.path.name + ".partial")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._sink = _HashingFile(self.partial)
        self._stream = pa.ipc.new_stream(self._sink, schema)
        self._waiting: list[pa.Table] = []
        self._rows: list[Mapping[str, Any]] = []
        self._held = 0
        self.rows = 0

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row: column -> value."""
        self._rows.append(row)
        if len(self._rows) >= self.batch_rows:
            self._take_rows()

    def extend(self, columns: Mapping[str, Any]) -> None:
        """Add many rows: column -> sequence or array. A 2-D numpy array fills a fixed-size list column."""
        self._take_rows()
        arrays = [_array(columns[field.name], field.type) for field in self.schema]
        self._hold(pa.Table.from_arrays(arrays, schema=self.schema))

    def close(self) -> dict[str, Any]:
        self._take_rows()
        self._write(final=True)
        self._stream.close()
        size, digest = self._sink.finish()
        os.replace(self.partial, self.path)
        return {"rows": self.rows, "sha256": digest, "size": size}

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind, error, traceback) -> None:
        if kind is None:
            if self.partial.exists():
                self.close()
        else:
            self._sink.close()
            self.partial.unlink(missing_ok=True)

    def _take_rows(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            arrays = [_array([row[field.name] for row in rows], field.type) for field in self.schema]
            self._hold(pa.Table.from_arrays(arrays, schema=self.schema))

    def _hold(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._held += table.num_rows
        self.rows += table.num_rows
        if self._held >= self.batch_rows:
            self._write(final=False)

    def _write(self, final: bool) -> None:
        if not self._held:
            return
        table = pa.concat_tables(self._waiting)
        whole = self._held if final else self._held - self._held % self.batch_rows
        for first in range(0, whole, self.batch_rows):
            piece = table.slice(first, min(self.batch_rows, whole - first)).combine_chunks()
            for batch in piece.to_batches():
                self._stream.write_batch(batch)
        self._waiting = [table.slice(whole)] if whole < self._held else []
        self._held -= whole


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
            verify_files(files)
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
            verify_files(files)
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


def verify_files(files: Iterable[Path]) -> None:
    """Compare files with the manifest beside or above them; those no manifest lists pass. `ShardError` if one differs.

    A file is read once per process and modification.
    """
    for path in files:
        entry = _recorded(path)
        if entry is None:
            continue
        facts = path.stat()
        found = _checksum(str(path), facts.st_ino, facts.st_mtime_ns, facts.st_size)
        if found != entry["sha256"]:
            raise ShardError(f"{path} is damaged: expected sha256 {entry['sha256']} ({entry['size']} bytes), found "
                             f"{found} ({facts.st_size} bytes); delete its artifact folder and run the stage again")


@lru_cache(maxsize=4096)
def _checksum(path: str, inode: int, modified: int, size: int) -> str:
    return file_sha256(path)


def _recorded(path: Path) -> dict[str, Any] | None:
    for folder in list(path.absolute().parents)[:3]:
        if (folder / "manifest.json").is_file():
            name = path.absolute().relative_to(folder).as_posix()
            return next((entry for entry in read_manifest(folder / "manifest.json").files if entry["path"] == name),
                        None)
    return None


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


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, np.ndarray) and values.ndim == 2 and pa.types.is_fixed_size_list(kind):
        flat = pa.array(np.ascontiguousarray(values).reshape(-1), type=kind.value_type)
        return pa.FixedSizeListArray.from_arrays(flat, type=kind)
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        return values.cast(kind)
    if (isinstance(values, Sequence) and values and isinstance(values[0], np.ndarray)
            and (pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind))):
        flat = pa.array(np.concatenate(values), type=kind.value_type)
        if pa.types.is_fixed_size_list(kind):
            return pa.FixedSizeListArray.from_arrays(flat, type=kind)
        offsets = np.concatenate([[0], np.cumsum([len(value) for value in values])]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), flat, type=kind)
    return pa.array(values, type=kind)


class _HashingFile:
    """A file object for pyarrow that hashes what passes through."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")
        self._digest = hashlib.sha256()
        self._size = 0

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data) -> int:
        self._digest.update(data)
        self._size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self._size

    def close(self) -> None:
        self._file.close()

    def finish(self) -> tuple[int, str]:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._size, self._digest.hexdigest()
