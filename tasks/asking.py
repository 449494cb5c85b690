"""One question about one document, asked of one model: the prompt as the cloze stage writes it, the answer as it comes.

Nothing here differs from an evaluation: the order, the cut of the document and the room for the answer are those of
tasks/composing.py (budget `total`), the prefix and the stopping those of tasks/predictions.py.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from storage.errors import SpecError
from tasks import prompts
from tasks.composing import Composer
from tasks.evals.base import EvalTask, Item, Material, Rejection
from tasks.predictions import Prompt, distinct, generate
from tasks.sources.pydocs import normalise
from tasks.specs import ClozeSpec, EvaluateSpec

ENDLESS = 1 << 40        # tokens: the budget of a model that can place any number
LEAST = 8                # tokens: less of a document than this is none
ORDERS = tuple(order for order, parts in prompts.PARTS.items() if "X" not in parts)      # those without other text


@dataclass(frozen=True)
class Question:
    """A prompt that fits: its text and ids, and how much of the document it shows [tokens]."""

    text: str
    prompt: Prompt
    document_tokens: int
    shown_tokens: int

    @property
    def truncated(self) -> bool:
        """Whether a part of the document was left out."""
        return self.shown_tokens < self.document_tokens


@dataclass(frozen=True)
class Reply:
    """What came of it. state_bytes: live, after the prompt; seconds of the prompt and of the tokens after it."""

    text: str
    ids: tuple[int, ...]
    state_bytes: int
    prefill_seconds: float
    decode_seconds: float
    steps: int


def write(document: str, question: str, cloze: str, order: str, tokenizer: Any, limit: int | None,
          maximum_new: int) -> Question:
    """The prompt, its document cut to its last full line with which prompt and answer fit into `limit` tokens.

    A document whose first line alone is too long is cut at the last white space that fits.
    Raises SpecError for an empty document or question, an unknown order, or a limit that leaves no room.
    """
    document, question, cloze = normalise(document).strip(), question.strip(), cloze.strip()
    if not document:
        raise SpecError("the document is empty; give a text to ask about")
    if not question or not cloze:
        raise SpecError("the question is empty; say what to ask, for example --question 'dtype :'")
    if order not in ORDERS:
        raise SpecError(f"order {order!r} cannot be asked here; choose one of {', '.join(ORDERS)}")
    total = ENDLESS if limit is None else limit
    if total < ClozeSpec.model_fields["total_tokens"].metadata[0].ge:
        raise SpecError(f"the model can place {limit} tokens, too few for a document and a question")
    spec = ClozeSpec(task="ask", orders=(order,), budget="total", total_tokens=total, generation_tokens=maximum_new)
    composer = Composer(spec, EvalTask(), tokenizer, controls=("none",))
    frame = prompts.compose(order, "", question, cloze).text
    if len(tokenizer.encode_batch([frame])[0]) + LEAST * composer.copies > composer.room:
        raise _no_room(maximum_new, limit)

    def composed(text: str) -> list | Rejection:
        item = Item("ask", "document", text, question, cloze, (), "ask")
        return composer.rows(item, (), Material(lambda split: (), composer.view))

    rows = composed(document)
    if isinstance(rows, Rejection):
        rows = _by_words(document, tokenizer, composer, composed)
    if isinstance(rows, Rejection):
        raise _no_room(maximum_new, limit)
    [row] = rows
    shown = document[:(len(row.prompt) - len(frame)) // composer.copies]
    [prompt] = distinct([row.prompt], [row.tokens], [row.tail_tokens], tokenizer, True, EvaluateSpec().keep_out)
    whole, part = (len(ids) for ids in tokenizer.encode_batch([document, shown]))
    return Question(row.prompt, prompt, whole, part)


def _no_room(maximum_new: int, limit: int | None) -> SpecError:
    return SpecError(f"the question and {maximum_new} tokens of answer leave no room for the document in the {limit} tokens "
                     "that the model can place; shorten the question or lower --max-tokens")


def _by_words(document: str, tokenizer: Any, composer: Composer, composed: Callable) -> list | Rejection:
    """Ever shorter heads of the first line, each ending at white space, until one fits."""
    rows: list | Rejection = Rejection("document", "answer_does_not_fit")
    room = max(composer.room, 0) // composer.copies
    ids = tokenizer.encode_batch([document.split("\n")[0]])[0]
    while room > 0 and isinstance(rows, Rejection):
        kept = b"".join(map(tokenizer.token_bytes, ids[:room])).decode("utf-8", errors="ignore")
        words = kept.rsplit(None, 1)[0] if len(kept.split()) > 1 else kept
        rows = composed(words.strip()) if words.strip() else rows
        room = room * 7 // 8 if room > 8 else room - 1
    return rows


def ask(question: Question, model: Any, tokenizer: Any, spec: EvaluateSpec, maximum_new: int,
        emit: Callable[[str], None]) -> Reply:
    """Let the model answer; `emit` gets the text piece by piece, never half a character.

    The answer ends at a line feed, at the end of text, or after maximum_new tokens.
    Raises what generation raises: ConfigError, LayoutError, LengthError, SpecError.
    """
    ends = frozenset({*tokenizer.newline_ids, tokenizer.end_of_text})
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    watched, times = Watched(model), [time.perf_counter()]

    def chosen(token: int) -> bool:
        times.append(time.perf_counter())
        if token in ends:
            return True
        emit(decoder.decode(tokenizer.token_bytes(token)))
        return False

    ids = generate(question.prompt, watched, tokenizer, spec, maximum_new, chosen)
    emit(decoder.decode(b"", final=True))
    return Reply(tokenizer.decode(ids).split("\n")[0], tuple(ids), watched.state_bytes,
                 times[1] - times[0], times[-1] - times[1], len(times) - 2)


class Watched:
    """A model that notes the size of the state it first returned; everything else is the model's own."""

    def __init__(self, model: Any) -> None:
        self._model, self.state_bytes = model, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def prefill(self, *given: Any, **named: Any) -> tuple[Any, Any]:
        """As the model's."""
        logits_BE, state = self._model.prefill(*given, **named)
        self.state_bytes = self.state_bytes or state.nbytes
        return logits_BE, state
