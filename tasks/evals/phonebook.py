"""Synthetic phone books: lines `name: number`, then one name.

Names and numbers are made up, so nothing can be known or guessed, and no number is part of another. One column for each
size; a book is never cut, because its size is what makes it hard. The corpus gives the tokenizer only.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from pydantic import Field, model_validator

from tasks.evals.base import EvalTask, Item, Material
from tasks.specs import Spec

STARTS = "B Br D F Fr G Gr H J K Kl L M N P Pr R S St T Tr V W Z".split()
VOWELS = "a e i o u ai ea".split()
MIDDLES = "b d l ll m n nd r rt s st t v".split()
ENDS = "ck d l n nd r rs s th x".split()


class Options(Spec):
    """Options of `phonebook`."""

    entries: tuple[int, ...] = Field((4, 8, 16), min_length=1, description="Lines of a book; each number is a column")
    digits: int = Field(7, ge=4, le=12, description="Digits of a number, a hyphen before the last four from five on")
    books: int = Field(300, ge=1, description="Books of each size to draw; the spec's limit cuts them")

    @model_validator(mode="after")
    def _sizes_are_possible(self) -> Options:
        if len(set(self.entries)) < len(self.entries) or not all(1 <= size <= 1000 for size in self.entries):
            raise ValueError(f"entries must be different sizes from 1 to 1000, not {self.entries}")
        return self


class Phonebook(EvalTask):
    name = "phonebook"
    Options = Options
    cuttable = False

    def columns(self, options: Options) -> tuple[str, ...]:
        return tuple(f"{size}_entries" for size in options.entries)

    def items(self, material: Material, options: Options, column: str) -> Iterator[Item]:
        size = int(column.partition("_")[0])
        for number in range(options.books):
            document_id = f"book-{size}-{number:06d}"
            draw = material.draw(document_id)
            names, numbers = names_of(draw, size), numbers_of(draw, size, options.digits)
            document = "\n".join(f"{name}: {dialled}" for name, dialled in zip(names, numbers))
            asked = draw.randrange(size)
            start = document.index(numbers[asked])
            text = f"{names[asked]}:"
            yield Item(id=f"{column}/{document_id}/{names[asked]}", document_id=document_id, document=document,
                       question=text, cloze=text, answers=(numbers[asked],), column=column,
                       keep=(start, start + len(numbers[asked])))


def names_of(draw: random.Random, count: int) -> list[str]:
    """`count` names of two made-up words; no name is part of another."""
    found: list[str] = []
    while len(found) < count:
        name = f"{_word(draw)} {_word(draw)}"
        if not any(name in other or other in name for other in found):
            found.append(name)
    return found


def numbers_of(draw: random.Random, count: int, digits: int) -> list[str]:
    """`count` different numbers of equally many digits, so that none is part of another; the first digit is no zero."""
    found = draw.sample(range(10 ** (digits - 1), 10**digits), count)
    return [text if digits == 4 else f"{text[:-4]}-{text[-4:]}" for text in map(str, found)]


def _word(draw: random.Random) -> str:
    middle = draw.choice(MIDDLES) + draw.choice(VOWELS) if draw.random() < 0.5 else ""
    return draw.choice(STARTS) + draw.choice(VOWELS) + middle + draw.choice(ENDS)
