"""Records of attributes (FDA, SWDE): the cloze is the attribute's name, so no rewriter is asked.

    cloze      `Classification:`               in every template
    question   `What is the classification?`   of the template `clean`
    released   text, key, value                the template `jrt-2407` builds its `Information about Classification.` of it
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.datasets.records import Record
from tasks.datasets.spans import Span


def cloze_for(key: str) -> str:
    """The key with its first letter upper-cased, and a colon."""
    return f"{key[:1].upper()}{key[1:]}:"


def question_for(key: str) -> str:
    """`director` is asked for as `What is the director?`, names in the plural with `are`."""
    name = key.strip()
    plural = name.endswith("s") and not name.endswith(("ss", "us", "is"))
    return f"What {'are' if plural else 'is'} the {name}?"


def record(identifier: str, document_id: str, document: str, key: str, answers: Sequence[str], title: str = "",
           span: Span | None = None) -> Record:
    """The record of one attribute of a document."""
    return Record(identifier, document_id, document, question_for(key), tuple(answers), cloze=cloze_for(key), span=span,
                  title=title)
