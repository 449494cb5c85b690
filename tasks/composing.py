"""Items become prompts: the document is cut to its budget, put in every order, and checked before a model sees it.

What a reader may rely on, for every row that comes out:
* all orders of an item show the same document, and its answer and question are in it;
* prompt, leading end-of-text token and generation together never exceed `total_tokens`;
* a prompt neither begins nor ends with white space, and tokenising prompt + " " + answer begins with the prompt's own
  tokens, so that the model continues exactly what it would have read;
* an item that breaks a rule in one order, or in a control, is rejected in all of them, under one reason.

Controls stand beside every order. `empty` asks the same question without the document: the order's early question, if
it has one, a blank line, the cloze; orders that differ only in the document give the same text. `other` shows another
document of the same column in which the answer does not occur.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from tasks import prompts
from tasks.cutting import cut_around
from tasks.evals.base import Document, EvalTask, Item, Material, Rejection
from tasks.prompts import Prompt
from tasks.specs import ClozeSpec

CONTROLS = ("none", "empty", "other")
CANDIDATES = 16      # other documents tried for a control


@dataclass(frozen=True)
class Row:
    """One line of prompts.arrow. `tokens` counts the prompt; `tail_tokens` its end that stays out of a prefix."""

    id: str
    document_id: str
    column: str
    uncommon: bool
    order: str
    control: str
    prompt: str
    tail: str
    answers: tuple[str, ...]
    tokens: int
    tail_tokens: int


@dataclass(frozen=True)
class Checked:
    """Prompts of one document in every order with their token counts, or the reason why they cannot be used."""

    prompts: dict[str, Prompt]
    tokens: dict[str, int]
    tail_tokens: dict[str, int]
    reason: str | None = None

    @property
    def longest(self) -> int:
        return max(self.tokens.values())


class Composer:
    """Writes the rows of one item at a time, in the orders of the spec."""

    def __init__(self, spec: ClozeSpec, task: EvalTask, tokenizer, controls: Sequence[str] = CONTROLS) -> None:
        self.spec, self.task, self.tokenizer, self.controls = spec, task, tokenizer, controls
        generation = min(spec.generation_tokens, task.generation_tokens or spec.generation_tokens)
        self.room = spec.total_tokens - generation - task.end_of_text_first          # tokens of the longest prompt
        self.copies = max(sum(part in "DX" for part in prompts.PARTS.get(order, "D")) for order in spec.orders)
        self.document_tokens = spec.document_tokens if spec.budget == "document" else max(self.room, 0) // self.copies

    def view(self, texts: Sequence[str]) -> list[str]:
        """As much of each text as a prompt can show at most, without white space around it."""
        return prompts.cut_all([text.strip() for text in texts], self.tokenizer, self.document_tokens)

    def rows(self, item: Item, others: Sequence[Document], material: Material) -> list[Row] | Rejection:
        """All orders and controls of an item, or why it is rejected. `others`: documents of the same column."""
        strangers = [other.text for other in islice(self._strangers(others, item, material), CANDIDATES)]
        document, asked = self._fitted(item, strangers)
        if asked.reason:
            return Rejection(item.document_id, asked.reason)
        found = {"none": asked}
        if "empty" in self.controls:
            found["empty"] = self._checked(item, None, None)
        if "other" in self.controls:
            found["other"] = self._other(item, document, strangers)
        reason = next((each.reason for each in found.values() if each.reason), None)
        if reason:
            return Rejection(item.document_id, reason)
        return [Row(item.id, item.document_id, item.column, item.uncommon, order, control, each.prompts[order].text,
                    each.prompts[order].tail, item.answers, each.tokens[order], each.tail_tokens[order])
                for order in self.spec.orders for control, each in found.items()]

    def _fitted(self, item: Item, strangers: Sequence[str]) -> tuple[str, Checked]:
        """The longest cut with which every order fits (budget `total`), or the one cut there is (`document`)."""
        limit = self.document_tokens
        while True:
            document = self._cut(item, limit)
            if document is None:
                return "", Checked({}, {}, {}, "answer_does_not_fit")
            length = len(self._encode([document])[0])
            filler = self._filler(strangers, length)
            if "filler" in self.spec.orders and filler is None:
                return document, Checked({}, {}, {}, "no_other_document")
            asked = self._checked(item, document, filler)
            over = asked.longest - self.room if asked.reason == "prompt_too_long" else 0
            if over <= 0 or self.spec.budget == "document" or not self.task.cuttable:
                return document, asked
            limit = length - -(-over // self.copies)

    def _cut(self, item: Item, limit: int) -> str | None:
        if not self.task.cuttable:
            return item.document
        return cut_around(item.document, self.tokenizer, limit, item.keep)

    def _other(self, item: Item, document: str, strangers: Sequence[str]) -> Checked:
        """The first other document whose prompts pass, at most as long as the item's in tokens allowed."""
        length = len(self._encode([document])[0])
        filler = self._filler(strangers, length)
        for text in strangers:
            text = text if not self.task.cuttable else prompts.cut(text, self.tokenizer, self.document_tokens)
            checked = self._checked(item, text, filler) if text else None
            if checked is not None and checked.reason is None:
                return checked
        return Checked({}, {}, {}, "no_other_document")

    def _strangers(self, others: Sequence[Document], item: Item, material: Material) -> Iterator[Document]:
        """The other documents without the answer, from a place that depends on the item."""
        start = material.draw("other", item.id).randrange(len(others)) if others else 0
        for k in range(len(others)):
            other = others[(start + k) % len(others)]
            if other.id != item.document_id and not self.task.mentions(other.text, item):
                yield other

    def _filler(self, strangers: Sequence[str], length: int) -> str | None:
        """Other text of `length` tokens, several documents if one is too short; None when there is no other."""
        if "filler" not in self.spec.orders or not strangers:
            return None
        text, ids = "", []
        for k in range(length * len(strangers)):
            text = f"{text}\n{strangers[k % len(strangers)]}" if text else strangers[0]
            ids = self._encode([text])[0]
            if len(ids) >= length:
                break
        kept = b"".join(self.tokenizer.token_bytes(token) for token in ids[:length])
        return kept.decode("utf-8", errors="ignore").strip()

    def _checked(self, item: Item, document: str | None, filler: str | None) -> Checked:
        """Compose every order, tokenise it with and without each answer, and apply the rules above."""
        written = {order: self.task.compose(order, document, item, filler, self.spec.template)
                   for order in self.spec.orders}
        texts = [prompt.text for prompt in written.values()]
        ids = self._encode(texts + [f"{text} {answer}" for text in texts for answer in item.answers])
        alone, answered = ids[:len(texts)], ids[len(texts):]
        each = len(item.answers)
        reason = None
        for k, (text, tokens) in enumerate(zip(texts, alone)):
            if text != text.strip() or not text:
                reason = reason or "white_space_around_prompt"
            elif any(longer[:len(tokens)] != tokens for longer in answered[k * each:(k + 1) * each]):
                reason = reason or "tokens_change_at_answer"
        if reason is None and max(map(len, alone)) > self.room:
            reason = "prompt_too_long"
        tails = {order: self._tail_tokens(tokens, written[order].tail) for order, tokens in zip(written, alone)}
        return Checked(written, dict(zip(written, map(len, alone))), tails, reason)

    def _tail_tokens(self, tokens: list[int], tail: str) -> int:
        """How many last tokens hold the tail; one that also holds text before it is counted in."""
        wanted, count = len(tail.encode()), 0
        while wanted > 0 and count < len(tokens):
            count += 1
            wanted -= len(self.tokenizer.token_bytes(tokens[-count]))
        return count

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return self.tokenizer.encode_batch(texts)
