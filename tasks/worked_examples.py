"""Worked examples before a question: other questions of the same column with their answers, in the same order and template.

They are drawn for each item apart, from documents other than its own and no document twice, and only from those in
which the item's answer does not occur, so that a control, which keeps the examples, stays one. The draw depends on the
seed and the item: two shots begin with the one shot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tasks import templates
from tasks.evals.base import EvalTask, Item, Material
from tasks.prompts import BLANK_LINE, Prompt
from tasks.specs import ClozeSpec


class Examples:
    """Draws and writes them. cut: item -> the item over its cut document, None when that does not hold its answer."""

    def __init__(self, spec: ClozeSpec, task: EvalTask, cut: Callable[[Item], Item | None]) -> None:
        self.spec, self.task = spec, task
        self._cut, self._usable = cut, {}

    def drawn(self, item: Item, pool: Mapping[str, Sequence[Item]], material: Material) -> list[Item] | None:
        """As many as the spec asks for, whole; None when there are too few. pool: document -> its items."""
        found: list[Item] = []
        draw = material.draw("shots", item.id) if self.spec.shots else None
        documents = draw.sample(sorted(pool), len(pool)) if draw else []
        for document_id in documents:
            if len(found) == self.spec.shots:
                break
            example = draw.choice(pool[document_id])
            texts = {item.document, *(other.document for other in found)}
            if document_id != item.document_id and example.document not in texts and self._fair(example, item):
                found.append(example)
        return found if len(found) == self.spec.shots else None

    def _fair(self, example: Item, item: Item) -> bool:
        """Whether the example says nothing of the item's answer and its own can be shown."""
        if any(self.task.mentions(text, item) for text in (example.document, example.question, example.cloze,
                                                          *example.answers)):
            return False
        if example.id not in self._usable:
            self._usable[example.id] = self._cut(example) is not None
        return self._usable[example.id]

    def before(self, order: str, worked: Sequence[Item], asked: Prompt) -> Prompt:
        """The prompt behind its examples, blank lines between them; its tail stays its own."""
        if not worked:
            return asked
        texts = [self._written(order, example) for example in worked]
        return Prompt(BLANK_LINE.join([*texts, asked.text]), asked.tail)

    def _written(self, order: str, example: Item) -> str:
        prompt = self.task.compose(order, example.document, example, None, self.spec.template)
        released = templates.RELEASED.get(self.spec.template)
        answer = released.target(self.task.name, example.released) if released else f" {example.answers[0]}"
        return prompt.text + answer
