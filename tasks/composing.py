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

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from tasks import prompts, templates
from tasks.asked_items import end_of_text_first
from tasks.cutting import cut_around
from tasks.evals.base import Document, EvalTask, Item, Material, Rejection
from tasks.prompts import Prompt
from tasks.specs import ClozeSpec
from tasks.templates import jrt_cut
from tasks.worked_examples import Examples

CONTROLS = ("none", "empty", "other")
CANDIDATES = 16      # other documents tried for a control
BOUNDARY = 32        # last tokens of a prompt that an answer behind it could change


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
    """Prompts of one document in every order with their token counts, or the reason why they cannot be used.

    notes: what is odd about them and was let through, as released templates are
    """

    prompts: dict[str, Prompt]
    tokens: dict[str, int]
    tail_tokens: dict[str, int]
    reason: str | None = None
    notes: frozenset[str] = frozenset()

    @property
    def longest(self) -> int:
        return max(self.tokens.values())


def unusable(reason: str) -> Checked:
    """No prompts, for this reason."""
    return Checked({}, {}, {}, reason)


class Composer:
    """Writes the rows of one item at a time, in the orders of the spec.

    notes: name -> items that were written although; see `Checked`, and `document_cut`: the document was shortened
    """

    def __init__(self, spec: ClozeSpec, task: EvalTask, tokenizer, controls: Sequence[str] = CONTROLS) -> None:
        self.spec, self.task, self.tokenizer, self.controls = spec, task, tokenizer, controls
        generation = min(spec.generation_tokens, task.generation_tokens or spec.generation_tokens)
        self.released = templates.RELEASED.get(spec.template)
        self.room = spec.total_tokens - generation - end_of_text_first(task, spec.template)  # tokens of the longest prompt
        self.copies = self._copies(spec.shots)
        self.document_tokens = self._document_tokens(spec.shots)
        self.notes: Counter[str] = Counter()
        self.widest = max(spec.orders, key=lambda order: (_documents(order), "Q" in prompts.PARTS.get(order, "")))
        self._heads: dict[str, str] = {}
        self.examples = Examples(spec, task, lambda item: self._cut(item, self.document_tokens))

    def _copies(self, shots: int) -> int:
        """How often the longest order shows a document, those of worked examples included."""
        return (1 + shots) * max(map(_documents, self.spec.orders))

    def _document_tokens(self, shots: int) -> int:
        return max(self.room, 0) // self._copies(shots) if self.spec.budget == "total" else self.spec.document_tokens

    def view(self, texts: Sequence[str]) -> list[str]:
        """As much of each text as a prompt can show at most, without white space around it."""
        return prompts.cut_all([text.strip() for text in texts], self.tokenizer, self.document_tokens)

    def rows(self, item: Item, others: Sequence[Document], material: Material,
             pool: Mapping[str, Sequence[Item]] | None = None) -> list[Row] | Rejection:
        """All orders and controls of a prepared item, or why it is rejected.

        others: documents of the same column; pool: their items, from which worked examples are drawn
        """
        worked = self.examples.drawn(item, pool or {}, material)
        if worked is None:
            return Rejection(item.document_id, "too_few_examples")
        shown_already = {example.document_id for example in worked}
        strangers = list(islice(self._strangers(others, item, material, shown_already), CANDIDATES))
        shown, worked, asked = self._fitted(item, worked, strangers)
        if asked.reason:
            return Rejection(item.document_id, asked.reason)
        if self.spec.budget == "total" and self.examples.give_away(worked, item):
            return Rejection(item.document_id, "too_few_examples")
        found = {"none": asked}
        if "empty" in self.controls:
            found["empty"] = self._checked(shown, None, None, worked)
        if "other" in self.controls:
            found["other"] = self._other(shown, strangers, worked)
        reason = next((each.reason for each in found.values() if each.reason), None)
        if reason:
            return Rejection(item.document_id, reason)
        self.notes.update(asked.notes | self._cut_notes(item, shown))
        return [Row(item.id, item.document_id, item.column, item.uncommon, order, control, each.prompts[order].text,
                    each.prompts[order].tail, item.answers, each.tokens[order], each.tail_tokens[order])
                for order in self.spec.orders for control, each in found.items()]

    def _fitted(self, item: Item, worked: Sequence[Item], strangers: Sequence[str]) -> tuple[Item, list[Item], Checked]:
        """The item and its examples with their documents cut, and the prompts, or why there are none.

        Budget `total`: the longest cut with which every order fits, the same for all documents; else the one cut there is.
        """
        shown, examples, asked = self._longest(item, worked, strangers)
        if worked and asked.reason in ("prompt_too_long", "answer_does_not_fit"):
            _, _, alone = self._longest(item, (), strangers)
            if alone.reason is None:
                asked = unusable("shots_do_not_fit")
        return shown, examples, asked

    def _longest(self, item: Item, worked: Sequence[Item], strangers: Sequence[str]) -> tuple[Item, list[Item], Checked]:
        limit, copies = self._document_tokens(len(worked)), self._copies(len(worked))
        while True:
            shown, examples = self._cut(item, limit), [self._cut(example, limit) for example in worked]
            if shown is None:
                return item, [], unusable("answer_too_short" if self.spec.budget == "released" else "answer_does_not_fit")
            if None in examples:
                return item, [], unusable("answer_does_not_fit")
            lengths = [len(ids) for ids in self._encode([each.document for each in (shown, *examples)])]
            filler = self._filler(strangers, lengths[0])
            if "filler" in self.spec.orders and filler is None:
                return shown, examples, unusable("no_other_document")
            over = self._over(shown, shown.document, filler, examples)
            asked = unusable("prompt_too_long") if over else self._checked(shown, shown.document, filler, examples)
            if asked.reason != "prompt_too_long" or self.spec.budget != "total" or not self.task.cuttable:
                return shown, examples, asked
            over = over or asked.longest - self.room
            limit = max(lengths) - -(-over // copies)

    def _cut(self, item: Item, limit: int) -> Item | None:
        """The item over its shortened document; None when that cannot hold its answer."""
        if not self.task.cuttable:
            return item
        if self.spec.budget == "released":
            return jrt_cut.shortened(self.task.name, item, self.tokenizer, limit)
        keep = item.keep or ((0, 0) if self.task.needs_questions else None)
        document = cut_around(item.document, self.tokenizer, limit, keep)
        return None if document is None else replace(item, document=document)

    def _cut_notes(self, item: Item, shown: Item) -> set[str]:
        notes = {"document_cut"} if len(shown.document.strip()) < len(item.document.strip()) else set()
        if self.released and not self.task.mentions(shown.document, item):
            notes.add("answer_cut_away" if item.keep else "answer_not_in_document")
        return notes

    def _over(self, item: Item, document: str, filler: str | None, worked: Sequence[Item]) -> int:
        """Tokens by which the order that shows most is above the room, which under budget `total` a cut can mend."""
        if self.spec.budget != "total":
            return 0
        text = self._written(self.widest, item, document, filler, worked).text
        return max(0, len(self._encode([text])[0]) - self.room)

    def _other(self, shown: Item, strangers: Sequence[str], worked: Sequence[Item]) -> Checked:
        """The first other document whose prompts pass, cut as the item's was."""
        filler = self._filler(strangers, len(self._encode([shown.document])[0]))
        for text in strangers:
            checked = self._around(text, shown, filler, worked)
            if checked is not None and checked.reason is None:
                return checked
        return unusable("no_other_document")

    def _around(self, text: str, shown: Item, filler: str | None, worked: Sequence[Item]) -> Checked | None:
        """The item's prompts over the head of another document; None when nothing of it fits."""
        limit = self.document_tokens
        while self.task.cuttable:
            text = self._head(text, limit)
            if not text:
                return None
            over = self._over(shown, text, filler, worked)
            if not over:
                break
            limit = len(self._encode([text])[0]) - -(-over // self._copies(0))
        return self._checked(shown, text, filler, worked) if text else None

    def _head(self, text: str, limit: int) -> str:
        """The beginning of another document: full lines, or, of pages in one line, sentences."""
        if self.task.needs_questions:
            return cut_around(text, self.tokenizer, limit, (0, 0)) or ""
        return prompts.cut(text, self.tokenizer, limit)

    def _strangers(self, others: Sequence[Document], item: Item, material: Material,
                   shown_already: Collection[str]) -> Iterator[str]:
        """Other documents without the answer, from a place that depends on the item.

        Of the documents of questions, which may be long, what a prompt could show of them.
        """
        start = material.draw("other", item.id).randrange(len(others)) if others else 0
        for k in range(len(others)):
            other = others[(start + k) % len(others)]
            if other.id == item.document_id or other.id in shown_already:
                continue
            text = other.text
            if self.task.needs_questions:
                if text not in self._heads:
                    self._heads[text] = self._head(text, self.document_tokens)
                text = self._heads[text]
            if text and not self.task.mentions(text, item):
                yield text

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

    def _checked(self, item: Item, document: str | None, filler: str | None, worked: Sequence[Item] = ()) -> Checked:
        """Compose every order, tokenise it with and without each answer, and apply the rules above."""
        written = {order: self._written(order, item, document, filler, worked) for order in self.spec.orders}
        texts = [prompt.text for prompt in written.values()]
        alone = self._encode(texts)
        faults = []
        for text, tokens in zip(texts, alone):
            if text != text.strip() or not text:
                faults.append("white_space_around_prompt")
            elif self._changed(text, tokens, item.answers):
                faults.append("tokens_change_at_answer")
        notes = frozenset(faults).union(*map(self.released.accidents, written.values())) if self.released else frozenset()
        reason = faults[0] if faults and not self.released else None
        if reason is None and max(map(len, alone)) > self.room:
            reason = "prompt_too_long"
        tails = {order: self._tail_tokens(tokens, written[order].tail) for order, tokens in zip(written, alone)}
        return Checked(written, dict(zip(written, map(len, alone))), tails, reason, notes)

    def _written(self, order: str, item: Item, document: str | None, filler: str | None, worked: Sequence[Item]) -> Prompt:
        return self.examples.before(order, worked, self.task.compose(order, document, item, filler, self.spec.template))

    def _changed(self, text: str, tokens: list[int], answers: Sequence[str]) -> bool:
        """Whether the prompt's own tokens change when one of the answers follows it.

        Only its end is looked at, unless that reads otherwise by itself.
        """
        last = tokens[-BOUNDARY:]
        end = b"".join(map(self.tokenizer.token_bytes, last)).decode("utf-8", errors="replace")
        alone, *answered = self._encode([end, *(f"{end} {answer}" for answer in answers)])
        if alone != last:
            last, answered = tokens, self._encode([f"{text} {answer}" for answer in answers])
        return any(longer[:len(last)] != last for longer in answered)

    def _tail_tokens(self, tokens: list[int], tail: str) -> int:
        """How many last tokens hold the tail; one that also holds text before it is counted in."""
        wanted, count = len(tail.encode()), 0
        while wanted > 0 and count < len(tokens):
            count += 1
            wanted -= len(self.tokenizer.token_bytes(tokens[-count]))
        return count

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return self.tokenizer.encode_batch(texts)


def _documents(order: str) -> int:
    """How many documents or fillers stand in an order; orders of a task's own hold one."""
    return sum(part in "DX" for part in prompts.PARTS.get(order, "D"))
