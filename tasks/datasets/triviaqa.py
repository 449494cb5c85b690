"""TriviaQA-RC: questions in qa/*.json, the documents they are asked about in evidence/{wikipedia,web}/.

A folder or the `.tgz` it comes in. A question is asked once of each of its documents that holds an answer, and columns
are the domains, `wikipedia` and `web`. Of a folder all of qa/ is read but its `verified-` and `without-answers` files,
which repeat others or have nothing to score; to read one file of qa/ alone, give that file and evidence/.
The archive is read twice from end to end, questions first, and never unpacked to disk.
"""

from __future__ import annotations

import json
import tarfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.errors import CorpusError
from tasks.datasets.fields import Unfit, field, guarded, texts
from tasks.datasets.formats import Entries, Format
from tasks.datasets.records import Record, Unusable
from tasks.datasets.source_files import Files, json_document, opened, opening, plain_name
from tasks.datasets.spans import distinct, found_first

LEFT_OUT = ("verified-", "without-answers")


@dataclass(frozen=True)
class Asked:
    """A question of one document. `page`: the document's path below evidence/; `column`: its domain."""

    where: str
    id: str
    question: str
    answers: tuple[str, ...]
    page: str
    title: str

    @property
    def column(self) -> str:
        return self.page.partition("/")[0]


def fits(files: Files) -> bool:
    archives = [path for path in files.values() if plain_name(path).endswith(".tgz")]
    questions = [path for path in files.values() if plain_name(path).endswith(".json")]
    held = len(files) - len(archives) - len(questions)
    return bool(archives) == (not questions) and all('"QuestionId"' in opening(path, 1 << 20) for path in questions) and (
        bool(held) == bool(questions))


def read(files: Files, notes: Counter) -> Entries:
    """Records in the order of the documents. Raises `CorpusError` for a damaged file or archive."""
    loose = {name: path for name, path in files.items() if not plain_name(path).endswith(".tgz")}
    if loose:
        yield from _folder(loose, notes)
    for name in files.keys() - loose.keys():
        yield from _archive(files[name], notes)


def _folder(files: Files, notes: Counter) -> Entries:
    """A document is the file whose name ends in evidence/<its path>."""
    questions = {name: path for name, path in files.items() if plain_name(path).endswith(".json")}
    pages = {name.rpartition("evidence/")[2].removesuffix(".gz"): path for name, path in files.items()}
    waiting: dict[str, list[Asked]] = defaultdict(list)
    for path in _wanted(questions).values():
        for entry in _questions(json_document(path), str(path), notes):
            if isinstance(entry, Unusable):
                yield entry
            else:
                waiting[entry.page].append(entry)
    for page, asked in sorted(waiting.items()):
        yield from _of_document(_bytes(pages.get(page)), page, asked, f"evidence/{page}")


def _bytes(path: Path | None) -> bytes | None:
    if path is None:
        return None
    with opened(path) as file:
        return file.read()


def _archive(path: Path, notes: Counter) -> Entries:
    waiting: dict[str, list[Asked]] = defaultdict(list)
    with _members(path) as members:
        held = {name: data for name, data in members if "/qa/" in f"/{name}" and name.endswith(".json")}
    if not held:
        raise CorpusError(f"{path}: holds no qa/*.json; give the archive of TriviaQA-RC")
    for name, data in sorted(_wanted(held).items()):
        for entry in _questions(_parsed(data, f"{path}, {name}"), f"{path}, {name}", notes):
            if isinstance(entry, Unusable):
                yield entry
            else:
                waiting[entry.page].append(entry)
    with _members(path, "evidence/") as members:
        for name, data in members:
            page = name.partition("evidence/")[2]
            if page in waiting:
                yield from _of_document(data, page, waiting.pop(page), f"{path}, {name}")
    for page, asked in waiting.items():
        yield from _of_document(None, page, asked, f"{path}, evidence/{page}")


@contextmanager
def _members(path: Path, part: str = "qa/") -> Iterator[Iterator[tuple[str, bytes]]]:
    """(name, bytes) of the archive's files below a folder of this name, in the archive's order."""
    try:
        with tarfile.open(path, "r|*") as archive:
            yield ((member.name.removeprefix("./"), archive.extractfile(member).read()) for member in archive
                   if member.isfile() and f"/{part}" in f"/{member.name}")
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{path}: is no readable archive ({error}); fetch it again") from error


def _wanted(files: dict[str, Any]) -> dict[str, Any]:
    """All files of questions but those that repeat others, unless there are only those."""
    kept = {name: file for name, file in files.items() if not any(part in name for part in LEFT_OUT)}
    return kept or files


def _parsed(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise CorpusError(f"{where}: not JSON ({error}); fetch the archive again") from error


def _questions(whole: Any, where: str, notes: Counter) -> Iterator[Asked | Unusable]:
    if not isinstance(whole, dict) or not isinstance(whole.get("Data"), list):
        raise CorpusError(f"{where}: has no list 'Data' of questions; give a file of TriviaQA-RC's qa/")
    for number, entry in enumerate(whole["Data"]):
        known = entry.get("QuestionId", number) if isinstance(entry, dict) else number
        yield from guarded(f"{where}, question {known}", _pages, entry, f"{where}, question {known}", notes)


def _pages(entry: Any, where: str, notes: Counter) -> Iterator[Asked]:
    """One `Asked` for each document of a question."""
    identifier, question = field(entry, "QuestionId", str), field(entry, "Question", str)
    answer = field(entry, "Answer", dict)
    answers = distinct([field(answer, "Value", str), *texts(answer, "Aliases")])
    notes["questions"] += 1
    pages = [("wikipedia", page) for page in entry.get("EntityPages") or ()]
    pages += [("web", page) for page in entry.get("SearchResults") or ()]
    if not pages:
        raise Unfit("no_document", question)
    for domain, page in pages:
        yield Asked(where, identifier, question.strip(), answers, f"{domain}/{field(page, 'Filename', str)}",
                    str(page.get("Title") or ""))


def _of_document(data: bytes | None, page: str, asked: list[Asked], where: str) -> Entries:
    for one in asked:
        yield from guarded(f"{one.where}, document {page}", _record, data, one, where)


def _record(data: bytes | None, asked: Asked, where: str) -> Iterator[Record]:
    if data is None:
        raise Unfit("no_document", f"there is no {where}")
    try:
        document = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unfit("not_utf8", f"byte {error.start} of {where} is not UTF-8") from error
    found = found_first(document, asked.answers)
    if found is None:
        raise Unfit("answer_not_in_document", f"none of {len(asked.answers)} answers to {asked.question!r}")
    yield Record(f"{asked.id}/{asked.page}", asked.page, document, asked.question, found[0], span=found[1],
                 column=asked.column, title=asked.title)


TRIVIAQA = Format("triviaqa-rc", "a folder or .tgz with qa/*.json and evidence/", (".json", ".txt", ".tgz"), fits, read)
