"""The published cloze sets of JRT: what their fields mean, and how original records are given such fields.

    AttributeRows   text, key, value                          fda, swde
    SquadRows       text, value, context, question            squad (title and doc_id where there)
    StatementRows   context, question (the cloze), orig_question, answers (alt_answers where there)   nq, triviaqa, drop

`record` reads a row. `fields` writes the same names from a record in an original format, so that the template `jrt-2407`
can be used on it. Those fields are this project's: the sets themselves are not at hand, and their `text` and `context`
were cut by rules that are not published. Everything that the released prompts read of a row is there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tasks.datasets import attributes
from tasks.datasets.fields import Unfit, field, texts
from tasks.datasets.records import Record
from tasks.datasets.spans import distinct, found_first

SUMMARY = "Summary of information above..."       # stands before the trailing key of some SWDE rows
TAGS = ("[PAR]", "[DOC]", "[TLE]")                # of TriviaQA documents


class Rows(Protocol):
    """One kind of published set."""

    required: tuple[str, ...]

    def record(self, row: Mapping[str, Any], identifier: str, column: str) -> Record: ...

    def fields(self, record: Record, cloze: str) -> dict[str, Any]: ...


@dataclass(frozen=True)
class AttributeRows:
    required: tuple[str, ...] = ("text", "key", "value")

    def record(self, row: Mapping[str, Any], identifier: str, column: str) -> Record:
        """The document is `text` without the key that some rows end in. Raises `Unfit`."""
        key, value = field(row, "key", str).strip(), field(row, "value", str).strip()
        document = without_ending(field(row, "text", str).partition(SUMMARY)[0], f"{key}:")
        answers, span = _held(document, [value])
        return Record(identifier, digest(document), document, attributes.question_for(key), answers,
                      cloze=attributes.cloze_for(key), span=span, column=column, released=dict(row))

    def fields(self, record: Record, cloze: str) -> dict[str, Any]:
        return {"text": record.document, "key": cloze.removesuffix(":"), "value": record.answers[0]}


@dataclass(frozen=True)
class SquadRows:
    required: tuple[str, ...] = ("text", "value", "context", "question")

    def record(self, row: Mapping[str, Any], identifier: str, column: str) -> Record:
        """The cloze is what `text` has after the context; `context` counts up to its first `Question:`."""
        document = field(row, "context", str).partition("Question:")[0].strip()
        text = field(row, "text", str).strip()
        if not document or not text.startswith(document) or text == document:
            raise Unfit("cloze_not_found", "`text` does not begin with `context` and go on with a cloze")
        answers, span = _held(document, [field(row, "value", str)])
        return Record(identifier, digest(document), document, field(row, "question", str).strip(), answers,
                      cloze=text[len(document):].strip(), span=span, column=column, title=str(row.get("title") or ""),
                      released=dict(row))

    def fields(self, record: Record, cloze: str) -> dict[str, Any]:
        context = record.document.strip()
        return {"doc_id": record.id, "title": record.title, "context": context, "question": record.question,
                "value": record.answers[0], "text": f"{context} {cloze}"}


@dataclass(frozen=True)
class StatementRows:
    tags: bool = False       # TriviaQA's literal tags in the context
    required: tuple[str, ...] = ("context", "question", "orig_question", "answers")

    def record(self, row: Mapping[str, Any], identifier: str, column: str) -> Record:
        """The document is `context` without tags and without the cloze that some rows end in. Raises `Unfit`."""
        cloze = field(row, "question", str).strip()
        document = without_ending(_untagged(field(row, "context", str)) if self.tags else field(row, "context", str), cloze)
        answers = [*texts(row, "answers"), *(texts(row, "alt_answers") if row.get("alt_answers") else ())]
        ordered, span = _held(document, answers)
        return Record(identifier, digest(document), document, field(row, "orig_question", str).strip(), ordered,
                      cloze=cloze, span=span, column=column, title=str(row.get("title") or ""), released=dict(row))

    def fields(self, record: Record, cloze: str) -> dict[str, Any]:
        return {"context": record.document, "question": cloze, "orig_question": record.question,
                "answers": list(record.answers)}


def _held(document: str, answers: list[str]) -> tuple[tuple[str, ...], tuple[int, int]]:
    """The answers, first the one that the document holds, and where. Raises `Unfit` (no_answer, answer_not_in_document).

    Rows have no span; where no whole word is the answer, as in the released rule any occurrence in any case is.
    """
    if not distinct(answers):
        raise Unfit("no_answer", "the row has no answer that is not empty")
    found = found_first(document, answers)
    if found is None:
        held = next((match for answer in distinct(answers) if (match := re.search(re.escape(answer), document, re.I))), None)
        if held is None:
            raise Unfit("answer_not_in_document", f"{answers[0]!r}")
        return distinct((held[0], *answers)), held.span()
    return found


def without_ending(text: str, ending: str) -> str:
    """The text without white space around it and, however often it ends in `ending` in any case, without that."""
    text = text.strip()
    while ending and text.lower().endswith(ending.lower()):
        text = text[:-len(ending)].strip()
    return text


def _untagged(text: str) -> str:
    """Without the tags; where `[PAR]` stood a line begins."""
    text = text.replace("[PAR]", "\n")
    for tag in TAGS:
        text = text.replace(tag, " ")
    return "\n".join(filter(None, (re.sub(r"[ \t]+", " ", line).strip() for line in text.split("\n"))))


def digest(document: str) -> str:
    """The name of a document that has none: 16 hex digits of its text's sha256."""
    return hashlib.sha256(document.encode(errors="replace")).hexdigest()[:16]
