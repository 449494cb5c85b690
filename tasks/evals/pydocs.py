"""Documentation of Python packages: what does this docstring say about `name`?

Columns: `natural`, documents that were held out of training; `swap`, the same with every attribute's value replaced by
a random one of the training split, so that nothing can be known or guessed; `held_out`, documents of packages of which
training saw nothing. Near-duplicates inside a package make `natural` easier than it looks; read all three.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from tasks import prompts
from tasks.evals.base import Document, EvalTask, Item, Material, Rejection
from tasks.specs import Spec

Column = Literal["natural", "swap", "held_out"]
AT_ONCE = 64      # documents tokenised in one call


class Options(Spec):
    """Options of `pydocs`."""

    columns: tuple[Column, ...] = Field(("natural", "swap", "held_out"), min_length=1, description="What is asked")
    questions_per_document: int = Field(1, ge=1, description="Attributes asked of a document, if it has as many")


class PyDocs(EvalTask):
    name = "pydocs"
    Options = Options

    def columns(self, options: Options) -> tuple[str, ...]:
        return options.columns

    def items(self, material: Material, options: Options, column: str) -> Iterator[Item | Rejection]:
        split = "held_out" if column == "held_out" else material.split
        documents = material.shuffled(split)
        for start in range(0, len(documents), AT_ONCE):
            some = documents[start:start + AT_ONCE]
            texts = [self._text(document, material, column) for document in some]
            views = material.view([text or "" for text in texts])
            for document, text, view in zip(some, texts, views, strict=True):
                if text is None:
                    yield Rejection(document.id, "no_other_value")
                else:
                    yield from self._questions(document.id, view, material, options, column)

    def _text(self, document: Document, material: Material, column: str) -> str | None:
        if column != "swap":
            return document.text
        return material.pool.swapped(document.text, material.draw("swap", document.id))

    def _questions(self, document_id: str, view: str, material: Material, options: Options,
                   column: str) -> Iterator[Item | Rejection]:
        found = prompts.askable(view)
        if not found:
            yield Rejection(document_id, "no_attribute_in_view")
        draw = material.draw("question", document_id)
        for attribute in draw.sample(found, min(options.questions_per_document, len(found))):
            text = prompts.question_for(attribute.name)
            yield Item(
                id=f"{column}/{document_id}/{attribute.name}", document_id=document_id, document=view, question=text,
                cloze=text, answers=(attribute.value,), column=column, keep=(attribute.start, attribute.end),
                uncommon=material.pool.uncommon(attribute.name, attribute.value))
