"""Writing one shard: rows in, batches of 256 out, under a temporary name until it is complete."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

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
        self._hold(self._table(columns))

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
            self._hold(self._table({name: [row[name] for row in rows] for name in self.schema.names
                                    if all(name in row for row in rows)}))

    def _table(self, columns: Mapping[str, Any]) -> pa.Table:
        """Arrow columns of the schema's types; a value that does not fit is an error, never wrapped or cut."""
        arrays = []
        for field in self.schema:
            if field.name not in columns:
                raise ShardError(f"{self.path}: no value for column {field.name}; rows need {self.schema.names}")
            try:
                arrays.append(_array(columns[field.name], field.type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise ShardError(f"{self.path}: column {field.name}: {error}; expected {field.type}") from error
        return pa.Table.from_arrays(arrays, schema=self.schema)

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


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, np.ndarray) and values.ndim == 2 and pa.types.is_fixed_size_list(kind):
        if values.shape[1] != kind.list_size:
            raise ValueError(f"rows of {values.shape[1]} values")
        flat = pa.array(np.ascontiguousarray(values).reshape(-1), type=kind.value_type)
        return pa.FixedSizeListArray.from_arrays(flat, type=kind)
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        return values.cast(kind)
    if (isinstance(values, Sequence) and values and isinstance(values[0], np.ndarray)
            and (pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind))):
        flat = pa.array(np.concatenate(values), type=kind.value_type)
        if pa.types.is_fixed_size_list(kind):
            if any(len(value) != kind.list_size for value in values):
                raise ValueError(f"rows of {sorted({len(value) for value in values})} values")
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
