"""The text of a prompt: what an attribute is, how a document is cut, and the six orders.

Training rows and evaluation prompts are both written here, so that a model is asked in the form it was trained in.
With D the document, Q the question, C the cloze to complete and X other text:

    default          D C            twice       Q D D C       (the template of JRT)
    question_first   Q D C          repeat      D D C
    alternate        D Q D C        filler      D X C

Parts are separated by one newline, and the cloze by a blank line: nothing before the blank line belongs to the
cloze, so a prefix model can read all of it and leave the cloze line to its causal suffix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from storage.errors import SpecError

# Numpydoc writes `name : type`. Only lines at the margin count: indented ones describe something else.
ATTRIBUTE_LINE = re.compile(r"^(\w+) ?: (\S[^\n]{1,58}\S)$", re.MULTILINE)
BLANK_LINE = "\n\n"
# What stands before the blank line, in order: D document, Q question, X filler.
PARTS = {
    "default": "D", "question_first": "QD", "twice": "QDD", "repeat": "DD", "alternate": "DQD", "filler": "DX",
}


class Encoder(Protocol):
    """What cutting needs of a tokenizer."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...

    def token_bytes(self, token: int) -> bytes: ...


@dataclass(frozen=True)
class Prompt:
    """A prompt and the end of it (`tail`, the cloze) that is kept out of a prefix."""

    text: str
    tail: str

    @property
    def head(self) -> str:
        """All before the tail; ends with the blank line."""
        return self.text[: len(self.text) - len(self.tail)]


@dataclass(frozen=True)
class Attribute:
    """A line `name : value` of a document; start and end are the characters of the value."""

    name: str
    value: str
    start: int
    end: int


def compose(order: str, document: str, question: str, cloze: str, filler: str | None = None) -> Prompt:
    """One prompt. `filler` is needed by the order of that name and by no other.

    Raises SpecError for an unknown order, or for `filler` without its text.
    """
    if order not in PARTS:
        raise SpecError(f"order {order!r} is unknown; choose one of {', '.join(PARTS)}")
    if order == "filler" and filler is None:
        raise SpecError("order 'filler' needs a text to stand between the document and the cloze; pass `filler`")
    texts = {"D": document, "Q": question, "X": filler}
    head = "\n".join(texts[part] for part in PARTS[order]) + BLANK_LINE
    return Prompt(head + cloze, cloze)


def place(document: str, answers: Sequence[str]) -> tuple[int, int] | None:
    """Characters of the first of these answers that occurs, letter case apart; None where none does."""
    for answer in answers:
        found = re.search(re.escape(answer), document, re.IGNORECASE) if answer else None
        if found:
            return found.span()
    return None


def question_for(name: str) -> str:
    """Question and cloze of an attribute are the same text; training lines continue it with ` value`."""
    return f"{name} :"


def attributes(document: str) -> list[Attribute]:
    """All lines `name : value` with a value of 3 to 60 characters, in order, repeated names included."""
    return [Attribute(m[1], m[2], m.start(2), m.end(2)) for m in ATTRIBUTE_LINE.finditer(document)]


def askable(document: str) -> list[Attribute]:
    """The attributes with one right answer: a name that occurs with two different values is left out."""
    first: dict[str, Attribute] = {}
    ambiguous = set()
    for attribute in attributes(document):
        if first.setdefault(attribute.name, attribute).value != attribute.value:
            ambiguous.add(attribute.name)
    return [attribute for name, attribute in first.items() if name not in ambiguous]


def with_values(document: str, values: Mapping[str, str]) -> str:
    """The document with the value of each named attribute replaced wherever its name occurs; others stay."""
    pieces, at = [], 0
    for attribute in attributes(document):
        if attribute.name in values:
            pieces += [document[at : attribute.start], values[attribute.name]]
            at = attribute.end
    return "".join(pieces) + document[at:]


def cut(document: str, tokenizer: Encoder, maximum_tokens: int) -> str:
    """The document up to its last full line within `maximum_tokens`; empty when not even one line fits."""
    return cut_all([document], tokenizer, maximum_tokens)[0]


def cut_all(documents: Iterable[str], tokenizer: Encoder, maximum_tokens: int) -> list[str]:
    """`cut` for many documents in few calls of the tokenizer. White space at the end of a document goes too."""
    documents = [document.rstrip() for document in documents]
    if maximum_tokens < 1:
        return [""] * len(documents)
    results: list[str | None] = [None] * len(documents)
    waiting, look = list(range(len(documents))), 8 * maximum_tokens     # characters, grown while too few tokens
    while waiting:
        heads = [_first_lines(documents[k], look) for k in waiting]
        again = []
        for k, head, ids in zip(waiting, heads, tokenizer.encode_batch(heads), strict=True):
            if len(ids) > maximum_tokens:
                kept = b"".join(tokenizer.token_bytes(i) for i in ids[:maximum_tokens])
                results[k] = _full_lines(head, kept)
            elif len(head) == len(documents[k]):
                results[k] = head
            else:
                again.append(k)
        waiting, look = again, 4 * look
    return results


def _first_lines(document: str, characters: int) -> str:
    """A head of the document, `characters` to twice as long, that ends with a line, so that its tokens are the document's.

    Inside a line that is longer it ends anywhere: that line is then looked at further, or is too long whatever follows.
    """
    end = document.find("\n", characters, 2 * characters)
    return document[: 2 * characters if end < 0 else end]


def _full_lines(head: str, kept: bytes) -> str:
    """The full lines of `head` inside its first bytes `kept`."""
    raw = head.encode()
    end = len(kept) if raw[len(kept) : len(kept) + 1] == b"\n" else kept.rfind(b"\n")
    return raw[: max(end, 0)].decode().rstrip()
