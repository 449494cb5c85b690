"""Worked examples before a question: other questions of the same column with their answers, in the same order and template.

They are drawn for each item apart, from documents other than its own and no document twice, and only such in which, as
far as they are shown, the item's answer does not occur, so that a control, which keeps the examples, stays one. The draw
depends on the seed and the item: two shots begin with the one shot.
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
        self._cut, self._shown = cut, {}

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
        """Whether the example can be shown and says nothing of the item's answer."""
        if example.id not in self._shown:
            cut = self._cut(example)
            self._shown[example.id] = None if cut is None else self._text(cut)
        shown = self._shown[example.id]
        return shown is not None and not self.task.mentions(shown, item)

    def give_away(self, worked: Sequence[Item], item: Item) -> bool:
        """Whether examples whose documents were cut anew hold the item's answer."""
        return any(self.task.mentions(self._text(example), item) for example in worked)

    def _text(self, example: Item) -> str:
        """All that any order shows of a cut example."""
        return "\n".join(self._written(order, example) for order in self.spec.orders)

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
