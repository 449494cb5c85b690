"""What a cloze must hold before it is asked, whoever wrote it.

The prompt is continued by one blank and the answer, so the statement must stop where the answer starts, must not give
the answer away, and the answer must be in the document. Reasons:

    empty                   the statement or the answer is empty
    empty_document          the document is empty or blank
    white_space             blanks around the statement, or more than one line
    ends_sentence           it ends in . ? ! or ; so that nothing can follow
    ends_mid_word           it ends in an opened bracket or quote, a hyphen, slash or currency sign: no blank may follow
    placeholder             the answer's place is marked (___, ..., [MASK]) instead of left out
    answer_in_cloze         an acceptable answer occurs in it; answers of one or two characters count as whole words
    answer_not_in_document  the answer is not where the record says, or nowhere
"""

from __future__ import annotations

import re

from tasks.datasets.records import Record

OPENED = tuple("-/\\([{<$£€#@&“‘«")
PLACEHOLDER = re.compile(r"_{2,}|\.\.\.$|…$|\[(?:mask|answer|blank)\]|<(?:mask|answer|blank)>", re.IGNORECASE)
SHORT = 2      # characters of an answer that is looked for as a whole word


def why_not(cloze: str, record: Record) -> str | None:
    """The first reason of the module's list that holds, or None for a cloze that can be asked."""
    if not cloze.strip() or not record.answers or not all(answer.strip() for answer in record.answers):
        return "empty"
    if not record.document.strip():
        return "empty_document"
    if cloze != cloze.strip() or len(cloze.splitlines()) > 1:
        return "white_space"
    return _end(cloze) or _answer(cloze, record)


def tokens_agree(tokenizer, prompt: str, answer: str) -> bool:
    """Whether the tokens of prompt + blank + answer begin with the prompt's own.

    prompt, answer: text; tokenizer: anything with `encode_batch`, see tasks/tokenizers.py.
    """
    alone, answered = tokenizer.encode_batch([prompt, f"{prompt} {answer}"])
    return answered[: len(alone)] == alone


def occurs(answer: str, text: str) -> bool:
    """Whether the answer is said in the text, upper and lower case alike."""
    answer, text = answer.strip().casefold(), text.casefold()
    if len(answer) > SHORT:
        return answer in text
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) is not None


def _end(cloze: str) -> str | None:
    if PLACEHOLDER.search(cloze):
        return "placeholder"
    if cloze.endswith((".", "?", "!", ";")):
        return "ends_sentence"
    if cloze.endswith(OPENED) or (cloze.endswith('"') and cloze.count('"') % 2):
        return "ends_mid_word"
    return None


def _answer(cloze: str, record: Record) -> str | None:
    if any(occurs(answer, cloze) for answer in record.answers):
        return "answer_in_cloze"
    wanted = record.answers[0].strip().casefold()
    held = record.document if record.span is None else record.document[slice(*record.span)]
    if record.span is None:
        return None if wanted in held.casefold() else "answer_not_in_document"
    return None if held.strip().casefold() == wanted else "answer_not_in_document"
