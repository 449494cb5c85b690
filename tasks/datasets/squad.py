"""SQuAD v1 and v2: one JSON file of articles, paragraphs and questions, each answer with its place in the paragraph.

A paragraph is a document. Questions that v2 marks as impossible have no answer to recall: they are `unanswerable`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from storage.errors import CorpusError
from tasks.datasets.fields import Unfit, field, guarded
from tasks.datasets.formats import Entries, Format
from tasks.datasets.records import Record
from tasks.datasets.source_files import Files, json_document, opening
from tasks.datasets.spans import distinct, find


def fits(files: Files) -> bool:
    return all('"paragraphs"' in opening(path) for path in files.values())


def read(files: Files, notes: Counter) -> Entries:
    """One record a question. Raises `CorpusError` for a file that is no JSON or has no articles."""
    for path in files.values():
        whole = json_document(path)
        if not isinstance(whole, dict) or not isinstance(whole.get("data"), list):
            raise CorpusError(f"{path}: has no list 'data' of articles; give a SQuAD file (train-v1.1.json, dev-v2.0.json)")
        for number, article in enumerate(whole["data"]):
            yield from guarded(f"{path}, article {number}", _article, article, f"{path}, article {number}", notes)


def _article(article: Any, where: str, notes: Counter) -> Entries:
    title = field(article, "title", str)
    for number, paragraph in enumerate(field(article, "paragraphs", list)):
        place = f"{where} ({title}), paragraph {number}"
        yield from guarded(place, _paragraph, paragraph, title, f"{title}/{number}", place, notes)


def _paragraph(paragraph: Any, title: str, name: str, where: str, notes: Counter) -> Entries:
    document = field(paragraph, "context", str)
    for number, asked in enumerate(field(paragraph, "qas", list)):
        known = asked.get("id", number) if isinstance(asked, dict) else number
        yield from guarded(f"{where}, question {known}", _question, asked, document, title, name, notes)


def _question(asked: Any, document: str, title: str, name: str, notes: Counter) -> Iterator[Record]:
    question, identifier = field(asked, "question", str), field(asked, "id", str)
    answers = field(asked, "answers", list)
    if asked.get("is_impossible"):
        raise Unfit("unanswerable", question)
    if not answers:
        raise Unfit("no_answer", question)
    texts = distinct(field(answer, "text", str) for answer in answers)
    yield Record(identifier, name, document, question.strip(), texts, span=_span(document, answers[0], notes),
                 title=title.replace("_", " "))


def _span(document: str, answer: Any, notes: Counter) -> tuple[int, int]:
    """Where the format says that the answer stands; where it stands if that is wrong, with a note."""
    text, start = field(answer, "text", str), field(answer, "answer_start", int)
    if document[start:start + len(text)] == text and start >= 0:
        stripped = text.strip()
        start += text.index(stripped)
        return start, start + len(stripped)
    span = find(document, text)
    if span is None:
        raise Unfit("answer_not_in_document", f"{text!r} is not at character {start}, nor anywhere else")
    notes["span_corrected"] += 1
    return span


SQUAD = Format("squad", "SQuAD v1 or v2 JSON: data > paragraphs > context, qas", (".json",), fits, read)
