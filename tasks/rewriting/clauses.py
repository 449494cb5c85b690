"""From the order of a question ("did the Normans build") to that of a statement ("the Normans", "built").

The hard part is where the subject ends. Every word is given points for what it is and for its neighbours; the word with
the most is the verb. Where none has enough, there is no clause, and the caller does without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.rewriting import verbs
from tasks.rewriting.words import (
    ARTICLES,
    BE,
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
    is_name,
    is_number,
    is_plural,
    is_possessive,
    opens_phrase,
    starts_noun_phrase,
)

CHAINING = frozenset("help let make go come start stop try".split())
NEVER = -99.0
FAR = 1.8           # points that distance costs at most
NUMBERS = frozenset("one two three four five six seven eight nine ten".split())


@dataclass(frozen=True)
class Clause:
    """A statement in three parts; `past` says which form of "to be" goes with it."""

    subject: tuple[str, ...]
    verb: tuple[str, ...]
    rest: tuple[str, ...]
    past: bool

    def __str__(self) -> str:
        return " ".join((*self.subject, *self.verb, *self.rest))


def declarative(auxiliary: str, words: Sequence[str]) -> Clause | None:
    """The statement of `auxiliary` + words, "did" + "he go home" -> "he went home"; None where no verb is found."""
    auxiliary, words, negated = bare(auxiliary), list(words), ()
    if words and bare(words[0]) == "not":
        words, negated = words[1:], ("not",)
    at = predicate(auxiliary, words)
    if at is None:
        return None
    past = auxiliary in PAST
    if auxiliary not in DO:
        while at > 1 and (is_adverb(words[at - 1]) or bare(words[at - 1]) in ("been", "be", "being", "both", "all")):
            at -= 1
        return Clause(tuple(words[:at]), (auxiliary, *negated), tuple(words[at:]), past)
    if bare(words[at - 1]) == "not" and at > 1:
        return Clause(tuple(words[:at - 1]), (auxiliary, "not", words[at]), tuple(words[at + 1:]), past)
    if negated:
        return Clause(tuple(words[:at]), (auxiliary, "not", words[at]), tuple(words[at + 1:]), past)
    return Clause(tuple(words[:at]), (inflected(auxiliary, words[at]),), _coordinated(auxiliary, words[at + 1:]), past)


def inflected(auxiliary: str, word: str) -> str:
    """The form in which a base form stands once do, does or did is gone; punctuation behind it stays."""
    base = bare(word)
    tail = word[len(word.rstrip(",.;:\"'")):]
    if not verbs.is_base(base) and base in verbs.PASTS:
        return word
    form = {"did": verbs.past, "does": verbs.third_person}.get(auxiliary, str)(base)
    return form + tail


def _coordinated(auxiliary: str, rest: Sequence[str]) -> tuple[str, ...]:
    """A second verb, "did he plan and build it", takes the same form."""
    rest = list(rest)
    if len(rest) > 1 and bare(rest[0]) in ("and", "or") and verbs.is_plain(bare(rest[1])):
        rest[1] = inflected(auxiliary, rest[1])
    return tuple(rest)


def predicate(auxiliary: str, words: Sequence[str]) -> int | None:
    """Index of the word in which the predicate starts, at least 1; None where none can be told."""
    if auxiliary in BE and len(words) > 1 and bare(words[0]) == "there":
        return 1
    if auxiliary in BE:
        judge = _after_be
    elif auxiliary in HAVE:
        judge = _after_have
    else:
        judge = _after_do
    found = _best(words, judge)
    return _best(words, _mistaken_past) if found is None and auxiliary == "did" else found


def _best(words: Sequence[str], judge: Callable[[Sequence[str], int], float]) -> int | None:
    points = [judge(words, at) - min(0.3 * at, FAR) for at in range(1, len(words))]
    if not points or max(points) < -2:
        return None
    return 1 + points.index(max(points))


def _after_do(words: Sequence[str], at: int) -> float:
    """Points of a base form after do, does, did or a modal."""
    word, before = bare(words[at]), bare(words[at - 1])
    if is_name(words[at]) or before == "to" or not (verbs.is_base(word) or _could_be_base(words, at)):
        return NEVER
    points = 2.5 if verbs.is_plain(word) else 0.0 if verbs.is_base(word) else -0.5
    if before in RELATIVES and before != "that" or before in ("and", "or") and at < 3 or _has_auxiliary(words, at) \
            or word == "found" and at + 1 < len(words) and bare(words[at + 1]) in PREPOSITIONS:
        return NEVER
    if before == "that":
        points -= 5
    if before in NUMBERS:
        points -= 1
    elif before in DETERMINERS - PRONOUNS or before in PREPOSITIONS or is_possessive(words[at - 1]):
        points -= 5
    elif before in JOINERS:
        points -= 3
    elif is_adjective(before) and not is_name(words[at - 1]):
        points -= 2
    points += _subject_ends(words, at) + _goes_on(words, at) - _inside_clause(words, at)
    if before in CHAINING and at > 1 and verbs.is_base(before):
        points -= 3
    return points


def _could_be_base(words: Sequence[str], at: int) -> bool:
    """Whether a word that is in no table may be a verb: by its ending, or as the last word behind a full subject."""
    word = bare(words[at])
    if not word.isalpha() or is_adverb(word) or word in PREPOSITIONS | DETERMINERS | PRONOUNS | RELATIVES | JOINERS:
        return False
    if word.endswith(("ize", "ise", "ify")):
        return True
    return at + 1 == len(words) and not is_adjective(word) and not word.endswith(("s", "ed", "ing", "tion", "ness", "ity"))


def _mistaken_past(words: Sequence[str], at: int) -> float:
    """Points of a past after "did", which people do write: "did he received"."""
    word = bare(words[at])
    if word not in verbs.PASTS or word in verbs.PLURAL_LIKE or is_name(words[at]):
        return NEVER
    return _verbal(words, at, 0.0)


def _has_auxiliary(words: Sequence[str], at: int) -> bool:
    """Whether the word belongs to an auxiliary of its own, "that he could not deny"."""
    at -= 1
    while at > 1 and is_adverb(words[at]):
        at -= 1
    return bare(words[at]) in MODALS | DO


def _subject_ends(words: Sequence[str], at: int) -> float:
    before = bare(words[at - 1])
    if before in PRONOUNS:
        return 4.0
    if is_adverb(before):
        return 2.0
    if is_plural(before) or is_name(words[at - 1]) or is_number(before):
        return 1.0
    return 0.0


def _goes_on(words: Sequence[str], at: int) -> float:
    """Points for what follows a verb: its end, a preposition, a noun phrase; fewer before what could be the verb."""
    if at + 1 == len(words):
        return 1.2
    after = bare(words[at + 1])
    if words[at].endswith(","):
        return 0.5
    if after in PREPOSITIONS or after in DETERMINERS or after in PRONOUNS or is_adverb(after):
        return 1.5
    if is_name(words[at + 1]) or is_number(after):
        return 1.0
    if after in ("and", "or") and at + 2 < len(words) and verbs.is_plain(bare(words[at + 2])):
        return 1.5
    if verbs.is_plain(after):
        return -2.0
    return 0.3 if is_adjective(after) or is_plural(after) else 0.0


def _after_have(words: Sequence[str], at: int) -> float:
    word = bare(words[at])
    if not (verbs.is_participle(word) or word in ("been", "had")) or is_name(words[at]):
        return NEVER
    return _verbal(words, at, 1.0)


def _after_be(words: Sequence[str], at: int) -> float:
    """Points of a participle, a gerund, an adjective or an adverb of place after is, are, was, were."""
    word = bare(words[at])
    if word in ARTICLES | PREPOSITIONS and word != "of" and _second_phrase(words, at):
        return 1.0
    if is_name(words[at]) and not (at + 1 == len(words)):
        return NEVER
    if verbs.is_participle(word):
        return _verbal(words, at, 1.0)
    if verbs.is_gerund(word):
        return _verbal(words, at, 0.0)
    if is_adjective(word) or word in ("there", "here"):
        return _adjective(words, at)
    return NEVER


def _second_phrase(words: Sequence[str], at: int) -> bool:
    """Whether an article starts what is said of a name: "was | Curie | the first recipient of"."""
    subject = [word for word in words[:at] if not is_adverb(word)]
    subject = subject[1:] if len(subject) > 1 and bare(subject[0]) == "the" else subject
    return bare(words[-1]) in PREPOSITIONS and (all(map(is_name, subject)) or bare(subject[0]) in PRONOUNS and len(subject) == 1)


def _verbal(words: Sequence[str], at: int, points: float) -> float:
    before, after = bare(words[at - 1]), bare(words[at + 1]) if at + 1 < len(words) else ""
    helper = at - 1
    while helper > 0 and is_adverb(words[helper]):
        helper -= 1
    if bare(words[helper]) in BE and at - 1 != helper:
        return NEVER
    if at > 1 and before in ("he", "she", "it", "they", "we"):
        return NEVER
    if at > 1 and before in ("been", "be", "being") and bare(words[at - 2]) in BE | HAVE | MODALS:
        return NEVER
    if before in RELATIVES | BE | {"been", "be", "being", "to"} and before != "there":
        return points - (5 if before not in ("been", "be", "being") or at < 2 else 0)
    if before in DETERMINERS - PRONOUNS or before in PREPOSITIONS | CLAUSES or is_possessive(words[at - 1]) \
            or before in JOINERS | {"most", "least", "best"}:
        return points - 5
    if not after:
        points += 4.5 if bare(words[at]) in NAMING else 3.0
    elif after in PREPOSITIONS or is_adverb(after) or after in ARTICLES:
        points += 2.5 if at + 2 == len(words) else 1.5
    elif not opens_phrase(after) and not starts_noun_phrase(words[at + 1]) and not verbs.is_participle(after):
        points -= 1.5
    return points + _subject_ends(words, at) - _inside_clause(words, at)


def _inside_clause(words: Sequence[str], at: int) -> float:
    """Points lost behind a conjunction or a relative pronoun, whose clause the word may belong to."""
    return 3.0 if any(bare(word) in CLAUSES for word in words[1:at]) and at + 1 < len(words) else 0.0


def _adjective(words: Sequence[str], at: int) -> float:
    before, after = bare(words[at - 1]), bare(words[at + 1]) if at + 1 < len(words) else ""
    if before in DETERMINERS - PRONOUNS or before in PREPOSITIONS or before in RELATIVES or before in JOINERS \
            or is_possessive(words[at - 1]) or is_adjective(before):
        return NEVER
    if after and not opens_phrase(after) and not is_adverb(after):
        return NEVER
    stranded = at + 2 == len(words) and after in PREPOSITIONS
    return 0.5 + _subject_ends(words, at) + (3.5 if stranded else 0.0)


def finite_verb(words: Sequence[str], start: int = 1) -> int | None:
    """Index of the verb of which the words before it are the subject ("tribe conquered Rome" -> 1), or None."""
    points = [_finite(words, at) - min(0.4 * at, FAR) for at in range(start, len(words))]
    if not points or max(points) < -2:
        return None
    return start + points.index(max(points))


def _finite(words: Sequence[str], at: int) -> float:
    word, before = bare(words[at]), bare(words[at - 1])
    after = bare(words[at + 1]) if at + 1 < len(words) else ""
    if is_name(words[at]) or before in PREPOSITIONS or before in DETERMINERS - PRONOUNS - {"that"} \
            or is_possessive(words[at - 1]) or before in BE | HAVE | {"been", "being", "be", "to"}:
        return NEVER
    points = 0.0 if before not in RELATIVES and before not in JOINERS else -5.0
    if words[at - 1].endswith(","):
        points -= 2.0
    if verbs.is_past(word):
        points += 2.5 if word in verbs.IRREGULAR_PASTS and word not in verbs.BASES else 0.0 if after == "by" else 1.5
    elif verbs.is_third(word):
        points += 2.0 if verbs.is_plain(verbs.THIRDS[word]) else 0.3
        points -= 1.5 if is_plural(before) else 0.0
    elif verbs.is_base(word) and is_plural(before):
        points += 1.5 if verbs.is_plain(word) else 0.5
    elif verbs.is_base(word) and (is_adverb(before) or any(map(is_plural, words[:at]))):
        points += 1.5 if verbs.is_plain(word) or is_adverb(before) else -0.5
    elif word.endswith("s") and len(word) > 4 and after in ARTICLES and not is_plural(before) and before.isalpha():
        points += 0.5          # in no table, but where a verb stands
    else:
        return NEVER
    if after and not opens_phrase(after) and not starts_noun_phrase(words[at + 1]) and not is_adverb(after) \
            and not is_adjective(after):
        points -= 1.0
    return points + (0.5 if not after else 1.0 if after == "that" else 0.0)
