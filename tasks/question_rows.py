"""Rows of questions: a passage of a document, then lines `cloze answer` that only a reader of the passage can complete.

    <eot> [question "\\n"] passage ["\\n" passage] "\\n\\n" then a few lines "cloze answer\\n"

The passage is cut around the answer as an evaluation cuts it, at a length drawn for each row, and every question of the
document whose answer it shows may be asked. Three forms, as in recall rows: `document`; `swap`, whose answers are
replaced by those of other documents to the same question, so that nothing but reading helps; `list`, lines drawn
together from anywhere, the easiest look-up there is.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from storage.errors import CorpusError, SpecError
from storage.shards import RowTable
from tasks.composing import cut_around
from tasks.draws import generator
from tasks.prompts import compose
from tasks.recall_rows import Draft, Row, order_of, tokenised
from tasks.specs import QuestionRowsSpec
from tasks.tokenizers import Tokenizer

FILE = "questions.arrow"
SHORTEST = 3          # characters; a shorter answer stands everywhere by chance


@dataclass(frozen=True)
class Asked:
    """One question: what is asked before the passage, the line to complete, and its answer."""

    question: str
    cloze: str
    answer: str


@dataclass(frozen=True)
class Passage:
    """The longest passage around one answer, and the questions of its document, that answer's first."""

    document_id: str
    text: str
    asked: tuple[Asked, ...]


@dataclass(frozen=True)
class Pool:
    """Passages of one split; answers of the train split by cloze line."""

    passages: list[Passage]
    answers: dict[str, list[str]]

    def __len__(self) -> int:
        return len(self.passages)


def check(spec: QuestionRowsSpec) -> None:
    """SpecError for a passage that cannot be: (fewest, most) with 8 <= fewest <= most < maximum_row_tokens."""
    fewest, most = spec.passage_tokens
    if not 8 <= fewest <= most < spec.maximum_row_tokens:
        raise SpecError(f"passage_tokens {spec.passage_tokens}: give (fewest, most) with 8 <= fewest <= most < "
                        f"maximum_row_tokens {spec.maximum_row_tokens}")


def pools(questions: RowTable, tokenizer: Tokenizer, spec: QuestionRowsSpec) -> dict[str, Pool]:
    """The pools of `train` and `validation`, split by a hash of the document's id.

    Raises CorpusError when a split that is needed has nothing to ask.
    """
    passages: dict[str, list[Passage]] = {"train": [], "validation": []}
    for document_id, (document, found) in _by_document(questions).items():
        split = "validation" if _share(document_id) < spec.validation_share else "train"
        for keep, asked in found:
            text = cut_around(document, tokenizer, spec.passage_tokens[1], keep)
            if text:
                others = [other for _, other in found if other is not asked and other.answer in text]
                passages[split].append(Passage(document_id, text, (asked, *others)))
    for split, found in passages.items():
        if not found and (split == "train" or spec.validation_tokens):
            raise CorpusError(f"no question of the {split} split has an answer of {SHORTEST} characters or more within "
                              f"{spec.passage_tokens[1]} tokens; allow longer passages, bring more documents, or set "
                              "validation_tokens=0 if only that split is small")
    answers: dict[str, dict[str, None]] = defaultdict(dict)
    for passage in passages["train"]:
        answers[passage.asked[0].cloze][passage.asked[0].answer] = None
    shared = {cloze: list(found) for cloze, found in answers.items()}
    return {split: Pool(found, shared) for split, found in passages.items()}


def window(numbers: Sequence[int], shares: np.ndarray, pool: Pool, tokenizer: Tokenizer, spec: QuestionRowsSpec,
           purpose: str = "row") -> tuple[list[Row], Counter]:
    """The rows of these numbers, in order, and how many were left out for which reason.

    shares  the share of list rows at each number
    """
    left_out: Counter[str] = Counter()
    drafts = []
    for number, share in zip(numbers, shares):
        draw = generator(spec.seed, number, purpose)
        draft = _list(draw, pool, spec) if draw.random() < share else _passage(draw, pool, tokenizer, spec)
        if draft is None:
            left_out["the answers do not fit the passage"] += 1
        else:
            drafts.append(draft)
    return tokenised(drafts, tokenizer, spec.maximum_row_tokens, left_out), left_out


