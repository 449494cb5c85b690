"""Synthetic lists: a few lines `name : value` with names and values drawn apart, then one name.

The plainest form of recall. No line says more than itself, no value is part of another, and no name foretells its value.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field, model_validator

from tasks import prompts
from tasks.evals.base import EvalTask, Item, Material
from tasks.specs import Spec


class Options(Spec):
    """Options of `lookup`."""

    lines: tuple[int, int] = Field((4, 8), description="Fewest and most lines of a list")
    lists: int = Field(300, ge=1, description="Lists to draw; the spec's limit cuts them")

    @model_validator(mode="after")
    def _lines_are_a_range(self) -> Options:
        if not 1 <= self.lines[0] <= self.lines[1]:
            raise ValueError(f"lines must be (fewest, most) with 1 <= fewest <= most, not {self.lines}")
        return self


class Lookup(EvalTask):
    name = "lookup"
    Options = Options

    def columns(self, options: Options) -> tuple[str, ...]:
        return ("list",)

    def items(self, material: Material, options: Options, column: str) -> Iterator[Item]:
        for number in range(options.lists):
            document_id = f"list-{number:06d}"
            draw = material.draw(document_id)
            pairs = material.pool.listed(draw.randint(*options.lines), draw)
            document = "\n".join(f"{name} : {value}" for name, value in pairs)
            asked = draw.choice(prompts.attributes(document))
            text = prompts.question_for(asked.name)
            yield Item(id=f"{column}/{document_id}/{asked.name}", document_id=document_id, document=document,
                       question=text, cloze=text, answers=(asked.value,), column=column,
                       keep=(asked.start, asked.end))
