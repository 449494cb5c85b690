"""DROP: passages with questions whose answers are numbers, dates or spans.

Two layouts: the official one, a JSON object {passage id: {passage, qa_pairs}}, and JSON lines of passages
{passage_id, passage, qa: [{question, answers}]}. Many answers are the result of arithmetic and stand nowhere in the
passage; a recall task can ask only those that do. Where the first answer is a number, an alternative that happens to
stand there does not count: it is a slip of one annotator. `notes` counts the kinds of answers that were met.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from storage.errors import CorpusError
from tasks.datasets.fields import Unfit, field, guarded, texts
from tasks.datasets.formats import Entries, Format
from tasks.datasets.records import Record, Unusable
from tasks.datasets.source_files import Files, first_line, json_document, json_lines, opening
from tasks.datasets.spans import distinct, found_first


def fits_official(files: Files) -> bool:
    return all('"qa_pairs"' in opening(path) for path in files.values())


def read_official(files: Files, notes: Counter) -> Entries:
    """One record a question. Raises `CorpusError` for a file that is no JSON object."""
    for path in files.values():
        whole = json_document(path)
        if not isinstance(whole, dict):
            raise CorpusError(f"{path}: is a JSON {type(whole).__name__}, not an object of passages; give a DROP file "
                              "(drop_dataset_dev.json)")
        for name, entry in whole.items():
            where = f"{path}, passage {name}"
            yield from guarded(where, _official_passage, entry, name, where, notes)


def _official_passage(entry: Any, name: str, where: str, notes: Counter) -> Entries:
    passage = field(entry, "passage", str)
    for number, asked in enumerate(field(entry, "qa_pairs", list)):
        known = asked.get("query_id", number) if isinstance(asked, dict) else number
        yield from guarded(f"{where}, question {known}", _official_question, asked, passage, name, notes)


def _official_question(asked: Any, passage: str, name: str, notes: Counter) -> Iterator[Record]:
    identifier = field(asked, "query_id", str)
    given = [field(asked, "answer", dict), *(asked.get("validated_answers") or [])]
    kind, first = _text(given[0])
    notes[f"answer_is_{kind}"] += 1
    others = [text for _, text in map(_text, given[1:])]
    yield _record(identifier, name, passage, field(asked, "question", str), [first, *others], kind)


def _text(answer: Any) -> tuple[str, str]:
    """(kind, text) of an answer of the official layout: number, date, span, several spans, or empty."""
    number = field(answer, "number")
    spans, date = texts(answer, "spans"), field(answer, "date", dict)
    if str(number if number is not None else "").strip():
        return "number", str(number).strip()
    if spans:
        return ("span" if len(spans) == 1 else "several_spans"), " and ".join(spans)
    parts = [str(date.get(part) or "").strip() for part in ("day", "month", "year")]
    return ("date", " ".join(filter(None, parts))) if any(parts) else ("empty", "")


def fits_lines(files: Files) -> bool:
    firsts = [first_line(path) for path in files.values()]
    return all(isinstance(first, Mapping) and {"passage", "qa"} <= set(first) for first in firsts)


def read_lines(files: Files, notes: Counter) -> Entries:
    """One record a question, a passage a line."""
    for path in files.values():
        for where, entry in json_lines(path):
            if isinstance(entry, Unusable):
                yield entry
            else:
                yield from guarded(where, _line_passage, entry, where, notes)


def _line_passage(entry: Any, where: str, notes: Counter) -> Entries:
    name, passage = field(entry, "passage_id", str), field(entry, "passage", str)
    for number, asked in enumerate(field(entry, "qa", list)):
        yield from guarded(f"{where}, passage {name}, question {number}", _line_question, asked, passage, name,
                           f"{name}/{number}", notes)


def _line_question(asked: Any, passage: str, name: str, identifier: str, notes: Counter) -> Iterator[Record]:
    answers = texts(asked, "answers")
    number = bool(answers) and answers[0].replace(",", "").replace(".", "").isdigit()
    kind = "number" if number else "text"
    notes[f"answer_is_{kind}"] += 1
    yield _record(identifier, name, passage, field(asked, "question", str), answers, kind)


def _record(identifier: str, name: str, passage: str, question: str, answers: list[str], kind: str) -> Record:
    if not any(answer.strip() for answer in answers):
        raise Unfit("no_answer", question)
    forms = [form for answer in answers for form in _forms(answer)]
    first = len(_forms(answers[0])) if kind == "number" else len(forms)
    found = found_first(passage, forms[:first])
    if found is None:
        raise Unfit("answer_not_in_document", f"{answers[0]!r} ({kind.replace('_', ' ')}) to {question!r}")
    answers = distinct((*found[0], *forms))
    return Record(identifier, name, passage, question.strip(), answers, span=found[1])


def _forms(answer: str) -> list[str]:
    """The answer, and a whole number also with its thousands set apart, as passages write it."""
    whole = answer.isascii() and answer.isdigit() and len(answer) > 3
    return [answer, f"{int(answer):,}"] if whole else [answer]


OFFICIAL = Format("drop", "official DROP JSON: {passage id: {passage, qa_pairs}}", (".json",), fits_official, read_official)
LINES = Format("drop-lines", "JSON lines of passages: passage_id, passage, qa", (".jsonl",), fits_lines, read_lines)
