"""Clozes by rule: grammar and word lists, no model, the same text for the same question always.

A question becomes the statement that ends where its answer starts (sentences.py). Where no rule gives one, the
statement is about the question itself, `The answer to the question "..." is`: form `fallback`, counted apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tasks.datasets.records import Record, Unusable
from tasks.rewriting.answers import Answer, answer_of, article
from tasks.rewriting.sentences import is_yes_no, statement
from tasks.rewriting.words import ARTICLES, PREPOSITIONS, bare, is_number

FORMS = ("statement", "fallback", "unusable")


class Rules:
    """The rewriter without a model. `bill`: how many records took each form."""

    def __init__(self) -> None:
        self.bill: dict[str, int] = dict.fromkeys(FORMS, 0)

    def clozes(self, records: Sequence[Record]) -> Iterator[str | Unusable]:
        """One a record, in order: the cloze, or why there can be none (yes_no_question, no_question, no_answer)."""
        for record in records:
            form, cloze = rewritten(record)
            self.bill[form] += 1
            yield cloze


def rewritten(record: Record) -> tuple[str, str | Unusable]:
    """(form, cloze) of one record."""
    if not record.question.strip(" ?.\t\n"):
        return "unusable", Unusable(record.id, "no_question")
    if not record.answers or not record.answers[0].strip():
        return "unusable", Unusable(record.id, "no_answer")
    if is_yes_no(record.question):
        return "unusable", Unusable(record.id, "yes_no_question", record.question)
    answer = answer_of(record)
    found = finished(statement(record.question, answer) or "", answer)
    if not found:
        question = " ".join(record.question.split()).replace('"', "'")
        return "fallback", f'The answer to the question "{question}" is'
    return "statement", found


def finished(text: str, answer: Answer) -> str:
    """One blank between words, a capital at the start, and no small word at the end that the answer says again.

    Empty when nothing is left.
    """
    words = re.sub(r"\s+", " ", text).strip(" ,;").split()
    if not words:
        return ""
    if answer.first == bare(words[-1]) and answer.first in PREPOSITIONS | ARTICLES | {"because", "that"}:
        words = words[:-1]
    elif not is_number(answer.first) and bare(words[-1]) not in ARTICLES | {"because"}:
        words.append(article(answer))
    text = " ".join(words).strip(" ,;")
    return text[:1].upper() + text[1:]
