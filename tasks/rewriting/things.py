"""Questions for a thing or a person: what, which, who, whom, whose, how many, how much.

The answer is a noun phrase and becomes the end of the statement, either where it belongs ("Tesla died in") or after a
cleft ("What Tesla built was", "The river that they crossed was", "The person who won was").
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.rewriting import verbs
from tasks.rewriting.answers import Answer, is_clause, is_many, is_person, time_lead
from tasks.rewriting.clauses import Clause, declarative, finite_verb
from tasks.rewriting.words import (
    AUXILIARIES,
    BE,
    CALLING,
    DETERMINERS,
    DO,
    HAVE,
    JOINERS,
    NAMING,
    PAST,
    PLACE_NOUNS,
    PREPOSITIONS,
    PRONOUNS,
    RELATIVES,
    TIME_NOUNS,
    UNITS,
    bare,
    is_adjective,
    is_adverb,
    is_number,
    is_plural,
    starts_noun_phrase,
)

KINDS = frozenset("type types kind kinds sort sorts form forms class style category".split())
TRAITS = frozenset("color colour nationality religion size age ethnicity race language genre gender length height width "
                   "weight population title occupation profession name number rank value currency".split())
RANKS = frozenset("most least first second third fourth only same main".split())


def to_be(past: bool, many: bool) -> str:
    return ("were" if many else "was") if past else ("are" if many else "is")


# ------------------------------------------------------------------------------------------------------------- what
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
        return what_is(words[0], rest, answer, head)
    if auxiliary in AUXILIARIES:
        if len(rest) > 1 and bare(rest[0]) == "be" and starts_noun_phrase(rest[1]):
            return f"{' '.join(rest[1:])} {auxiliary} be"
        if auxiliary not in DO and subject_asked(auxiliary, rest) or _negated_subject(auxiliary, rest):
            return f"{head} {' '.join(words)} {to_be(auxiliary in PAST, False)}"
        clause = declarative(auxiliary, rest)
        if clause is None and auxiliary in HAVE and rest:
            return f"{head} {' '.join(words)} {to_be(auxiliary in PAST, False)}"
        return object_asked(clause, head, answer) if clause else None
    if verb_comes(words):
        return _pseudo_cleft(head, words, answer)
    return which(words, answer)


def _negated_subject(auxiliary: str, rest: Sequence[str]) -> bool:
    """ "what did not change": the verb follows at once, so the wh-word is its subject."""
    return auxiliary in DO and len(rest) > 1 and bare(rest[0]) == "not" and (
        verbs.is_base(bare(rest[1])) or is_adverb(rest[1])) and not rest[1][0].isupper()


def _pseudo_cleft(head: str, words: Sequence[str], answer: Answer) -> str:
    past = not verbs.is_third(next((bare(word) for word in words if not is_adverb(word)), ""))
    that = " that" if is_clause(answer) and answer.first not in ("that", "when", "if") else ""
    return f"{head} {' '.join(words)} {to_be(past, False)}{that}"


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
    plain = word in verbs.IRREGULAR_PASTS or verbs.is_plain(verbs.THIRDS.get(word, verbs.PASTS.get(word, "")))
    after = bare(words[1]) if len(words) > 1 else ""
    if after in AUXILIARIES:
        return False
    follows = not after or starts_noun_phrase(words[1]) or after in PREPOSITIONS or is_adverb(after)
    if later is None:
        return plain or follows
    return (plain and not is_plural(word)) or (follows and bare(words[later]) not in DO and after not in ("of",))


def what_is(auxiliary: str, rest: Sequence[str], answer: Answer, head: str = "What") -> str | None:
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
        return object_asked(clause, head, answer)
    return f"{' '.join(rest)} {be}"


def inverted(auxiliary: str, rest: Sequence[str]) -> Clause | None:
    """The clause of "is X called", "was X named after", "is X doing"; None where all of `rest` is one noun phrase."""
    if bare(rest[0]) == "not" and len(rest) > 1:
        clause = inverted(auxiliary, rest[1:])
        return clause and Clause(clause.subject, (*clause.verb, "not"), clause.rest, clause.past)
    last = bare(rest[-1])
    if last in PREPOSITIONS and len(rest) == 2:
        return Clause(tuple(rest[:1]), (auxiliary,), tuple(rest[1:]), auxiliary in PAST)
    clause = declarative(auxiliary, rest)
    if last in PREPOSITIONS and {"that", "which", "who"} & {bare(word) for word in rest[1:-1]} and not verbs.is_participle(
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
    single = subject[-1] in PRONOUNS or (starts_noun_phrase(clause.subject[0]) and len(subject) <= 2
                                         and subject[0] not in DETERMINERS)
    if stranded or start in NAMING or doing or single or stranded_inside(clause.rest):
        return clause
    return None


def subject_asked(auxiliary: str, rest: Sequence[str]) -> bool:
    """Whether the predicate follows at once, so that the wh-word is the subject: "was built in Rome", "can cause rust"."""
    at = 0
    while at + 1 < len(rest) and (is_adverb(rest[at]) or bare(rest[at]) in ("been", "being")):
        at += 1
    if at >= len(rest):
        return False
    word, after = bare(rest[at]), bare(rest[at + 1]) if at + 1 < len(rest) else ""
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
    return verbs.is_plain(word) or open_after or is_adjective(after) or (at > 0 and not is_plural(word))


def object_asked(clause: Clause, head: str, answer: Answer) -> str:
    """The answer is an object of the clause: at its end if it belongs there, else after a cleft."""
    if ends_open(clause):
        return str(clause)
    if len(clause.rest) > 2 and bare(clause.rest[0]) in NAMING and bare(clause.rest[1]) in PREPOSITIONS - {"as", "by", "to"}:
        return f"{' '.join(clause.rest[1:])}, {' '.join((*clause.subject, *clause.verb, clause.rest[0]))}"
    at = stranded_inside(clause.rest)
    if at:
        return f"{' '.join(clause.rest[at:])}, {' '.join((*clause.subject, *clause.verb, *clause.rest[:at]))}"
    many = head.startswith("The ") and is_plural(head.split()[1]) if len(head.split()) == 3 else False
    if head.startswith(("The people", "The ones")):
        many = True
    return f"{head} {clause} {to_be(clause.past, many)}"


def stranded_inside(rest: Sequence[str]) -> int | None:
    """Where a phrase starts behind a preposition that waits for its object, "listed as | in 1980"; None: nowhere."""
    for at in range(len(rest) - 2):
        if bare(rest[at]) in PREPOSITIONS - {"up", "out", "off", "down", "over", "from", "near", "inside", "outside"} \
                and bare(rest[at + 1]) in PREPOSITIONS - {"of", "on"}:
            return at + 1
    return None


def ends_open(clause: Clause) -> bool:
    """Whether an object can follow the clause: its verb has none yet, or a preposition or an infinitive waits for one."""
    verb = verb_of(clause)
    if not clause.rest:
        return verb not in ("do", "did", "does", "be")
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


# ----------------------------------------------------------------------------------------------- which, how many, whose
def finite_or_auxiliary(words: Sequence[str], start: int = 1) -> int | None:
    """Index of the first auxiliary, or of a finite verb before it, that belongs to no relative clause."""
    found = [at for at in range(start, len(words))
             if bare(words[at]) in AUXILIARIES and (not at or bare(words[at - 1]) not in RELATIVES)]
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


def which(words: Sequence[str], answer: Answer, head: str | None = None) -> str | None:
    """`words` follow "which": "river did they cross in May" -> "The river that they crossed in May was".

    `head`: what stands for the noun phrase, "The number of" + noun; without it, "The" + noun.
    """
    words = list(words)
    at = finite_or_auxiliary(words, 1) if bare(words[0]) not in AUXILIARIES else 0
    while at and at > 1 and bare(words[at]) not in AUXILIARIES and is_adverb(words[at - 1]) and bare(words[at - 2]) != "to":
        at -= 1
    if at == 0 or verb_comes(words):
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
    if _negated_subject(verb, rest):
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


def _of_clause(clause: Clause | None, thing: str, noun: Sequence[str], many: bool, answer: Answer) -> str | None:
    if clause is None:
        return None
    last = bare(clause.rest[-1]) if clause.rest else ""
    if is_time(noun) and last not in PREPOSITIONS and not _counted(thing):
        return f"{clause} {time_lead(answer)}"
    if last in PREPOSITIONS and not _counted(thing):
        return str(clause)
    return f"{thing} that {clause} {to_be(clause.past, many)}"


def is_time(noun: Sequence[str]) -> bool:
    """ "year", "exact date", "day of the week". """
    if len(noun) > 2 and bare(noun[1]) == "of":
        return bare(noun[0]) in TIME_NOUNS and len(noun) <= 4 and bare(noun[-1]) in TIME_NOUNS | {"week"}
    return len(noun) <= 2 and bare(noun[-1]) in TIME_NOUNS


def _counted(thing: str) -> bool:
    return thing.startswith(("The number of", "The amount of"))


def _which_one(words: Sequence[str], answer: Answer) -> str | None:
    """ "which is", "which of them": the noun is left out."""
    if bare(words[0]) in BE and len(words) > 1 and starts_noun_phrase(words[1]):
        return what_is(words[0], words[1:], answer, "The one that")
    if bare(words[0]) in AUXILIARIES - BE and not subject_asked(bare(words[0]), words[1:]):
        clause = declarative(bare(words[0]), words[1:])
        return object_asked(clause, "The one that", answer) if clause else None
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
    if clause and clause.rest and starts_noun_phrase(rest[0]) and (whole or _settled(clause) or verbs.is_gerund(start)):
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
    if bare(words[at]) in BE and len(noun) == 1 and bare(noun[0]) in UNITS and not subject_asked(
            bare(words[at]), words[at + 1:]) and bare(words[at + 1]) != "there":
        return f"Measured in {noun[0]}, {' '.join(words[at + 1:])} {bare(words[at])}"
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


# -------------------------------------------------------------------------------------------------------------- who
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
    if _negated_subject(auxiliary, rest) or auxiliary in HAVE and bare(rest[0]) in DETERMINERS:
        return f"{subject} {' '.join(words)} {to_be(past, many)}"
    if auxiliary in BE:
        return _who_is(words[0], rest, answer, subject, many)
    if auxiliary in DO and not verbs.is_base(bare(rest[0])) or auxiliary not in DO and not subject_asked(auxiliary, rest):
        clause = declarative(auxiliary, rest)
        if clause:
            return object_asked(clause, one(answer, "that")[0], answer)
    if auxiliary in DO and (is_number(rest[0]) or starts_noun_phrase(rest[0]) or len(rest) > 1):
        clause = declarative(auxiliary, rest)
        if clause:
            return object_asked(clause, one(answer, "that")[0], answer)
    return f"{subject} {' '.join(words)} {to_be(past, many)}"


def _who_is(auxiliary: str, rest: Sequence[str], answer: Answer, subject: str, many: bool) -> str:
    be = bare(auxiliary)
    if subject_asked(be, rest):
        return f"{subject} {be} {' '.join(rest)} {to_be(be in PAST, many)}"
    clause = inverted(be, rest)
    if clause and clause.rest:
        return object_asked(clause, one(answer, "that")[0], answer)
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


