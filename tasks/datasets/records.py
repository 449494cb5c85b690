"""What a reader of question-answer data gives: records, and what could not be used, with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Record:
    """One question about one document.

    id           unique in its data set
    document     whole text, as the format holds it
    answers      acceptable answers, the first is the one that the cloze ends in
    cloze        statement without its answer where the data set brings one (FDA, SWDE, the published sets), else None
    span         characters of the answer in the document, where the format says; None = the first occurrence
    column       the group it is scored in
    title        of the document, "" where it has none
    released     fields of the published set, verbatim, for the template `jrt-2407`; None where there are none
    where        the file and the record in it, for messages
    """

    id: str
    document_id: str
    document: str
    question: str
    answers: tuple[str, ...]
    cloze: str | None = None
    span: tuple[int, int] | None = None
    column: str = "all"
    title: str = ""
    released: Mapping[str, Any] | None = None
    where: str = ""


@dataclass(frozen=True)
class Unusable:
    """A record that cannot be asked. It is counted under `reason` (snake_case); `where` names the file and record."""

    where: str
    reason: str
    detail: str = ""
