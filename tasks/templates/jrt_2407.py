"""Template `jrt-2407`: the prompts of JRT's released evaluation (July 2024), byte for byte.

Two orders, `default` and `twice`, written from the published fields by a recipe per task (jrt.md 4.2, checked against
strings that the released code gave). Their accidents are kept: doubled blanks where tags were cut out, a full stop
after a blank, a document that still ends in its key, a first SQuAD copy that runs on to white space. `accidents` names
those of a prompt, so that they can be counted.

A recipe writes what stands around one document, so the document may be cut or exchanged first. Data in an original
format have no published fields; `prepared` makes them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from storage.errors import CorpusError, SpecError
from tasks.prompts import Prompt, place
from tasks.templates.jrt_recipes import RECIPES, Fields, Recipe, split_squad

if TYPE_CHECKING:
    from tasks.evals.base import Item

NAME = "jrt-2407"
ORDERS = ("default", "twice")
UNANSWERABLE = "unanswerable"
MARGINS = (40, 10, 0)      # characters around an answer by which it is known again in another version of its document


def prompt(task: str, order: str, fields: Fields, document: str | None) -> Prompt:
    """The released prompt over this document; `source(task, fields)` is the one that the fields hold.

    None asks without a document, which the released code cannot: the question of `twice`, a line feed, the cloze.
    Raises SpecError for another task or order, CorpusError for a field that is missing.
    """
    recipe = recipe_of(task)
    if order not in ORDERS:
        raise SpecError(f"template {NAME!r} has no order {order!r}; it has {' and '.join(ORDERS)}")
    _check(task, fields)
    cloze, asked = recipe.cloze(fields), recipe.asked(fields)
    if document is None:
        return Prompt(f"{asked}\n{cloze}" if order == "twice" else cloze, cloze)
    if document.strip() != source(task, fields).strip():
        fields = _with_document(task, fields, document)
    if order == "default":
        text = recipe.default(fields)
    else:
        first, second = recipe.twice(fields)
        text = f"{asked} {first}\n{second}"
    return Prompt(text, cloze if text.endswith(cloze) else "")


def target(task: str, fields: Fields) -> str:
    """What the released code writes after a worked example: with a blank before it in NQ, TriviaQA and DROP only."""
    recipe_of(task)
    _check(task, fields)
    if "value" in fields:
        return fields["value"]
    return f" {fields['answers'][0] if fields['answers'] else UNANSWERABLE}"


def source(task: str, fields: Fields) -> str:
    """The document in the fields. Of SQuAD's `text`, which ends in the cloze, what stands before that."""
    text = fields[recipe_of(task).document]
    return split_squad(fields)[0] if task == "squad" else text


def recipe_of(task: str) -> Recipe:
    """Raises SpecError for a task that the released evaluation did not have."""
    if task not in RECIPES:
        raise SpecError(f"template {NAME!r} knows no task {task!r}; it knows {', '.join(RECIPES)}")
    return RECIPES[task]


def prepared(task: str, item: Item) -> Item:
    """The item with all published fields, its document that of the fields and `keep` the answer in it.

    Raises CorpusError for a field that is missing.
    """
    fields = dict(item.released) if item.released else _made(task, item)
    _check(task, fields, f"{item.id}: ")
    if task == "squad" and fields["text"].strip().endswith(item.cloze.strip()):
        fields["cloze"] = item.cloze.strip()          # where the document ends, whatever is cut off it later
    document = source(task, fields)
    return replace(item, released=fields, document=document, keep=_kept(item, document))


def _kept(item: Item, document: str) -> tuple[int, int] | None:
    """The answer in the fields' document: where the item's stands, if what is around it is there too, else the first."""
    if item.keep and item.keep[0] < item.keep[1] <= len(item.document):
        for margin in MARGINS:
            start = max(0, item.keep[0] - margin)
            at = document.find(item.document[start:item.keep[1] + margin])
            if at >= 0:
                return at + item.keep[0] - start, at + item.keep[1] - start
    return place(document, item.answers)


def accidents(written: Prompt) -> list[str]:
    """Names of what a clean prompt does not have."""
    text, before = written.text, written.head.rstrip(" .")
    found = {
        "white_space_around_prompt": text != text.strip(),
        "doubled_blanks": "  " in text,
        "blank_before_full_stop": " ." in text,
        "blank_at_line_end": " \n" in text,
        "cloze_cut_away": not written.tail,
        "cloze_left_in_document": bool(written.tail) and before.lower().endswith(written.tail.lower()),
    }
    return [name for name, there in found.items() if there]


# ----------------------------------------------------------------------------------------------------------- fields
def _check(task: str, fields: Fields, where: str = "") -> None:
    recipe = RECIPES[task]
    for name in (recipe.document, *recipe.needs):
        kind = (list, tuple) if name == "answers" else str
        if not isinstance(fields.get(name), kind):
            raise CorpusError(f"{where}template {NAME!r} writes {task} from the field {name!r}, which is "
                              f"{'missing' if name not in fields else type(fields[name]).__name__}; there are "
                              f"{', '.join(fields) or 'none'}. Give the published set, or use template 'clean'")


def _with_document(task: str, fields: Fields, document: str) -> Fields:
    """The fields over another document. SQuAD's holds the cloze, behind the white space it had."""
    if task != "squad":
        return {**fields, RECIPES[task].document: document}
    _, between, cloze = split_squad(fields)
    return {**fields, "text": f"{document}{between or ' '}{cloze}", "context": document, "cloze": cloze}


def _made(task: str, item: Item) -> dict[str, Any]:
    """Published fields of an item that comes from an original format."""
    if task in ("fda", "swde"):
        return {"text": item.document, "key": item.cloze.strip().removesuffix(":").rstrip(), "value": item.answers[0]}
    if task == "squad":
        return {"text": f"{item.document} {item.cloze}", "context": item.document, "question": item.question,
                "value": item.answers[0], "title": item.title, "doc_id": item.document_id}
    return {"context": item.document, "question": item.cloze, "orig_question": item.question,
            "answers": list(item.answers)}
