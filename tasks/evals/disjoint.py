"""JRT's set intersection (its Algorithm 1): two sets of ids with exactly one element in common. Which?

A prompt is `1 A 2 B 3` and its answer one id; ids 0 to 3 are special, the rest is content. Content is split in two at
random for every example, A comes from one half and B from the other, and one element of A is written over one of B.
The order is the variable: with the large set first a model that reads once cannot know what to keep. Both orders hold
the same sets. There is no cloze line, so the whole prompt is prefix.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pydantic import Field, model_validator

from tasks.evals.base import EvalTask, Item, Material
from tasks.prompts import Prompt
from tasks.specs import Spec

FIRST, SECOND, ANSWER, CONTENT = 1, 2, 3, 4      # the three marks and the first content id
BETWEEN = f" {SECOND} "


class Options(Spec):
    """Options of `disjoint`."""

    vocabulary: int = Field(256, ge=32, description="Ids in all; the model's vocabulary")
    sizes: tuple[tuple[int, int], ...] = Field(
        ((4, 16), (4, 32), (4, 64)), min_length=1, description="(small, large) set sizes, a column each")
    examples: int = Field(512, ge=1, description="Examples of a size; the spec's limit cuts them")

    @model_validator(mode="after")
    def _sets_fit(self) -> Options:
        half = (self.vocabulary - CONTENT) // 2
        for small, large in self.sizes:
            if not 1 <= small <= large <= half:
                raise ValueError(f"sizes ({small}, {large}) must satisfy 1 <= small <= large <= {half}, "
                                 f"half of the content ids of vocabulary {self.vocabulary}")
        return self


class Disjoint(EvalTask):
    name = "disjoint"
    Options = Options
    orders = ("small_first", "large_first")
    default_orders = orders
    needs_corpus = False
    cuttable = False
    end_of_text_first = False
    generation_tokens = 1
    metric = "exact"          # an id is right or wrong; 171 contains 17

    def columns(self, options: Options) -> tuple[str, ...]:
        return tuple(f"{small}|{large}" for small, large in options.sizes)

    def items(self, material: Material, options: Options, column: str) -> Iterator[Item]:
        small, large = map(int, column.split("|"))
        for number in range(options.examples):
            document_id = f"{column}/{number:06d}"
            draw = np.random.default_rng(material.draw(document_id).getrandbits(64))
            small_set, large_set, common = sets(small, large, options.vocabulary, draw)
            document = BETWEEN.join(" ".join(map(str, ids)) for ids in (small_set, large_set))
            yield Item(id=document_id, document_id=document_id, document=document, question="", cloze="",
                       answers=(str(common),), column=column)

    def compose(self, order: str, document: str | None, item: Item, filler: str | None = None,
                template: str = "clean") -> Prompt:
        small_set, _, large_set = (document or BETWEEN).partition(BETWEEN)
        first, second = (small_set, large_set) if order == "small_first" else (large_set, small_set)
        return Prompt(" ".join(f"{FIRST} {first} {SECOND} {second} {ANSWER}".split()), "")

    def mentions(self, document: str, item: Item) -> bool:
        return item.answers[0] in document.split()

    def vocabulary_tokenizer(self, options: Options) -> str:
        return f"ids:{options.vocabulary}"


def sets(small: int, large: int, vocabulary: int, draw: np.random.Generator) -> tuple[list[int], list[int], int]:
    """A small and a large set of content ids and their one common element."""
    content = draw.permutation(np.arange(CONTENT, vocabulary))
    half = content.size // 2
    small_set, large_set = (draw.choice(part, size, replace=False)
                            for part, size in ((content[:half], small), (content[half:], large)))
    common = int(draw.choice(small_set))
    large_set[draw.integers(large)] = common
    return small_set.tolist(), large_set.tolist(), common