def _passage(draw: np.random.Generator, pool: Pool, tokenizer: Tokenizer, spec: QuestionRowsSpec) -> Draft | None:
    passage = pool.passages[int(draw.integers(len(pool)))]
    text, asked, form = passage.text, list(passage.asked), "document"
    if draw.random() < spec.swap_share:
        text, asked, form = *_swapped(draw, text, asked, pool), "swap"
    limit = int(draw.integers(spec.passage_tokens[0], spec.passage_tokens[1] + 1))
    at = text.find(asked[0].answer)
    text = cut_around(text, tokenizer, limit, (at, at + len(asked[0].answer))) if at >= 0 else None
    if not text:
        return None
    shown = [one for one in asked if one.answer in text]
    chosen = [shown[k] for k in draw.permutation(len(shown))[:spec.maximum_questions]]
    order = order_of(draw.random(), spec.order_shares)
    filler = pool.passages[int(draw.integers(len(pool)))].text if order == "filler" else None
    return _draft(form, order, passage.document_id, text, chosen, filler)


def _swapped(draw: np.random.Generator, text: str, asked: Sequence[Asked], pool: Pool) -> tuple[str, list[Asked]]:
    """Text and questions with every answer replaced, wherever it stands, by another of the same cloze line, as far as
    there is one that the text does not hold."""
    new: dict[str, str] = {}
    for one in asked:
        others = pool.answers.get(one.cloze, ())
        picks = [others[k] for k in draw.integers(len(others), size=4)] if others else []
        found = next((pick for pick in picks if pick not in text and pick not in new.values()), None)
        if found is not None:
            new.setdefault(one.answer, found)
    if new:
        held = re.compile("|".join(re.escape(answer) for answer in sorted(new, key=len, reverse=True)))
        text = held.sub(lambda match: new[match[0]], text)
    return text, [Asked(one.question, one.cloze, new.get(one.answer, one.answer)) for one in asked]


def _list(draw: np.random.Generator, pool: Pool, spec: QuestionRowsSpec) -> Draft:
    """A few lines `cloze answer`, each with a cloze of its own and an answer that some document gives to it."""
    wanted = int(draw.integers(spec.list_lines[0], spec.list_lines[1] + 1))
    lines: dict[str, Asked] = {}
    for k in draw.integers(len(pool), size=4 * wanted):
        one = pool.passages[k].asked[0]
        if len(lines) < wanted and one.cloze not in lines and all(one.answer != held.answer for held in lines.values()):
            lines[one.cloze] = one
    document = "\n".join(f"{one.cloze} {one.answer}" for one in lines.values())
    chosen = [list(lines.values())[k] for k in draw.permutation(len(lines))[:spec.maximum_questions]]
    order = order_of(draw.random(), spec.order_shares)
    return _draft("list", order, "", document, chosen, document if order == "filler" else None)


def _draft(form: str, order: str, document_id: str, document: str, asked: Sequence[Asked], filler: str | None) -> Draft:
    prompt = compose(order, document, asked[0].question, "", filler)
    return Draft(form, order, document_id, prompt, [(one.cloze, one.answer) for one in asked])


def _by_document(questions: RowTable) -> dict[str, tuple[str, list[tuple[tuple[int, int], Asked]]]]:
    """Document id -> its text and its questions with the characters of their answers."""
    column = {name: questions.column(name) for name in
              ("document_id", "question", "cloze", "answers", "keep_start", "keep_end")}
    texts = questions.table.column("document")      # stays in the mapped file until it is asked for
    found: dict[str, tuple[str, list[tuple[tuple[int, int], Asked]]]] = {}
    for k, document_id in enumerate(column["document_id"]):
        answers, keep = column["answers"][k], (int(column["keep_start"][k]), int(column["keep_end"][k]))
        if document_id not in found:
            found[document_id] = (texts[k].as_py(), [])
        if answers and keep[0] >= 0 and len(answers[0]) >= SHORTEST:
            found[document_id][1].append((keep, Asked(column["question"][k], column["cloze"][k], answers[0])))
    return found


def _share(document_id: str) -> float:
    """A number in [0, 1) that the id alone decides."""
    return int.from_bytes(hashlib.sha256(document_id.encode()).digest()[:8], "big") / 2**64
