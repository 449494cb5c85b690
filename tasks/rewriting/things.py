"""Questions for a thing or a person: what, who, whom, whose.

The answer is a noun phrase and becomes the end of the statement, either where it belongs ("Tesla invented") or behind a
cleft ("What Tesla built in Paris was", "The person who won was").
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.rewriting import verbs
from tasks.rewriting.answers import Answer, is_clause, is_many, is_person
from tasks.rewriting.clauses import declarative, finite_verb
from tasks.rewriting.nouns import which
from tasks.rewriting.subjects import (
    finite_or_auxiliary,
    inverted,
    negated_subject,
    object_asked,
    subject_asked,
    to_be,
    verb_comes,
    what_is,
)
from tasks.rewriting.words import (
    AUXILIARIES,
    BE,
    DETERMINERS,
    DO,
    HAVE,
    PAST,
    PREPOSITIONS,
    bare,
    is_adverb,
    is_number,
    starts_noun_phrase,
)


def what(words: Sequence[str], answer: Answer) -> str | None:
    """`words` follow "what": "did Tesla build in Paris" -> "What Tesla built in Paris was"."""
    if not words:
        return None
    head, words = "What", list(words)
    if bare(words[0]) == "else":
        head, words = "Something else that", words[1:]
    if not words:
        return None
    auxiliary, rest = bare(words[0]), words[1:]
    if auxiliary in BE:
        return what_is(words[0], rest, head)
    if auxiliary in AUXILIARIES:
        if len(rest) > 1 and bare(rest[0]) == "be" and starts_noun_phrase(rest[1]):
            return f"{' '.join(rest[1:])} {auxiliary} be"
        if auxiliary not in DO and subject_asked(auxiliary, rest) or negated_subject(auxiliary, rest):
            return f"{head} {' '.join(words)} {to_be(auxiliary in PAST, False)}"
        clause = declarative(auxiliary, rest)
        if clause is None and auxiliary in HAVE and rest:
            return f"{head} {' '.join(words)} {to_be(auxiliary in PAST, False)}"
        return object_asked(clause, head) if clause else None
    if verb_comes(words):
        return _pseudo_cleft(head, words, answer)
    return which(words, answer)


def _pseudo_cleft(head: str, words: Sequence[str], answer: Answer) -> str:
    past = not verbs.is_third(next((bare(word) for word in words if not is_adverb(word)), ""))
    that = " that" if is_clause(answer) and answer.first not in ("that", "when", "if") else ""
    return f"{head} {' '.join(words)} {to_be(past, False)}{that}"


def _number(words: Sequence[str]) -> bool | None:
    """Whether the verb behind "who" is a plural; None where its form does not say."""
    at = 0
    while at + 1 < len(words) and is_adverb(words[at]):
        at += 1
    verb = bare(words[at])
    if verb in ("are", "were", "have"):
        return True
    if verb in ("is", "was", "has") or verb not in AUXILIARIES and verbs.is_third(verb):
        return False
    return verb in verbs.BASES and verb not in verbs.PASTS and verb not in AUXILIARIES or None


def one(answer: Answer, relative: str, plural: bool | None = None) -> tuple[str, bool]:
    """("The person who", False) or its plural, as the answer looks, or as `plural` says."""
    if plural:
        return f"The ones {relative}", True
    if is_person(answer):
        return f"The person {relative}", False
    if plural is None and is_many(answer):
        return f"The ones {relative}", True
    return f"The one {relative}", False


def who(words: Sequence[str], answer: Answer) -> str | None:
    """`words` follow "who": "won in 1990" -> "The person who won in 1990 was"."""
    words = list(words)
    if not words:
        return None
    if bare(words[0]) in ("else", "all") and len(words) > 1:
        words = words[1:]
    auxiliary, rest = bare(words[0]), words[1:]
    subject, many = one(answer, "who", _number(words))
    if auxiliary not in AUXILIARIES:
        at = 0
        while at + 1 < len(words) and is_adverb(words[at]):
            at += 1
        first = bare(words[at])
        verb = finite_verb(words, 1)
        if first in PREPOSITIONS and verb:
            first = bare(words[verb])
        past = verbs.is_past(first) and not verbs.is_third(first)
        return f"{subject} {' '.join(words)} {to_be(past, many)}"
    if not rest:
        return None
    past = auxiliary in PAST
    if negated_subject(auxiliary, rest) or auxiliary in HAVE and bare(rest[0]) in DETERMINERS:
        return f"{subject} {' '.join(words)} {to_be(past, many)}"
    if auxiliary in BE:
        return _who_is(words[0], rest, answer, subject, many)
    if auxiliary in DO and not verbs.is_base(bare(rest[0])) or auxiliary not in DO and not subject_asked(auxiliary, rest):
        clause = declarative(auxiliary, rest)
        if clause:
            return object_asked(clause, one(answer, "that")[0])
    if auxiliary in DO and (is_number(rest[0]) or starts_noun_phrase(rest[0]) or len(rest) > 1):
        clause = declarative(auxiliary, rest)
        if clause:
            return object_asked(clause, one(answer, "that")[0])
    return f"{subject} {' '.join(words)} {to_be(past, many)}"


def _who_is(auxiliary: str, rest: Sequence[str], answer: Answer, subject: str, many: bool) -> str:
    be = bare(auxiliary)
    if subject_asked(be, rest):
        return f"{subject} {be} {' '.join(rest)} {to_be(be in PAST, many)}"
    clause = inverted(be, rest)
    if clause and clause.rest:
        return object_asked(clause, one(answer, "that")[0])
    if starts_noun_phrase(rest[0]):
        return f"{' '.join(rest)} {be}"
    return f"{subject} {be} {' '.join(rest)} {to_be(be in PAST, many)}"


def whose(words: Sequence[str], answer: Answer) -> str | None:
    """`words` follow "whose": "book did he read" -> "The person whose book he read was"."""
    words = list(words)
    at = finite_or_auxiliary(words, 1)
    if at is None:
        return None
    subject, many = one(answer, "whose")
    verb, rest = bare(words[at]), words[at + 1:]
    noun = " ".join(words[:at])
    if verb in AUXILIARIES and rest and not subject_asked(verb, rest):
        clause = declarative(verb, rest)
        if clause and (verb in DO or clause.rest):
            return f"{subject} {noun} {clause} {to_be(clause.past, many)}"
        if verb in DO:
            return None
    past = verb in PAST or verb not in AUXILIARIES and verbs.is_past(verb)
    return f"{subject} {' '.join(words)} {to_be(past, many)}"
