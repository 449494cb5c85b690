"""Documents from files: a .txt file is one document, a .jsonl line or a .parquet row another; .gz where it makes sense."""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from storage.errors import CorpusError
from storage.progress import progress
from tasks.parallel import parallel_map
from tasks.sources.bad_records import BadRecords
from tasks.specs import CorpusSpec

SUFFIXES = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz", ".parquet")


def resolve(spec: CorpusSpec) -> dict:
    """{file: sha256} of every file that matches, named from the folder that they have in common."""
    files = matched(spec)
    return {"files": {name: _sha256(path) for name, path in files.items()}}


def matched(spec: CorpusSpec) -> dict[str, Path]:
    """Files by name, sorted. Raises CorpusError for a glob without a match or a file that is of no known kind."""
    found: set[Path] = set()
    for pattern in spec.paths:
        hits = [Path(hit).absolute() for hit in glob.glob(os.path.expanduser(pattern), recursive=True)
                if os.path.isfile(hit)]
        if not hits:
            raise CorpusError(f"no file matches {pattern!r} (from {os.getcwd()}); give a glob such as 'data/*.jsonl.gz'")
        found.update(hits)
    for path in sorted(found):
        if not path.name.endswith(SUFFIXES):
            raise CorpusError(f"{path} is none of {', '.join(SUFFIXES)}; narrow `paths` to files that are")
    common = Path(os.path.commonpath([path.parent for path in found]))
    return {path.relative_to(common).as_posix(): path for path in sorted(found)}


def read(spec: CorpusSpec, tally: Counter[str]) -> Iterator[tuple[str, str]]:
    """Yield (file, text). A bad record raises CorpusError with file and record, or is counted by reason."""
    files = matched(spec)
    work = partial(_read_file, column=spec.text_column, policy=spec.on_bad_record)
    with progress(len(files), "read files", "files") as bar:
        for texts, counts in parallel_map(work, files.items(), describe="read files"):
            tally.update(counts)
            yield from texts
            bar.advance()


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_file(item: tuple[str, Path], column: str, policy: str) -> tuple[list[tuple[str, str]], Counter]:
    name, path = item
    bad = BadRecords(policy)
    if path.suffix == ".parquet":
        texts = _parquet(path, column, bad)
    elif path.name.removesuffix(".gz").endswith(".jsonl"):
        texts = _jsonl(path, column, bad)
    else:
        texts = _txt(path, bad)
    documents = [(name, text) for text in texts]
    return documents, Counter({"read: files": 1}) + Counter({f"bad: {reason}": n for reason, n in bad.counts.items()})


def _open(path: Path) -> io.BufferedIOBase:
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


def _txt(path: Path, bad: BadRecords) -> Iterator[str]:
    try:
        with _open(path) as file:
            yield file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad.add("not UTF-8", str(path), f"byte {error.start} is not UTF-8")
    except (OSError, EOFError, zlib.error) as error:
        bad.add("damaged file", str(path), f"cannot be read ({error})")


def _jsonl(path: Path, column: str, bad: BadRecords) -> Iterator[str]:
    try:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    text = _record(line, column, f"{path}, line {number}", bad)
                    if text is not None:
                        yield text
    except (OSError, EOFError, zlib.error) as error:
        bad.add("damaged file", str(path), f"cannot be read to its end ({error})")


def _record(line: bytes, column: str, where: str, bad: BadRecords) -> str | None:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return bad.add("not UTF-8", where, f"byte {error.start} of the line is not UTF-8")
    except ValueError as error:
        return bad.add("not JSON", where, f"not JSON ({error})")
    if not isinstance(record, dict) or column not in record:
        keys = ", ".join(map(repr, record)) if isinstance(record, dict) else f"a {type(record).__name__}"
        return bad.add("no text column", where, f"has no {column!r} (it has {keys}; see text_column)")
    return checked_text(record[column], column, where, bad)


def checked_text(value: object, column: str, where: str, bad: BadRecords) -> str | None:
    """The value if it is text that can be written as UTF-8."""
    if not isinstance(value, str):
        return bad.add("not text", where, f"{column!r} is a {type(value).__name__}, not text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            return bad.add("not Unicode", where, f"character {error.start} of {column!r} is half a surrogate pair")
    return value


def _parquet(path: Path, column: str, bad: BadRecords) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                names = ", ".join(map(repr, file.schema_arrow.names))
                return bad.add("no text column", str(path), f"has no column {column!r} (it has {names}; see text_column)")
            number = 0
            for batch in file.iter_batches(columns=[column]):
                for value in batch.column(0).to_pylist():
                    number += 1
                    text = checked_text(value, column, f"{path}, row {number}", bad)
                    if text is not None:
                        yield text
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        bad.add("damaged file", str(path), f"is not readable Parquet ({error})")
