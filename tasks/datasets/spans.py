"""Where an answer stands in a document: verbatim, as whole words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

Span = tuple[int, int]


def find(document: str, answer: str) -> Span | None:
    """Characters of the first occurrence that is no part of a longer word; exact case first, then any case.

    `3` is not found in `1993` or `3,000`, nor `Japan` in `Japanese`: what says that is not in the document.
    """
    answer = answer.strip()
    if not answer or answer.casefold() not in document.casefold():       # much the commonest outcome, and the fastest test
        return None
    before = r"(?<!\w)" if _in_word(answer[0]) else ""
    after = r"(?!\w)" if _in_word(answer[-1]) else ""
    before += r"(?<!\d[.,])" if answer[0].isdigit() else ""
    after += r"(?![.,]\d)" if answer[-1].isdigit() else ""
    pattern = before + re.escape(answer) + after
    found = re.search(pattern, document) or re.search(pattern, document, re.IGNORECASE)
    return found.span() if found else None


def found_first(document: str, answers: Sequence[str]) -> tuple[tuple[str, ...], Span] | None:
    """(answers, span): the first answer that the document holds stands first, in the document's own spelling.

    None when it holds none of them. The other answers stay acceptable and follow in their order, none twice.
    """
    for answer in answers:
        span = find(document, answer)
        if span is not None:
            return distinct((document[slice(*span)], *answers)), span
    return None


def distinct(answers: Iterable[str]) -> tuple[str, ...]:
    """Answers without white space around them, empty ones and repeats left out, in order."""
    return tuple(dict.fromkeys(answer.strip() for answer in answers if answer.strip()))


def _in_word(character: str) -> bool:
    return re.match(r"\w", character) is not None
