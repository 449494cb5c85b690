"""From a model's reply to a cloze, strictly: what is not plainly right is unusable, with its reason and the reply.

Reasons:

    malformed_reply    the server sent no chat completion
    empty_reply        the model said nothing
    truncated_reply    it ran into the limit of tokens
    filtered_reply     the server held it back
    several_lines      more than one line
    answer_not_at_end  it does not end in white space and the answer, nor in a blank for it
    only_the_answer    nothing stands before the answer
    still_a_question   what stands before it ends in a question mark
"""

from __future__ import annotations

import re

from tasks.datasets.records import Unusable
from tasks.rewriting.cache import Reply
from tasks.rewriting.endpoint_prompts import one_line

BLANK = re.compile(r"(?:_+|[\[(<]blank[\])>])\.?$", re.IGNORECASE)      # in the answer's place
DETAIL = 2000                                                         # characters of a reply that are kept
BY_FINISH = {"malformed": "malformed_reply", "length": "truncated_reply", "content_filter": "filtered_reply"}


def cloze_of(reply: Reply, answer: str, where: str) -> str | Unusable:
    """The statement without the answer at its end. Upper and lower case of the answer, and a full stop after it, are
    let pass: neither stands in the cloze.
    """
    text = reply.content.strip()
    reason = BY_FINISH.get(reply.finish)
    if reason is None:
        reason = "empty_reply" if not text else "several_lines" if len(text.splitlines()) > 1 else None
    cloze = None if reason else _before(one_line(text), one_line(answer))
    if reason is None:
        reason = _wrong(cloze)
    return cloze if reason is None else Unusable(where, reason, reply.content[:DETAIL])


def _wrong(cloze: str | None) -> str | None:
    if cloze is None:
        return "answer_not_at_end"
    if not cloze:
        return "only_the_answer"
    return "still_a_question" if cloze.endswith("?") else None


def _before(text: str, answer: str) -> str | None:
    """What stands before the answer or the blank at the end of one line; None where neither is there."""
    for end in (text, text.removesuffix(".")):
        start = len(end) - len(answer)
        if start >= 0 and end[start:].casefold() == answer.casefold() and end[start - 1: start].strip() == "":
            return end[:start].rstrip()
    blank = BLANK.search(text)
    if blank and text[: blank.start()][-1:].strip() == "":
        return text[: blank.start()].rstrip()
    return None
