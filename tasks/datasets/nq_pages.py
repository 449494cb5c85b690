"""Natural Questions records with their whole page: the simplified form (`document_text`), or the full one
(`document_tokens`).

Tokens are joined by blanks as the format holds them, tags of HTML become line ends, and the answer is the tokens that
an annotation marks, so it is verbatim in the page. One record a column: `page`, the whole of it, and windows of 512, 1024
and 2048 words and signs with the answer at a place drawn by the record's id.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.datasets import passages
from tasks.datasets.fields import Unfit, field, guarded
from tasks.datasets.formats import Entries, Format
from tasks.datasets.records import Record, Unusable
from tasks.datasets.source_files import Files, first_line, json_lines
from tasks.datasets.spans import Span, distinct

PAGE = "page"
TAG = re.compile(r"</?[A-Z][A-Za-z0-9]*(_[^>]*)?>")      # `<P>`, `</Table>`, `<Td_colspan="2">`


def fits(files: Files) -> bool:
    firsts = [first_line(path) for path in files.values()]
    return all(isinstance(first, Mapping) and {"question_text", "annotations"} <= set(first)
               and ("document_text" in first or "document_tokens" in first) for first in firsts)


def read(files: Files, notes: Counter) -> Entries:
    """Four records a line that has a short answer."""
    for path in files.values():
        for where, entry in json_lines(path):
            if isinstance(entry, Unusable):
                yield entry
            else:
                yield from guarded(where, _records, entry, notes)


def _records(entry: Any, notes: Counter) -> Iterator[Record]:
    identifier, question = str(field(entry, "example_id", int, str)), field(entry, "question_text", str).strip()
    marked = _short_answers(field(entry, "annotations", list), question)
    document, places = _page(_tokens(entry))
    spans = [_span(places, start, end, question) for start, end in marked]
    answers = distinct(document[low:high] for low, high in spans)
    if not answers:
        raise Unfit("no_answer", question)
    if "\n" in answers[0]:
        raise Unfit("answer_over_several_lines", f"{answers[0]!r} to {question!r}")
    answers = tuple(answer for answer in answers if "\n" not in answer)
    for column, target in {PAGE: None, **passages.COLUMNS}.items():
        draw = passages.generator(identifier, column)
        shown, keep = (document, spans[0]) if target is None else passages.window(document, spans[0], target, draw)
        if target is not None and passages.count(shown) < passages.SHORT * target:
            notes[f"shorter_than_{column}"] += 1
        yield Record(f"{identifier}/{column}", identifier, shown, question, answers, column=column,
                     title=document.partition("\n")[0].removesuffix(" - wikipedia"), span=keep)


def _short_answers(annotations: Sequence[Any], question: str) -> list[Span]:
    """(start, end) tokens of all short answers. Raises `Unfit` with the reason why there are none."""
    marked = [(field(short, "start_token", int), field(short, "end_token", int)) for annotation in annotations
              for short in field(annotation, "short_answers", list)]
    if marked:
        return marked
    if any(annotation.get("yes_no_answer") in ("YES", "NO") for annotation in annotations):
        raise Unfit("yes_no_answer", question)
    long = [field(annotation, "long_answer", dict) for annotation in annotations]
    if any(answer.get("start_token", -1) >= 0 for answer in long):
        raise Unfit("long_answer_only", question)
    raise Unfit("no_answer", question)


def _tokens(entry: Any) -> list[tuple[str, bool]]:
    """(token, whether it is a tag) of the page."""
    if "document_tokens" in entry:
        return [(field(token, "token", str), bool(token.get("html_token")))
                for token in field(entry, "document_tokens", list)]
    return [(token, TAG.fullmatch(token) is not None) for token in field(entry, "document_text", str).split(" ")]


def _page(tokens: Sequence[tuple[str, bool]]) -> tuple[str, list[Span]]:
    """The page's text, and the characters that each token has in it; a tag has none."""
    pieces: list[str] = []
    places: list[Span] = []
    at, gap = 0, ""
    for token, tag in tokens:
        if tag or not token:
            gap = "\n" if tag and at else gap
            places.append((at, at))
            continue
        pieces += [gap, token]
        places.append((at + len(gap), at + len(gap) + len(token)))
        at, gap = places[-1][1], " "
    return "".join(pieces), places


def _span(places: Sequence[Span], start: int, end: int, question: str) -> Span:
    if not 0 <= start < end <= len(places):
        raise Unfit("answer_not_in_document", f"tokens {start} to {end} of {len(places)} to {question!r}")
    words = [place for place in places[start:end] if place[0] < place[1]]
    if not words:
        raise Unfit("no_answer", f"only tags are marked as the answer to {question!r}")
    return words[0][0], words[-1][1]


NQ_PAGES = Format("nq-pages", "JSON lines of question_text, annotations and document_text (or document_tokens)",
                  (".jsonl",), fits, read)
