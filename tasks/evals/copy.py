"""Copying: a text, then the first words of one of its spans again; the words that follow must come.

The plainest use of what was read, on any text, with nothing to understand. The cue occurs once in the text and stands,
like the answer, on one line. White space between the words is the text's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import Field, model_validator

from tasks.evals.base import Document, EvalTask, Item, Material, Rejection
from tasks.specs import Spec

AT_ONCE = 64      # documents tokenised in one call
TRIES = 64        # places of a document that are looked at
WORD = re.compile(r"\S+")


class Options(Spec):
    """Options of `copy`."""

    cue_words: int = Field(3, ge=1, description="Words that are given again")
    answer_words: tuple[int, int] = Field((2, 4), description="Fewest and most words that must follow")
    spans_per_document: int = Field(1, ge=1, description="Spans asked of a document, if it has as many")

    @model_validator(mode="after")
    def _answer_is_a_range(self) -> Options:
        if not 1 <= self.answer_words[0] <= self.answer_words[1]:
            raise ValueError(f"answer_words must be (fewest, most) with 1 <= fewest <= most, not {self.answer_words}")
        return self


class Copy(EvalTask):
    name = "copy"
    Options = Options

    def columns(self, options: Options) -> tuple[str, ...]:
        return ("span",)

    def items(self, material: Material, options: Options, column: str) -> Iterator[Item | Rejection]:
        documents = material.shuffled(material.split)
        for start in range(0, len(documents), AT_ONCE):
            some = documents[start:start + AT_ONCE]
            for document, view in zip(some, material.view([each.text for each in some]), strict=True):
                yield from self._spans(Document(document.id, view), material, options, column)

    def _spans(self, document: Document, material: Material, options: Options, column: str) -> Iterator[Item | Rejection]:
        places = _places(document.text, options)
        draw = material.draw("span", document.id)
        found = 0
        for start, middle, end in draw.sample(places, min(len(places), TRIES)):
            cue, answer = document.text[start:middle].rstrip(), document.text[middle:end]
            if document.text.count(cue) > 1 or answer.lower() in cue.lower():
                continue
            yield Item(id=f"{column}/{document.id}/{start}", document_id=document.id, document=document.text, question=cue,
                       cloze=cue, answers=(answer,), column=column, keep=(start, end))
            found += 1
            if found == options.spans_per_document:
                return
        if not found:
            yield Rejection(document.id, "no_span_that_occurs_once")


def _places(text: str, options: Options) -> list[tuple[int, int, int]]:
    """(start of the cue, start of the answer, end of the answer) of every span; punctuation behind an answer is left out."""
    fewest, most = options.answer_words
    places, offset = [], 0
    for line in text.split("\n"):
        words = [(offset + word.start(), offset + word.end()) for word in WORD.finditer(line)]
        for first in range(len(words) - options.cue_words - fewest + 1):
            answer = first + options.cue_words
            last = min(answer + most, len(words)) - 1
            begin, end = words[answer][0], words[last][1]
            end = begin + len(text[begin:end].rstrip(".,;:!?"))
            if end > begin:
                places.append((words[first][0], begin, end))
        offset += len(line) + 1
    return places
