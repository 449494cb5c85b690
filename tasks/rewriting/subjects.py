"""Who does what in a question: whether the wh-word is the subject, and where its answer goes when it is an object."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.rewriting import verbs
from tasks.rewriting.clauses import Clause, declarative, finite_verb
from tasks.rewriting.words import (
    AUXILIARIES,
    BE,
    CALLING,
    CLAUSES,
    DETERMINERS,
    DO,
    HAVE,
    JOINERS,
    MODALS,
    NAMING,
    PAST,
    PREPOSITIONS,
    PRONOUNS,
    RELATIVES,
    bare,
    is_adjective,
    is_adverb,
    is_plural,
    starts_noun_phrase,
)

PERSONAL = frozenset("they he she it we".split())


def to_be(past: bool, many: bool) -> str:
    return ("were" if many else "was") if past else ("are" if many else "is")


def subject_asked(auxiliary: str, rest: Sequence[str]) -> bool:
    """Whether the predicate follows at once, so that the wh-word is the subject: "was built in Rome", "can cause rust"."""
    at = 0
    while at + 1 < len(rest) and (is_adverb(rest[at]) or bare(rest[at]) in ("been", "being")):
        at += 1
    if at >= len(rest):
        return False
    word, after = bare(rest[at]), bare(rest[at + 1]) if at + 1 < len(rest) else ""
    if rest[at][0].isupper():
        return False
    open_after = not after or after in PREPOSITIONS | DETERMINERS | JOINERS | RELATIVES or is_adverb(after)
    if auxiliary in BE:
        if word in PREPOSITIONS:
            return True
        if verbs.is_participle(word) or is_adjective(word):
            return open_after or (bool(after) and starts_noun_phrase(rest[at + 1])) or verbs.is_gerund(after)
        return verbs.is_gerund(word) and (open_after or starts_noun_phrase(rest[at + 1]) or is_plural(after))
    if auxiliary in HAVE:
        return word in ("been", "had") or (verbs.is_participle(word) and not rest[at][0].isupper())
    if not verbs.is_base(word) or rest[at][0].isupper():
        return False
    alone = not any(verbs.is_base(bare(each)) for each in rest[at + 1:])
    return verbs.is_plain(word) or alone or open_after or is_adjective(after) or (at > 0 and not is_plural(word))


def negated_subject(auxiliary: str, rest: Sequence[str]) -> bool:
    """ "what did not change": the verb follows at once, so the wh-word is its subject."""
    return auxiliary in DO and len(rest) > 1 and bare(rest[0]) == "not" and (
        verbs.is_base(bare(rest[1])) or is_adverb(rest[1])) and not rest[1][0].isupper()


def verb_comes(words: Sequence[str]) -> bool:
    """Whether "what" or "who" is the subject of a verb that stands at once behind it: "what causes rust"."""
    at = 0
    while at + 1 < len(words) and is_adverb(words[at]):
        at += 1
    word = bare(words[at])
    if not (verbs.is_past(word) or verbs.is_third(word)):
        return False
    if at:
        return True
    later = finite_or_auxiliary(words, 1)
    if later is None or any(bare(each) in CLAUSES - {"that"} for each in words[1:later]):
        return True
    plain = word in verbs.IRREGULAR_PASTS or verbs.is_plain(verbs.THIRDS.get(word, verbs.PASTS.get(word, "")))
    after = bare(words[1]) if len(words) > 1 else ""
    if after in AUXILIARIES:
        return False
    follows = not after or starts_noun_phrase(words[1]) or after in PREPOSITIONS or is_adverb(after)
    if bare(words[later]) in DO:
        return False
    return (plain and not is_plural(word)) or (follows and after != "of")


def finite_or_auxiliary(words: Sequence[str], start: int = 1) -> int | None:
    """Index of the first auxiliary, or of a finite verb before it, that belongs to no relative clause."""
    found = [at for at in range(start, len(words))
             if bare(words[at]) in AUXILIARIES and (not at or bare(words[at - 1]) not in RELATIVES | PERSONAL)]
    auxiliary = found[0] if found else None
    if found and {"after", "before", "when"} & {bare(word) for word in words[:found[0]]}:
        return next((at for at in found if bare(words[at]) in DO), auxiliary)
    verb = finite_verb(words[:auxiliary], start) if auxiliary != start else None
    if verb is not None and auxiliary is not None and bare(words[auxiliary]) not in DO | BE | HAVE:
        return verb
    if verb is not None and verb + 1 == auxiliary:
        return auxiliary
    if verb is not None and auxiliary is not None:
        # "organization named X did ..." against "theory states that X is ..."
        between = [bare(word) for word in words[verb + 1:auxiliary]]
        states = verbs.is_third(bare(words[verb])) and bare(words[auxiliary]) not in DO or {"that", "if"} & set(between)
        return verb if states or bare(words[auxiliary]) not in DO and RELATIVES & set(between) else auxiliary
    return auxiliary if verb is None else verb


def inverted(auxiliary: str, rest: Sequence[str]) -> Clause | None:
    """The clause of "is X called", "was X named after", "is X doing"; None where all of `rest` is one noun phrase."""
    if bare(rest[0]) == "not" and len(rest) > 1:
        clause = inverted(auxiliary, rest[1:])
        return clause and Clause(clause.subject, (*clause.verb, "not"), clause.rest, clause.past)
    last = bare(rest[-1])
    if last in PREPOSITIONS and len(rest) == 2:
        return Clause(tuple(rest[:1]), (auxiliary,), tuple(rest[1:]), auxiliary in PAST)
    clause = declarative(auxiliary, rest)
    if last in PREPOSITIONS and ({"that", "which", "who"} | MODALS) & {bare(word) for word in rest[1:-1]} and not verbs.is_participle(
            bare(rest[-2])):
        return None
    if clause is None or not clause.rest:
        if last in PREPOSITIONS - {"of"} or last == "of" and len(rest) > 2:
            return Clause(tuple(rest[:-1]), (auxiliary,), (rest[-1],), auxiliary in PAST)
        return None
    start = next((bare(word) for word in clause.rest if not is_adverb(word)), bare(clause.rest[0]))
    subject = [bare(word) for word in clause.subject]
    stranded = last in PREPOSITIONS | NAMING or verbs.is_base(last) and bare(rest[-2]) == "to" or verbs.is_participle(last) and len(clause.rest) <= 2
    doing = verbs.is_gerund(start) and (len(subject) < 4 and not set(subject) & PREPOSITIONS)
    single = subject[-1] in PRONOUNS - {"one"} or (starts_noun_phrase(clause.subject[0]) and len(subject) <= 2
                                         and subject[0] not in DETERMINERS)
    if stranded or start in NAMING or doing or single or stranded_inside(clause.rest):
        return clause
    return None


def what_is(auxiliary: str, rest: Sequence[str], head: str = "What") -> str | None:
    """"is the capital of France" -> "The capital of France is"; "is it called" -> "It is called"."""
    rest, be = list(rest), bare(auxiliary)
    if not rest:
        return None
    if subject_asked(be, rest):
        return f"{head} {auxiliary} {' '.join(rest)} {to_be(be in PAST, False)}"
    if head == "What" and bare(rest[0]) == "it" and len(rest) > 2 and bare(rest[1]) in NAMING:
        return f"{' '.join(rest[2:])}, it {be} {' '.join(rest[1:2])}" if bare(rest[2]) in RELATIVES | {"if"} else \
            f"{' '.join(rest[2:])} {be} {rest[1]}"
    clause = inverted(be, rest)
    if clause:
        return object_asked(clause, head)
    return f"{' '.join(rest)} {be}"


def object_asked(clause: Clause, head: str) -> str:
    """The answer is an object of the clause: at its end if it belongs there, else after a cleft."""
    if ends_open(clause):
        return str(clause)
    if len(clause.rest) > 2 and bare(clause.rest[0]) in NAMING and bare(
            clause.rest[1]) in PREPOSITIONS - {"as", "by", "to"} | {"when", "if"}:
        return f"{' '.join(clause.rest[1:])}, {' '.join((*clause.subject, *clause.verb, clause.rest[0]))}"
    at = stranded_inside(clause.rest)
    if at:
        return f"{' '.join(clause.rest[at:])}, {' '.join((*clause.subject, *clause.verb, *clause.rest[:at]))}"
    return f"{head} {clause} {to_be(clause.past, head.startswith('The ones'))}"


def stranded_inside(rest: Sequence[str]) -> int | None:
    """Where a phrase starts behind a preposition that waits for its object, "listed as | in 1980"; None: nowhere."""
    for at in range(len(rest) - 2):
        if bare(rest[at]) in PREPOSITIONS - {"up", "out", "off", "down", "over", "from", "near", "inside", "outside"} \
                and bare(rest[at + 1]) in PREPOSITIONS - {"of"}:
            return at + 1
    return None


def ends_open(clause: Clause) -> bool:
    """Whether an object can follow the clause: its verb has none yet, or a preposition or an infinitive waits for one."""
    verb = verb_of(clause)
    if not clause.rest:
        return verb not in ("do", "did", "does", "be")
    if len(clause.rest) == 2 and bare(clause.rest[0]) in ("and", "or"):
        return True
    last, before = bare(clause.rest[-1]), bare(clause.rest[-2]) if len(clause.rest) > 1 else bare(clause.verb[-1])
    if last in PREPOSITIONS and last not in ("before", "since"):
        return True
    if before == "to" and verbs.is_base(last) and last not in ("do", "be"):
        return True
    if last in NAMING or (len(clause.rest) == 1 and last != "done" and clause.verb[0] in AUXILIARIES
                          and (verbs.is_participle(last) or verbs.is_base(last) and last not in ("do", "be")
                               or verbs.is_gerund(last) and last != "doing")):
        return True
    return verb in CALLING and not any(bare(word) in PREPOSITIONS | RELATIVES for word in clause.rest)


def verb_of(clause: Clause) -> str:
    """Base form of the clause's main verb, "" where it is unknown."""
    word = bare(clause.verb[-1])
    if word in AUXILIARIES and clause.rest:
        word = next((bare(each) for each in clause.rest if not is_adverb(each)), word)
    return verbs.PASTS.get(word) or verbs.IRREGULAR_PARTICIPLES.get(word) or verbs.THIRDS.get(word) or word
