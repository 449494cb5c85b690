"""Files of question-answer data: which ones a path means, and what is in them. `.gz` is read wherever it stands."""

from __future__ import annotations

import glob
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

from storage.errors import CorpusError
from tasks.datasets.records import Unusable

LOOK = 64      # lines that may be broken before a file is taken for something else
Files = dict[str, Path]      # name from the folder that all have in common -> place, sorted by name


def matched(paths: Sequence[str], suffixes: Sequence[str]) -> Files:
    """Files that the paths mean: themselves, those below a folder that end in a suffix, or what a glob matches.

    Raises `CorpusError` for a path without a file, a folder without one of these kinds, or a file of another kind.
    """
    found: set[Path] = set()
    for given in paths:
        found.update(_below(given, suffixes))
    common = Path(os.path.commonpath([path.parent for path in found]))
    return {path.relative_to(common).as_posix(): path for path in sorted(found)}


def _below(given: str, suffixes: Sequence[str]) -> list[Path]:
    kinds = ", ".join(suffixes)
    expanded = os.path.expanduser(given)
    hits = [Path(hit).absolute() for hit in ([expanded] if os.path.exists(expanded) else
                                             glob.glob(expanded, recursive=True))]
    if not hits:
        raise CorpusError(f"nothing is at {given!r} (from {os.getcwd()}); give a file, a folder or a glob of {kinds}")
    files = []
    for hit in hits:
        inside = sorted(path for path in hit.rglob("*") if path.is_file()) if hit.is_dir() else [hit]
        usable = [path for path in inside if plain_name(path).endswith(tuple(suffixes))]
        if not usable and not hit.is_dir():
            raise CorpusError(f"{hit} is none of {kinds} (each also as .gz); give files of the format that is read")
        files += usable
    if not files:
        raise CorpusError(f"{given!r} holds no file of {kinds} (each also as .gz); is it the right folder?")
    return files


def plain_name(path: Path) -> str:
    """The file's name in lower case and without `.gz`; `.tar.gz` reads `.tgz`."""
    name = path.name.lower()
    return name.removesuffix(".tar.gz") + ".tgz" if name.endswith(".tar.gz") else name.removesuffix(".gz")


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked. A damaged or unreadable one raises `CorpusError` with its name."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{path}: cannot be read to its end ({error}); fetch it again") from error


def opening(path: Path, size: int = 1 << 16) -> str:
    """The first `size` bytes as text, to tell a format by."""
    with opened(path) as file:
        return file.read(size).decode("utf-8-sig", errors="replace")


def text_of(path: Path) -> str:
    """A whole text file. Raises `CorpusError` where it is not UTF-8."""
    with opened(path) as file:
        return _decoded(file.read(), str(path))


def json_document(path: Path) -> Any:
    """A file that is one JSON value. Raises `CorpusError` with the line where it stops being JSON."""
    try:
        return json.loads(text_of(path))
    except json.JSONDecodeError as error:
        raise CorpusError(f"{path}, line {error.lineno}: not JSON ({error.msg}); fetch the file again, or mend it"
                          ) from error


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """(`file, line n`, value) of each line that is not blank; a line that is not JSON is an `Unusable` in its place."""
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path}, line {number}"
                yield where, _line(line, where)


def first_line(path: Path) -> Any:
    """The first value of a file of JSON lines; None if it has no lines.

    Raises `CorpusError` where none of its first lines is JSON; a few bad ones are for the reader to count.
    """
    bad = None
    for _, value in islice(json_lines(path), LOOK):
        if not isinstance(value, Unusable):
            return value
        bad = bad or value
    if bad is not None:
        raise CorpusError(f"{bad.where}: {bad.detail}, nor are the lines after it; give a file of JSON lines")
    return None


def _line(line: bytes, where: str) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return Unusable(where, "not_utf8", f"byte {error.start} of the line is not UTF-8")
    except ValueError as error:
        return Unusable(where, "not_json", f"not JSON ({error})")


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{where}: byte {error.start} is not UTF-8; save it as UTF-8") from error


def only(files: Files, *suffixes: str) -> Files:
    """The files whose plain name ends in one of the suffixes."""
    return {name: path for name, path in files.items() if plain_name(path).endswith(suffixes)}
