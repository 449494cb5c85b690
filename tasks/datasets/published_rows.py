"""Rows of a published cloze set: from files (.jsonl, .parquet) of its fields, or from the hub or a folder of `datasets`.

A set whose name ends in 512, 1024 or 2048 is that column, others are the column `all`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from storage.errors import CorpusError
from tasks.datasets.fields import field, guarded
from tasks.datasets.formats import Entries, Format
from tasks.datasets.passages import COLUMNS
from tasks.datasets.published import Rows
from tasks.datasets.records import Record, Unusable
from tasks.datasets.source_files import Files, first_line, json_lines, plain_name
from tasks.specs import QuestionsSpec


def format_of(rows: Rows) -> Format:
    """The format `published`: files that hold the fields of a published set."""
    def read(files: Files, notes: Counter) -> Entries:
        for name, path in files.items():
            for number, (where, row) in enumerate(_file_rows(path)):
                yield from entry(rows, row, where, f"{name}/{number}", column_of(name))

    def fits(files: Files) -> bool:
        return all(set(rows.required) <= set(_fields(path)) for path in files.values())

    return Format("published", f"JSON lines or Parquet with {', '.join(rows.required)}", (".jsonl", ".parquet"), fits, read,
                  brings_cloze=True)


def from_dataset(rows: Rows, spec: QuestionsSpec) -> Entries:
    """The rows of `spec.dataset` at the revision that names the artifact. Raises `CorpusError` at once, before any row is read."""
    from tasks.sources.huggingface import _load

    found = _load(spec)
    missing = [name for name in rows.required if name not in found.column_names]
    if missing:
        raise CorpusError(f"data set {spec.dataset!r} has no field {', '.join(map(repr, missing))} (it has "
                          f"{', '.join(found.column_names)}); task {spec.task!r} reads {', '.join(rows.required)}")
    name = Path(spec.dataset).name
    return (made for number, row in enumerate(found)
            for made in entry(rows, row, f"{spec.dataset}, row {number}", f"{name}/{number}", column_of(name)))


def entry(rows: Rows, row: Any, where: str, identifier: str, column: str) -> Entries:
    """The record of one row, or what is wrong with it."""
    if isinstance(row, Unusable):
        yield row
    else:
        yield from guarded(where, _record, rows, row, identifier, column)


def _record(rows: Rows, row: Mapping[str, Any], identifier: str, column: str) -> Iterator[Record]:
    for name in rows.required:
        field(row, name)
    yield rows.record(row, identifier, column)


def column_of(name: str) -> str:
    """`based_nq_1024` is the column 1024."""
    ending = re.search(r"(?:^|[^0-9])(\d+)$", re.sub(r"\.(?:jsonl|parquet)(?:\.gz)?$", "", name))
    return ending[1] if ending and ending[1] in COLUMNS else "all"


def _fields(path: Path) -> Iterator[str]:
    if not plain_name(path).endswith(".parquet"):
        first = first_line(path)
        return iter(first) if isinstance(first, Mapping) else iter(())
    return iter(_parquet(path).schema_arrow.names)


def _file_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """(where, row) of a file."""
    if not plain_name(path).endswith(".parquet"):
        yield from json_lines(path)
        return
    number = 0
    for batch in _parquet(path).iter_batches(batch_size=256):
        for row in batch.to_pylist():
            number += 1
            yield f"{path}, row {number}", row


def _parquet(path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise CorpusError(f"{path}: is no readable Parquet ({error}); fetch it again") from error
