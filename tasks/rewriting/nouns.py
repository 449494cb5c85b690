"""Questions for one of a kind: which river, what year, how many people, how much of it.

The noun comes back with the answer behind it, "The river that they crossed was", unless it says only that a time or a
place is wanted: "Tesla died in".
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.rewriting import verbs
from tasks.rewriting.answers import Answer, time_lead
from tasks.rewriting.clauses import Clause, declarative
from tasks.rewriting.subjects import (
    finite_or_auxiliary,
    negated_subject,
    object_asked,
    subject_asked,
    to_be,
    verb_comes,
    verb_of,
    what_is,
)
from tasks.rewriting.words import (
    AUXILIARIES,
    BE,
    DETERMINERS,
    DO,
    HAVE,
    NAMING,
    PAST,
    PLACE_NOUNS,
    PREPOSITIONS,
    RELATIVES,
    TIME_NOUNS,
    UNITS,
    bare,
    is_adverb,
    is_plural,
    starts_noun_phrase,
)

KINDS = frozenset("type types kind kinds sort sorts form forms class style category".split())
TRAITS = frozenset("color colour nationality religion size age ethnicity race language genre gender length height width "
                   "weight population title occupation profession name number rank value currency".split())
RANKS = frozenset("most least first second third fourth only same main".split())


def which(words: Sequence[str], answer: Answer, head: str | None = None) -> str | None:
    """`words` follow "which": "river did they cross in May" -> "The river that they crossed in May was".

    `head`: what stands for the noun phrase, "The number of" + noun; without it, "The" + noun.
    """
    words = list(words)
    if not words:
        return None
    at = finite_or_auxiliary(words, 1) if bare(words[0]) not in AUXILIARIES else 0
    while at and at > 1 and bare(words[at]) not in AUXILIARIES and is_adverb(words[at - 1]) and bare(words[at - 2]) != "to":
        at -= 1
    if at == 0 or head is None and verb_comes(words):
        return _which_one(words, answer)
    if at is None:
        return None
    noun, verb, rest = words[:at], bare(words[at]), words[at + 1:]
    if is_adverb(verb) and rest:
        verb = next((bare(word) for word in rest if not is_adverb(word)), verb)
    thing = head or the(noun)
    many = is_many_thing(noun) and head is None
    if verb in AUXILIARIES and not rest:
        return None
    if negated_subject(verb, rest):
        return f"{thing} that {' '.join(words[at:])} {to_be(verb in PAST, many)}"
    if verb in DO:
        return _of_clause(declarative(verb, rest), thing, noun, many, answer)
    if verb in BE:
        return _noun_is(noun, words[at], rest, thing, many, answer)
    subject = verb in HAVE and is_time(noun) and bare(rest[0]) in DETERMINERS
    if verb in AUXILIARIES and not subject and not subject_asked(verb, rest):
        clause = declarative(verb, rest)
        if clause:
            return _of_clause(clause, thing, noun, many, answer)
    past = verb in PAST or verb not in AUXILIARIES and verbs.is_past(verb) and not verbs.is_third(verb)
    if verb in verbs.BASES and verb in verbs.PASTS and not many:
        past = True
    return f"{thing} that {' '.join(words[at:])} {to_be(past, many)}"


def the(noun: Sequence[str]) -> str:
    """The noun phrase with its article."""
    text = " ".join(noun)
    first = bare(noun[0])
    if first in ("the", "of", "his", "her", "its", "their"):
        return ("The one " if first == "of" else "") + text
    return f"The {text}"


def is_many_thing(noun: Sequence[str]) -> bool:
    """Whether the head of a noun phrase, the word before its first preposition, is a plural."""
    head = noun[-1]
    for at, word in enumerate(noun[1:], 1):
        if bare(word) in PREPOSITIONS | RELATIVES:
            head = noun[at - 1]
            break
    return is_plural(head)


def is_time(noun: Sequence[str]) -> bool:
    """ "year", "exact date", "day of the week". """
    if len(noun) > 2 and bare(noun[1]) == "of":
        return bare(noun[0]) in TIME_NOUNS and len(noun) <= 4 and bare(noun[-1]) in TIME_NOUNS | {"week"}
    return len(noun) <= 2 and bare(noun[-1]) in TIME_NOUNS


def _of_clause(clause: Clause | None, thing: str, noun: Sequence[str], many: bool, answer: Answer) -> str | None:
    if clause is None:
        return None
    last = bare(clause.rest[-1]) if clause.rest else ""
    if is_time(noun) and last not in PREPOSITIONS and not _counted(thing):
        return f"{clause} {time_lead(answer)}"
    if last in PREPOSITIONS and not _counted(thing):
        return str(clause)
    return f"{thing} that {clause} {to_be(clause.past, many)}"


def _counted(thing: str) -> bool:
    return thing.startswith(("The number of", "The amount of"))


def _which_one(words: Sequence[str], answer: Answer) -> str | None:
    """ "which is", "which of them": the noun is left out."""
    if bare(words[0]) in BE and len(words) > 1 and starts_noun_phrase(words[1]):
        return what_is(words[0], words[1:], "The one that")
    if bare(words[0]) in AUXILIARIES - BE and not subject_asked(bare(words[0]), words[1:]):
        clause = declarative(bare(words[0]), words[1:])
        return object_asked(clause, "The one that") if clause else None
    many = bare(words[0]) in ("are", "were")
    past = bare(words[0]) in PAST or bare(words[0]) not in AUXILIARIES and not verbs.is_third(bare(words[0]))
    return f"The {'ones' if many else 'one'} that {' '.join(words)} {to_be(past, many)}"


def _noun_is(noun: Sequence[str], auxiliary: str, rest: Sequence[str], thing: str, many: bool, answer: Answer) -> str:
    be = bare(auxiliary)
    head = bare(noun[-1])
    if not rest:
        return f"{thing} {be}"
    if bare(rest[0]) == "there":
        return f"{thing} {' '.join(rest[1:])} {to_be(be in PAST, many)}"
    if subject_asked(be, rest):
        return f"{thing} that {be} {' '.join(rest)} {to_be(be in PAST, many)}"
    last = bare(rest[-1])
    clause = declarative(be, rest)
    if is_time(noun) and last not in PREPOSITIONS and not _counted(thing):
        return f"{clause or ' '.join((*rest, be))} {time_lead(answer)}"
    if last in PREPOSITIONS and not _counted(thing):
        clause = clause if clause and clause.rest else Clause(tuple(rest[:-1]), (be,), (rest[-1],), be in PAST)
        return str(clause)
    if len(noun) <= 2 and head in PLACE_NOUNS and clause and clause.rest and _settled(clause) and not _counted(thing):
        return f"{clause} in"
    start = bare(clause.rest[0]) if clause and clause.rest else ""
    if clause and bare(rest[0]) in ("a", "an") and last != bare(clause.rest[-1] if clause.rest else ""):
        clause = None
    if clause and bare(rest[0]) in ("a", "an") and len(clause.rest) > 1:
        clause = None
    whole = clause and clause.rest and (last == bare(clause.rest[-1]) and (verbs.is_participle(last) or last in NAMING))
    if clause and clause.rest and (starts_noun_phrase(rest[0]) or len(clause.subject) <= 2) and (
            whole or _settled(clause) or verbs.is_gerund(start) or last in PREPOSITIONS):
        return f"{thing} that {clause} {to_be(clause.past, many)}"
    return _noun_is_noun(noun, be, rest, thing, many)


def _settled(clause: Clause) -> bool:
    return verbs.is_participle(next((bare(word) for word in clause.rest if not is_adverb(word)), ""))


def _noun_is_noun(noun: Sequence[str], be: str, rest: Sequence[str], thing: str, many: bool) -> str:
    """No verb but "to be": "what color is the sky", "what type of music is jazz", "which city is the capital"."""
    first, text = bare(noun[0]), " ".join(rest)
    thing_asked = bare(rest[0]) in ("a", "an") or bare(rest[0]) == "the" and len(rest) > 2 and not rest[1][0].isupper()
    if first in KINDS and len(noun) > 2 and not thing_asked:
        return f"{text} {be} a {' '.join(noun)} described as" if not is_plural(first) else f"{text} {be}"
    best = any(bare(word).endswith("est") or bare(word) in RANKS for word in rest[:4])
    if bare(noun[-1]) in TRAITS and len(noun) <= 2 and not best:
        return f"The {' '.join(noun)} of {text} {be}"
    return f"{thing} that {be} {text} {to_be(be in PAST, many)}"


def how_many(words: Sequence[str], answer: Answer, much: bool = False) -> str | None:
    """`words` follow "how many" or "how much": "people live in Rome" -> "The number of people that live in Rome is"."""
    words = list(words)
    if not words:
        return None
    if much and bare(words[0]) in AUXILIARIES:
        return _how_much(bare(words[0]), words[1:], answer)
    at = finite_or_auxiliary(words, 1)
    amount = "The amount" if much else "The number"
    if at is None:
        return f"{amount} of {' '.join(words)} is" if bare(words[0]) != "of" else None
    noun = words[:at]
    thing = f"{amount} {' '.join(noun)}" if bare(noun[0]) == "of" else f"{amount} of {' '.join(noun)}"
    unit = bare(noun[0]) in UNITS or len(noun) == 2 and bare(noun[1]) in UNITS
    if unit and len(noun) == 1 and bare(words[at]) in BE and "from" in map(bare, words[at + 2:]):
        return f"The distance of {' '.join(words[at + 1:])} in {noun[0]} {to_be(bare(words[at]) in PAST, False)}"
    if bare(words[at]) in BE and unit and at + 1 < len(words) and bare(words[at + 1]) != "there" \
            and not subject_asked(bare(words[at]), words[at + 1:]) and declarative(bare(words[at]), words[at + 1:]) is None:
        return f"Measured in {' '.join(noun)}, {' '.join(words[at + 1:])} {bare(words[at])}"
    found = which(words, answer, thing)
    return found


def _how_much(auxiliary: str, rest: Sequence[str], answer: Answer) -> str | None:
    clause = declarative(auxiliary, rest)
    if auxiliary in BE:
        noun = "price" if answer.text[:1] in "$£€¥" else "amount"
        return str(clause) if clause and len(clause.rest) == 1 else f"The {noun} of {' '.join(rest)} {auxiliary}"
    if clause is None:
        return None
    if not clause.rest or bare(clause.rest[-1]) in PREPOSITIONS or verb_of(clause) in (
            "increase", "decrease", "grow", "rise", "fall", "drop", "decline", "shrink", "exceed", "reduce"):
        by = verb_of(clause) in ("increase", "decrease", "grow", "rise", "fall", "drop", "decline", "shrink", "reduce")
        return f"{clause} by" if by and (not clause.rest or bare(clause.rest[-1]) != "by") else str(clause)
    return f"The amount that {clause} {to_be(clause.past, False)}"
