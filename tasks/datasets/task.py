"""The base of tasks that ask questions about documents of a data set, one small subclass each under tasks/evals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from pydantic import Field

from tasks.datasets.formats import Format
from tasks.datasets.published import Rows
from tasks.datasets.published_rows import format_of
from tasks.datasets.records import Record
from tasks.evals.base import EvalTask, Item, Material, QuestionRow, Rejection
from tasks.specs import Spec


class QuestionOptions(Spec):
    """Options of every task that asks questions."""

    questions_per_document: int | None = Field(None, ge=1, description="Questions asked of a document; None = all")
    minimum_answer_characters: int = Field(
        2, ge=1, description="Shorter answers are not asked: nearly every continuation contains them")
    columns: tuple[str, ...] | None = Field(
        None, min_length=1, description="Groups to ask, scored apart; None = all that the task has")


class QuestionTask(EvalTask):
    """A task whose documents, questions and answers come from a questions artifact.

    formats        original formats that the questions stage reads for it, tried in this order
    published      the fields of its published cloze set
    hub            names of its published sets on the Hugging Face hub
    known_columns  groups its records may be in; one without records gives no items
    """

    Options = QuestionOptions
    needs_corpus = False
    needs_questions = True
    templates = ("clean", "jrt-2407")
    formats: ClassVar[tuple[Format, ...]] = ()
    published: ClassVar[Rows]
    hub: ClassVar[tuple[str, ...]] = ()
    known_columns: ClassVar[tuple[str, ...]] = ("all",)

    @property
    def readable(self) -> tuple[Format, ...]:
        """All formats of files: the original ones, then the published fields."""
        return (*self.formats, format_of(self.published))

    def released_fields(self, record: Record, cloze: str) -> dict[str, Any]:
        """The published fields of a record: the row's own, or ours for one in an original format."""
        return dict(record.released) if record.released is not None else self.published.fields(record, cloze)

    def columns(self, options: QuestionOptions) -> tuple[str, ...]:
        return options.columns or self.known_columns

    def items(self, material: Material, options: QuestionOptions, column: str) -> Iterator[Item | Rejection]:
        """Questions of one document after another; documents and questions in an order that the seed draws."""
        rows = material.questions()
        rows = rows if isinstance(rows, Sequence) else tuple(rows)
        documents: dict[str, list[int]] = defaultdict(list)
        for number, row in enumerate(rows):
            if row.column == column:
                documents[row.document_id].append(number)
        for name in sorted(documents, key=lambda name: (material.draw("order", name).random(), name)):
            numbers = documents[name]
            material.draw("questions", name).shuffle(numbers)
            yield from _asked(rows, numbers, options)


def _asked(rows: Sequence[QuestionRow], numbers: Sequence[int], options: QuestionOptions) -> Iterator[Item | Rejection]:
    """The first questions of a document that may be asked, and each that is passed over on the way."""
    asked = 0
    for number in numbers:
        row = rows[number]
        if len(row.answers[0]) < options.minimum_answer_characters:
            yield Rejection(row.document_id, "answer_too_short")
            continue
        yield Item(row.id, row.document_id, row.document, row.question, row.cloze, tuple(row.answers), row.column,
                   keep=row.keep, title=row.title, released=row.fields)
        asked += 1
        if asked == options.questions_per_document:
            return
