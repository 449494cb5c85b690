"""Questions for a circumstance: when, where, why, how, how long, how far, how old and their kind.

The statement is the question's own clause, and a small word leads to the answer: "Warsaw was founded in", "He left
because of". Which one is told by the answer's look and by what stands before it in the document.
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.rewriting import verbs
from tasks.rewriting.answers import Answer, is_clause, manner_lead, place_lead, reason_lead, time_lead
from tasks.rewriting.clauses import Clause, declarative, finite_verb
from tasks.rewriting.subjects import to_be, verb_of
from tasks.rewriting.words import (
    AUXILIARIES,
    BE,
    MOVING,
    PAST,
    PREPOSITIONS,
    RELATIVES,
    bare,
    is_adverb,
    is_name,
    is_plural,
    starts_noun_phrase,
)

# how <word>: the noun for it, and the preposition in "the speed at which"
MEASURES = {
    "long": ("length", "to"), "old": ("age", "at"), "far": ("distance", ""), "large": ("size", "to"), "big": ("size", "to"),
    "small": ("size", "to"), "tall": ("height", "to"), "high": ("height", "to"), "deep": ("depth", "to"),
    "wide": ("width", "to"), "heavy": ("weight", "to"), "fast": ("speed", "at"), "hot": ("temperature", "to"),
    "cold": ("temperature", "to"), "thick": ("thickness", "to"), "strong": ("strength", "to"),
}
LASTING = frozenset("last take span cover".split())


def subject_and_be(auxiliary: str, rest: Sequence[str]) -> Clause:
    """X is, for a question in which nothing but "to be" is said of X: a plain subject may be followed by its place."""
    rest = list(rest)
    at = len(rest)
    for k in range(1, len(rest)):
        if bare(rest[k]) in PREPOSITIONS - {"of"}:
            short = is_name(rest[k - 1]) or is_plural(rest[k - 1]) or bare(rest[0]) in ("he", "she", "it", "they")
            owned = k + 1 < len(rest) and bare(rest[k + 1]) in ("its", "their", "his", "her")
            at = k if auxiliary in BE and (short and k <= 2 or owned) else at
            break
    return Clause(tuple(rest[:at]), (auxiliary,), tuple(rest[at:]), auxiliary in PAST)


def clause_of(words: Sequence[str]) -> Clause | None:
    """The clause of auxiliary + subject + predicate, or of a question without inversion ("the war ended")."""
    if len(words) < 2:
        return None
    auxiliary = bare(words[0])
    if auxiliary not in AUXILIARIES:
        at = finite_verb(words, 1) if starts_noun_phrase(words[0]) or not verbs.is_base(bare(words[0])) else None
        if at is None:
            return None
        return Clause(tuple(words[:at]), (words[at],), tuple(words[at + 1:]), verbs.is_past(bare(words[at])))
    rest = list(words[1:])
    if auxiliary in BE and _is_last_time(rest):
        return Clause(tuple(rest), (auxiliary,), (), auxiliary in PAST)
    clause = declarative(auxiliary, rest)
    if clause is None and auxiliary in BE:
        clause = subject_and_be(auxiliary, rest)
    return clause


def _is_last_time(rest: Sequence[str]) -> bool:
    """ "the last time that": a noun phrase that holds a clause of its own."""
    head = [bare(word) for word in rest[:4]]
    return head[:1] == ["the"] and ("time" in head or "year" in head or "day" in head) \
        and bool({"last", "first", "next", "only"} & set(head))


def when(words: Sequence[str], answer: Answer) -> str | None:
    """ "did the war end" -> "The war ended in"."""
    clause = clause_of(words)
    if clause is None:
        return None
    lead = time_lead(answer)
    if clause.rest and bare(clause.rest[-1]) in PREPOSITIONS - {"in", "on", "out", "up", "off", "down", "over"}:
        lead = "the" if lead.endswith(" the") else ""
    return f"{clause} {lead}"


def where(words: Sequence[str], answer: Answer) -> str | None:
    """ "was Tesla born" -> "Tesla was born in"."""
    if words and bare(words[0]) in PREPOSITIONS:        # "where in Warsaw is ..."
        at = next((k for k, word in enumerate(words) if bare(word) in AUXILIARIES), None)
        found = where(words[at:], answer) if at else None
        return f"{' '.join(words[:at])}, {found}" if found else None
    clause = clause_of(words)
    if clause is None:
        return None
    if clause.rest and bare(clause.rest[-1]) in PREPOSITIONS - {"in", "on", "out", "up", "off", "down"}:
        return str(clause)
    if clause.rest and bare(clause.rest[-1]) in ("in", "at"):
        clause = Clause(clause.subject, clause.verb, clause.rest[:-1], clause.past)
    verb = verb_of(clause)
    if verb in MOVING and any(bare(word) == "from" for word in clause.rest):
        return f"{clause} {place_lead(answer, 'move')}"
    return f"{clause} {place_lead(answer, verb)}"


def why(words: Sequence[str], answer: Answer) -> str | None:
    """ "did he leave" -> "He left because"."""
    clause = clause_of(words)
    if clause is None or bare(words[0]) in BE and not clause.rest:
        return None
    return f"{clause} {reason_lead(answer)}"


def how(words: Sequence[str], answer: Answer) -> str | None:
    """Manner, "was it built" -> "It was built by", and measure, "old was he" -> "The age of him was"."""
    if not words:
        return None
    first = bare(words[0])
    if first == "come":
        return None
    if first in AUXILIARIES:
        return _manner(words, answer)
    if first in MEASURES:
        return _measure(first, list(words[1:]), answer)
    return _degree(words, answer)


def _manner(words: Sequence[str], answer: Answer) -> str | None:
    clause = clause_of(words)
    if clause is None:
        return None
    if clause.rest and bare(clause.rest[-1]) in PREPOSITIONS or bare(words[0]) in BE and not clause.rest:
        return str(clause)
    verb = verb_of(clause)
    if verb in ("feel", "taste", "look", "sound", "seem", "smell", "appear", "spell", "pronounce", "call"):
        return str(clause)
    if verb in ("refer", "view", "describe", "define", "characterize", "know", "see", "regard", "perceive", "consider",
                "classify") and answer.led_by(frozenset(("by", "through"))) is None:
        return f"{clause} as" if manner_lead(answer) or answer.first == "as" else str(clause)
    if is_clause(answer):
        return f"The way in which {clause} {to_be(clause.past, False)} that"
    return f"{clause} {manner_lead(answer)}"


def _measure(word: str, words: Sequence[str], answer: Answer) -> str | None:
    if word == "long" and words and bare(words[0]) == "ago":
        return None
    between = []
    while words and bare(words[0]) not in AUXILIARIES:
        between, words = [*between, words[0]], words[1:]
    if len(words) < 2:
        return None
    noun, preposition = MEASURES[word]
    of = f" {' '.join(between)}" if between else ""
    clause = clause_of(words)
    auxiliary = bare(words[0])
    if auxiliary in BE and (clause is None or not clause.rest or bare(clause.rest[0]) in PREPOSITIONS | RELATIVES):
        return f"The {noun}{of} of {' '.join(words[1:])} {to_be(auxiliary in PAST, False)}"
    if clause is None:
        return None
    return _measured(word, clause, noun, preposition, of, answer)


def _measured(word: str, clause: Clause, noun: str, preposition: str, of: str, answer: Answer) -> str:
    be = to_be(clause.past, False)
    if word == "long" and not of:
        if verb_of(clause) == "take" and clause.rest and bare(clause.rest[0]) not in PREPOSITIONS - {"to"}:
            return f"The time that {clause} {be}"
        if verb_of(clause) in LASTING or answer.first in PREPOSITIONS:
            return str(clause)
        return f"{clause} {answer.led_by(frozenset(('since', 'until'))) or 'for'}"
    if word == "far" and of:
        return f"The distance{of} at which {clause} {be}"
    if word == "far":
        return str(clause) if not clause.rest else f"The distance that {clause} {be}"
    if word == "old":
        return f"The age that {clause} {be}"
    return f"The {noun}{of} {preposition} which {clause} {be}"


def _degree(words: Sequence[str], answer: Answer) -> str | None:
    """ "often does it rain" -> "It rains"; "common is it" -> "It is"."""
    at = next((k for k, word in enumerate(words) if bare(word) in AUXILIARIES), None)
    if at is None or at > 3:
        return None
    clause = clause_of(words[at:])
    if bare(words[at]) in BE and not is_adverb(words[0]):
        return f"{' '.join(words[at + 1:])} {words[at]}"
    if clause is None:
        return None
    if bare(words[0]) in ("often", "frequently", "quickly", "rapidly", "soon", "early", "late") or is_adverb(words[0]):
        return str(clause)
    return None
