"""The whole question: where its wh-word stands, what comes before it, and what to do when there is none."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tasks.rewriting import verbs
from tasks.rewriting.answers import Answer, time_lead
from tasks.rewriting.circumstances import clause_of, how, when, where, why
from tasks.rewriting.clauses import finite_verb
from tasks.rewriting.nouns import how_many, is_many_thing, is_time, the, which
from tasks.rewriting.subjects import finite_or_auxiliary, subject_asked, to_be
from tasks.rewriting.things import what, who, whose
from tasks.rewriting.words import (
    AUXILIARIES,
    BE,
    CLAUSES,
    DETERMINERS,
    DO,
    NAMING,
    PAST,
    PLACE_NOUNS,
    PREPOSITIONS,
    WH,
    bare,
    is_plural,
)

CONTRACTIONS = {"what's": "what is", "who's": "who is", "where's": "where is", "when's": "when is", "how's": "how is",
                "whats": "what is", "whos": "who is", "isn't": "is not", "aren't": "are not", "wasn't": "was not",
                "weren't": "were not", "don't": "do not", "doesn't": "does not", "didn't": "did not",
                "can't": "can not", "couldn't": "could not", "won't": "will not", "wouldn't": "would not",
                "hasn't": "has not", "haven't": "have not", "hadn't": "had not", "shouldn't": "should not"}
ORDERS = frozenset("name give list state identify describe".split())
HANDLERS: dict[str, Callable[[Sequence[str], Answer], str | None]] = {
    "what": what, "which": which, "who": who, "whom": who, "whose": whose, "when": when, "where": where, "why": why,
}
LEADING = PREPOSITIONS | CLAUSES - {"who", "which", "that"} | {"according", "along", "besides", "prior", "based", "compared", "beginning", "starting",
                                    "together", "due", "other", "given", "rather", "even", "assuming"}


def words_of(question: str) -> list[str]:
    """The words of a question, contractions of auxiliaries spelt out, the mark at its end gone."""
    text = re.sub(r"[\s?.!,]+(\"?)$", r"\1", question.strip().replace("’", "'"))
    words = []
    for at, word in enumerate(text.split()):
        plain = CONTRACTIONS.get(word.lower()) if at < 4 or "'s" not in word.lower() and "won't" not in word.lower() else None
        words += (plain.capitalize() if word[0].isupper() else plain).split() if plain else [word]
    return words


def statement(question: str, answer: Answer) -> str | None:
    """The statement that ends where the answer starts, or None where no rule holds. First letter as it comes."""
    words = words_of(question)
    return sentence(words, answer) if words else None


def is_yes_no(question: str) -> bool:
    """Whether it asks for yes or no: it opens with an auxiliary and has no wh-word that asks."""
    words = words_of(question)
    return bool(words) and bare(words[0]) in AUXILIARIES and not any(bare(word) in ("what", "which", "whom")
                                                                     for word in words[1:])


def sentence(words: Sequence[str], answer: Answer) -> str | None:
    """One after the other: wh-word first, preposition first, a phrase first, wh-word inside, an order, no wh-word."""
    first = bare(words[0])
    if first in ("about", "approximately", "roughly", "exactly") and len(words) > 2 and bare(words[1]) == "how":
        return sentence(words[1:], answer)
    if first == "for" and len(words) > 3 and [bare(word) for word in words[1:3]] == ["how", "long"]:
        return sentence(words[1:], answer)
    at = _comma_wh(words) if first in LEADING or first in WH or verbs.is_gerund(first) or verbs.is_participle(first) else None
    if at:
        return _led(words, at, answer)
    if first in WH:
        inside = [at for at in range(2, len(words)) if bare(words[at]) in ("what", "which", "whom") and _asks(words, at)]
        if first in ("when", "where") and inside and bare(words[1]) not in AUXILIARIES:
            return embedded(words, inside[-1], answer)
        return _wh(words, answer)
    second = bare(words[1]) if len(words) > 1 else ""
    if first in PREPOSITIONS and second in WH:
        return fronted(words[0], words[1:], answer)
    if first in ("beginning", "starting", "out", "because", "outside") and len(words) > 2 and bare(words[2]) in WH:
        return fronted(f"{words[0]} {words[1]}", words[2:], answer)
    if first in ORDERS:
        return order(words, answer)
    asking = [k for k in range(len(words)) if _asks(words, k)]
    if not asking:
        return _no_wh(words, answer)
    at = next((k for k in asking if bare(words[k]) in ("what", "whom")), asking[-1])
    if _is_led(words, at):
        return _led(words, at, answer)
    return embedded(words, at, answer)


def _wh(words: Sequence[str], answer: Answer) -> str | None:
    first, rest = bare(words[0]), words[1:]
    if first != "how":
        return HANDLERS[first](rest, answer)
    if rest and bare(rest[0]) in ("many", "much"):
        return how_many(rest[1:], answer, bare(rest[0]) == "much")
    if rest and bare(rest[0]) == "come":
        clause = clause_of(rest[1:])
        return f"{clause} because" if clause else None
    return how(rest, answer)


# ----------------------------------------------------------------------------------------- something before the wh-word
def _asks(words: Sequence[str], at: int) -> bool:
    """Whether the word asks: what and which in most places, who and the others unless they open a relative clause."""
    word, before = bare(words[at]), bare(words[at - 1]) if at else ""
    if word in ("what", "whom") or word == "how" and at + 1 < len(words) and bare(words[at + 1]) in ("many", "much"):
        return True
    if word == "which":
        return before in PREPOSITIONS | AUXILIARIES or words[at - 1].endswith(",") or verbs.is_past(before) \
            or verbs.is_gerund(before) or verbs.is_third(before) or verbs.is_base(before) or at + 2 >= len(words)
    if word in ("who", "where", "when", "why", "how", "whose"):
        inverted = at + 1 < len(words) and bare(words[at + 1]) in AUXILIARIES
        return at + 1 == len(words) or words[at - 1].endswith(",") and inverted or inverted and word in ("when", "where",
                                                                                                          "why", "how")
    return False


def _comma_wh(words: Sequence[str]) -> int | None:
    """Index of a wh-word, or of its preposition, that stands behind a comma and asks."""
    for at in range(2, len(words)):
        if words[at - 1].endswith(",") and at + 1 < len(words):
            word = bare(words[at])
            if word in WH and word != "which" and word != "where" and word != "when":
                return at
            if word in WH and (bare(words[at + 1]) in AUXILIARIES or word == "which" and finite_or_auxiliary(
                    words[at + 1:]) is not None and bare(words[0]) in LEADING):
                return at
            if word in PREPOSITIONS and bare(words[at + 1]) in ("what", "which", "whom"):
                return at
    return None


def _is_led(words: Sequence[str], at: int) -> bool:
    """Whether words before the wh-word are a phrase of time or place and no sentence."""
    before, rest = words[:at], words[at + 1:]
    if not rest or any(bare(word) in AUXILIARIES for word in before):
        return False
    if words[at - 1].endswith(","):
        return True
    if bare(before[0]) not in LEADING and not verbs.is_gerund(bare(before[0])) and not verbs.is_participle(
            bare(before[0])) or bare(before[-1]) in PREPOSITIONS:
        return bool({bare(word) for word in rest[:1]} & DO) and finite_verb(before, 1) is None
    return finite_or_auxiliary(list(rest), 0) is not None and finite_verb(before, 1) is None


def _led(words: Sequence[str], at: int, answer: Answer) -> str | None:
    found = sentence(words[at:], answer)
    before = " ".join(words[:at]).rstrip(",")
    if not found:
        return None
    return f"{before}, {found if found.split()[0] in words[at + 1:] else lowered(found, answer)}"


def lowered(text: str, answer: Answer) -> str:
    """With a small first letter where the first word has none in the document, or is of a closed class."""
    first = bare(text.split()[0]) if text else ""
    if first in answer.small | DETERMINERS | PREPOSITIONS | CLAUSES | WH | {"he", "she", "it", "they", "something", "measured", "there"}:
        return text[0].lower() + text[1:]
    return text


def fronted(preposition: str, words: Sequence[str], answer: Answer) -> str | None:
    """ "in what year did it end" -> "It ended in"; "to what class does it belong" -> "The class to which it belongs is"."""
    wh, rest = bare(words[0]), list(words[1:])
    if wh == "how" and rest and bare(rest[0]) in ("many", "much"):
        much = bare(rest[0]) == "much"
        rest = rest[1:]
        at = finite_or_auxiliary(rest, 1)
        if at and bare(rest[at]) not in DO and (bare(rest[at]) not in AUXILIARIES or subject_asked(
                bare(rest[at]), rest[at + 1:])):
            return f"{how_many(rest, answer, much)} {preposition.lower()}"
    elif wh not in ("what", "which", "whom", "whose", "where", "when"):
        return None
    at = 0 if rest and bare(rest[0]) in AUXILIARIES else finite_or_auxiliary(rest, 1)
    if at is None or wh == "whose":
        return None
    noun, clause = rest[:at], clause_of(rest[at:])
    if clause is None or bare(rest[at]) not in AUXILIARIES:
        return None
    small = preposition.lower()
    if not noun or wh in ("whom", "where", "when", "how"):
        return f"{clause} {'' if answer.first in PREPOSITIONS else small}"
    head = bare(noun[-1])
    if small in ("in", "on", "during", "at") and is_time(noun):
        return f"{clause} {time_lead(answer) or ('' if answer.first in PREPOSITIONS else small)}"
    if small in ("by", "since", "until", "before", "after") and is_time(noun):
        return f"{clause} {small}"
    if answer.first in PREPOSITIONS or small == "in" and head in ("way", "ways", "manner"):
        return f"{clause} {'' if answer.first in PREPOSITIONS else 'by' if verbs.is_gerund(answer.first) else 'in'}"
    if head in PLACE_NOUNS and len(noun) <= 2 or head in ("reason", "purpose", "extent", "age", "name"):
        of = {"age": " the age of", "name": " the name of"}.get(head, "")
        return f"{clause} {small}{of}"
    return f"{the(noun)} {small} which {clause} {to_be(clause.past, is_many_thing(noun))}"


# -------------------------------------------------------------------------------------------------- the wh-word inside
def embedded(words: Sequence[str], at: int, answer: Answer) -> str | None:
    """ "X lies in what city" -> "X lies in"; what follows the wh-phrase goes to the front."""
    before, rest = list(words[:at]), list(words[at + 1:])
    wh = bare(words[at])
    if wh == "how":
        rest = rest[1:]
    noun = 0
    while wh not in ("who", "whom", "when", "where") and noun < len(rest) and not _leaves(rest, noun):
        noun += 1
    if wh == "what" and not noun and len(before) > 2 and bare(before[-1]) in ("do", "doing"):
        before = before[:-1]
    tail = rest[noun:]
    if tail and (bare(tail[0]) in AUXILIARIES or finite_verb([*rest[:noun][-1:], *tail], 1) == 1):
        return _of_which(before, rest[:noun], tail, answer)
    if not tail or bare(tail[0]) == "of":
        return " ".join(before) + _lead(wh, before, answer)
    start = lowered(" ".join(before), answer)
    if bare(tail[0]) in ("that", "which", "who", "from"):
        return f"{the(rest[:noun])} {' '.join(tail)} that {start} {to_be(False, is_plural(_head(rest[:noun])))}" if noun else None
    return f"{' '.join(tail)}, {start}{_lead(wh, before, answer)}"


def _of_which(before: Sequence[str], noun: Sequence[str], tail: Sequence[str], answer: Answer) -> str | None:
    """ "a copy of which painting was sold" -> "The painting of which a copy was sold was"."""
    if len(before) < 2 or not noun or bare(before[-1]) not in PREPOSITIONS or any(
            verbs.is_participle(bare(word)) for word in before):
        return None
    past = bare(tail[0]) in PAST or bare(tail[0]) not in AUXILIARIES and verbs.is_past(bare(tail[0]))
    whole = f"{lowered(' '.join(before[:-1]), answer)} {' '.join(tail)}"
    return f"{the(noun)} {bare(before[-1])} which {whole} {to_be(past, is_plural(_head(noun)))}"


def _leaves(rest: Sequence[str], at: int) -> bool:
    """Whether the wh-phrase ends before this word."""
    word = bare(rest[at])
    if at and rest[at - 1].endswith(","):
        return True
    if at and (verbs.is_past(word) or verbs.is_third(word) and verbs.is_plain(verbs.THIRDS[word])):
        return True
    return (word in PREPOSITIONS | CLAUSES and word != "of") or word in AUXILIARIES or word in ("and", "or", "to", "that")


def _lead(wh: str, before: Sequence[str], answer: Answer) -> str:
    if wh == "when":
        lead = time_lead(answer)
        waits = bare(before[-1]) in PREPOSITIONS
        return " the" if waits and lead.endswith(" the") else "" if waits else f" {lead}"
    return ""


# ------------------------------------------------------------------------------------------------------- no wh-word
def order(words: Sequence[str], answer: Answer) -> str | None:
    """ "name the river that ..." -> "The river that ... is"."""
    rest = list(words[1:])
    if rest and bare(rest[0]) in ("me", "us"):
        rest = rest[1:]
    if not rest:
        return None
    if bare(rest[0]) == "of":
        return f"The {' '.join(words)} is"
    if bare(rest[0]) in WH:
        return sentence(rest, answer)
    text = " ".join(rest)
    return f"{text if bare(rest[0]) in DETERMINERS else 'The ' + text} {to_be(False, is_plural(_head(rest)))}"


def _head(noun: Sequence[str]) -> str:
    for at, word in enumerate(noun[1:], 1):
        if bare(word) in PREPOSITIONS | CLAUSES or verbs.is_past(bare(word)):
            return noun[at - 1]
    return noun[-1]


def _no_wh(words: Sequence[str], answer: Answer) -> str | None:
    """A statement that already waits for its answer stays; a noun phrase gets "is"."""
    last, text = bare(words[-1]), " ".join(words)
    if bare(words[0]) in AUXILIARIES:
        return None
    if last in PREPOSITIONS | BE | NAMING | {"and", "the", "a", "an", "called"}:
        return text
    has_verb = finite_or_auxiliary(words, 1)
    if has_verb is not None and (verbs.is_plain(last) or verbs.is_plain(verbs.THIRDS.get(last, "")) or last in ("has", "be")):
        return text
    if has_verb is not None and bare(words[has_verb]) in AUXILIARIES and not subject_asked("is", words[:1]):
        return None
    return f"{text} {to_be(False, False)}"


