"""Items as a template asks them, or why nothing can be asked of them. Only rows of questions need any of this."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tasks import templates
from tasks.evals.base import EvalTask, Item, Rejection
from tasks.prompts import place


def prepared(entries: Iterable[Item | Rejection], task: EvalTask, template: str) -> Iterator[Item | Rejection]:
    """The entries of a task; an item has its document and `keep` as the template shows them.

    Rejections: empty_document, empty_question, empty_cloze, no_answer, and, but for released templates, which ask such
    things too, answer_not_in_document. Raises CorpusError where a released template misses a published field.
    """
    for entry in entries:
        if isinstance(entry, Rejection) or not task.needs_questions:
            yield entry
        elif reason := why_not(entry):
            yield Rejection(entry.document_id, reason)
        elif template in templates.RELEASED:
            yield templates.RELEASED[template].prepared(task.name, entry)
        else:
            item = stripped(entry)
            yield item if item.keep else Rejection(entry.document_id, "answer_not_in_document")


def why_not(item: Item) -> str | None:
    """Why a question about a document cannot be asked; None when it can."""
    empty = {"empty_document": item.document, "empty_question": item.question, "empty_cloze": item.cloze}
    if not item.answers or not all(answer.strip() for answer in item.answers):
        empty["no_answer"] = ""
    return next((reason for reason, text in empty.items() if not text.strip()), None)


def stripped(item: Item) -> Item:
    """The item without white space around its document, question and cloze; `keep` is found where it was not given."""
    before = len(item.document) - len(item.document.lstrip())
    document = item.document.strip()
    keep = item.keep and (item.keep[0] - before, item.keep[1] - before)
    if not keep or not 0 <= keep[0] < keep[1] <= len(document):
        keep = place(document, item.answers)
    return replace(item, document=document, question=item.question.strip(), cloze=item.cloze.strip(), keep=keep)


def end_of_text_first(task: EvalTask, template: str) -> bool:
    """Whether a model reads the end-of-text token before a prompt. It read nothing before the released ones."""
    return task.end_of_text_first and template not in templates.RELEASED
