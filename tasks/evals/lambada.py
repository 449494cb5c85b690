"""The last word of a passage, in the manner of LAMBADA: several sentences, then a last one without its last word.

From any text. The word occurred before in the passage, so that it can be recalled, and not in the last sentence itself.
Words of closed classes and short ones are not asked. A sentence ends with its punctuation, with its paragraph, or with a
line whose neighbour is indented otherwise (a list, a heading); a line break inside a paragraph is a blank.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import Field

from tasks.evals.base import Document, EvalTask, Item, Material, Rejection
from tasks.rewriting.words import ADVERBS, AUXILIARIES, CLAUSES, DETERMINERS, JOINERS, PREPOSITIONS, PRONOUNS, WH
from tasks.specs import Spec

AT_ONCE = 64      # documents tokenised in one call
CLOSED = ADVERBS | AUXILIARIES | CLAUSES | DETERMINERS | JOINERS | PREPOSITIONS | PRONOUNS | WH
SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*(?=\s|$)")
LAST_WORD = re.compile(r"(?<![\w'’-])([^\W\d_][\w'’-]*)[^\w\s]*$")


class Options(Spec):
    """Options of `lambada`."""

    sentences: int = Field(2, ge=1, description="Fewest sentences before the last one")
    letters: int = Field(3, ge=1, description="Shortest word that is asked [characters]")
    words_before: int = Field(2, ge=1, description="Fewest words of the last sentence that are shown")
    passages_per_document: int = Field(1, ge=1, description="Passages asked of a document, if it has as many")


class Lambada(EvalTask):
    name = "lambada"
    Options = Options

    def columns(self, options: Options) -> tuple[str, ...]:
        return ("last_word",)

    def items(self, material: Material, options: Options, column: str) -> Iterator[Item | Rejection]:
        documents = material.shuffled(material.split)
        for start in range(0, len(documents), AT_ONCE):
            some = documents[start:start + AT_ONCE]
            for document, view in zip(some, material.view([each.text for each in some]), strict=True):
                yield from self._passages(Document(document.id, view), material, options, column)

    def _passages(self, document: Document, material: Material, options: Options,
                  column: str) -> Iterator[Item | Rejection]:
        found = [item for item in _asked(document, options, column)]
        if not found:
            yield Rejection(document.id, "no_last_word_said_before")
        yield from material.draw("passage", document.id).sample(found, min(options.passages_per_document, len(found)))


def _asked(document: Document, options: Options, column: str) -> Iterator[Item]:
    """One item for each sentence whose last word was said before it."""
    spans = sentences(document.text)
    for number in range(options.sentences, len(spans)):
        start, end = spans[number]
        word = LAST_WORD.search(document.text[start:end])
        if word is None or len(word[1]) < options.letters or word[1].lower() in CLOSED:
            continue
        shown = " ".join(document.text[start:start + word.start()].split())
        passage = document.text[:start].rstrip()
        said = [each for each in re.finditer(rf"(?<![\w-]){re.escape(word[1])}(?![\w-])", passage)]
        if said and len(shown.split()) >= options.words_before and word[1].lower() not in shown.lower():
            yield Item(id=f"{column}/{document.id}/{start}", document_id=document.id, document=passage, question=shown,
                       cloze=shown, answers=(word[1],), column=column, keep=said[-1].span())


def sentences(text: str) -> list[tuple[int, int]]:
    """(start, end) of every sentence, in order, without the white space around it."""
    ends = {match.end() for match in SENTENCE_END.finditer(text)} | set(_line_ends(text)) | {len(text)}
    spans, start = [], 0
    for end in sorted(ends):
        held = text[start:end]
        if held.strip():
            spans.append((start + len(held) - len(held.lstrip()), start + len(held.rstrip())))
        start = end
    return spans


def _line_ends(text: str) -> Iterator[int]:
    """Ends of lines that no sentence runs over: before an empty line or one of another indent."""
    offset, lines = 0, text.split("\n")
    for line, following in zip(lines, lines[1:]):
        offset += len(line)
        if not following.strip() or _indent(line) != _indent(following):
            yield offset
        offset += 1


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
