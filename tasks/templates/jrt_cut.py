"""How JRT's released evaluation shortens documents (jrt.md 4.3), with all that is odd about it.

The window has `context_length - answer_length` tokens and is centred on the token where the answer starts. It is not
moved at the document's end, where fewer tokens are left; it is centred on the key if that comes first (FDA, SWDE); it
keeps the head of TriviaQA and DROP whatever the answer; a document with an answer of no or one character is dropped.
Budgets `document` and `total` do none of this (tasks/cutting.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tasks.prompts import place
from tasks.templates import jrt_2407

if TYPE_CHECKING:
    from tasks.evals.base import Item


@dataclass(frozen=True)
class Cut:
    """What is left of a document: its text, its length [tokens], and its number among those that were kept, from 1."""

    text: str
    tokens: int
    new_id: int = 1


def cut(task: str, fields: Mapping[str, Any], tokenizer, window: int, kept: int = 0) -> Cut | None:
    """The task's document, shortened to `window` tokens, after `kept` others. None: it is dropped for its short answer."""
    recipe = jrt_2407.recipe_of(task)
    return truncate(fields[recipe.document], fields, recipe.searched, tokenizer, window, kept)


def shortened(task: str, item: Item, tokenizer, window: int) -> Item | None:
    """The item over its cut document, in its published fields too; None where it is dropped."""
    found = cut(task, item.released, tokenizer, window)
    if found is None:
        return None
    fields = {**item.released, jrt_2407.recipe_of(task).document: found.text}
    return replace(item, released=fields, document=jrt_2407.source(task, fields))


def truncate(document: str, fields: Mapping[str, Any], searched: Sequence[str], tokenizer, window: int,
             kept: int = 0) -> Cut | None:
    """`window` tokens of the document around the first occurrence of any of the fields `searched`."""
    document = document.strip()
    wanted = [_first(fields[name]) for name in searched]
    if any(len(text) < 2 for text in wanted):
        return None
    at = _position(document, wanted, fields.get("alt_answers") or ())
    ids, before = tokenizer.encode_batch([document, document[:at]])      # not found: at = -1, all but one character
    centre = len(before)
    if at < 0 and fields.get("tok_pos") is not None and centre > window:
        centre = fields["tok_pos"]
    start = max(0, centre - window // 2)
    left = ids[start:min(len(ids), centre + window - (centre - start))]
    return Cut(tokenizer.decode(left), len(left), kept + 1)


def _first(value: Any) -> str:
    """The answer that is looked for: of a list, the first alone."""
    return value if isinstance(value, str) else next(iter(value), "")


def _position(document: str, wanted: Sequence[str], others: Sequence[str]) -> int:
    """The first character of whichever of `wanted` comes first, else of the first of `others` there is, else -1.

    Nothing wanted: 0.
    """
    if not wanted:
        return 0
    found = [span[0] for text in wanted if (span := place(document, [text]))]
    if found:
        return min(found)
    span = place(document, others)
    return span[0] if span else -1
