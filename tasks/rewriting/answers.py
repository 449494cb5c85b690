"""What an answer looks like, and which small words lead to it.

An answer is known with the text before and behind it in its document, which often says the preposition and the article
that English wants: "in the", "by", "the".
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from tasks.datasets.records import Record
from tasks.rewriting import verbs
from tasks.rewriting.words import (
    ARTICLES,
    BE,
    DETERMINERS,
    DO,
    HAVE,
    MODALS,
    PREPOSITIONS,
    PRONOUNS,
    RELATIVES,
    bare,
    is_adverb,
    is_name,
    is_number,
    is_plural,
    opens_phrase,
)

MONTH = ("(?:january|february|march|april|may|june|july|august|september|october|november|december|"
         "jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)")
WEEKDAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day"
DAY = re.compile(rf"{MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?\b(?!\d)|\b\d{{1,2}}(?:st|nd|rd|th)?(?: of)? {MONTH}\b|^{WEEKDAY}",
                 re.IGNORECASE)
CLOCK = re.compile(r"\b\d{1,2}:\d\d\b|\b\d{1,2} ?[ap]\.?m\b|^(?:noon|midnight|dawn|dusk|night)\b", re.IGNORECASE)
ERA = re.compile(r"^(?:the )?(?:(?:early|late|mid|middle|beginning|end)[ -])*(?:\d{2,4}s\b|(?:first|second|latter|other|early|late) (?:half|part|quarter|third) of\b|\w*\d(?:st|nd|rd|th)\b|\w+teenth|"
                 r"(?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|twentieth) (?:and \w+ )?centur)|"
                 r"^(?:winter|summer|spring|autumn|fall) of|(?:period|era|age)$", re.IGNORECASE)
SITE = re.compile(r"\b(?:College|University|School|Stadium|Arena|Airport|Hospital|Museum|Hotel|Hall|Center|Centre|Station)$")
TIME_STARTS = PREPOSITIONS | {"every", "when", "while", "because", "once", "shortly", "immediately", "several", "just", "yesterday",
                              "today", "no", "late", "last", "next", "annually", "twice", "currently", "ago", "not",
                              "later", "prior", "soon", "early", "only"}
TIME_LEADS = frozenset("in on during by before after around about at throughout circa between".split())
PLACE_LEADS = frozenset("in at on near along within inside outside throughout across under over around between "
                        "behind beside off atop".split())
MANNER_LEADS = frozenset("by through via with using as".split())
PERSON_STOPS = frozenset("university college company corporation inc committee council party court group empire army "
                         "government parliament association society team church commission agency department league union "
                         "united states".split())


@dataclass(frozen=True)
class Answer:
    """The first answer, up to four words `before` it in the document (small letters), and the word `behind` it.

    small: words that the document writes without a capital.
    """

    text: str
    before: tuple[str, ...] = ()
    behind: str = ""
    small: frozenset[str] = frozenset()

    @property
    def words(self) -> list[str]:
        return self.text.split()

    @property
    def first(self) -> str:
        return bare(self.words[0]) if self.words else ""

    def led_by(self, leads: frozenset[str]) -> str | None:
        """The preposition in front of it in the document, if it is one of these; an article between is skipped."""
        for word in reversed(self.before[-2:]):
            if word in leads:
                return word
            if word not in ARTICLES:
                break
        return None


def answer_of(record: Record) -> Answer:
    """The record's first answer and its surroundings; a span that is not given is the first occurrence."""
    text = record.answers[0].strip()
    found = re.search(rf"(?<!\w){re.escape(text)}(?!\w)", record.document)
    start = record.span[0] if record.span else found.start() if found else record.document.find(text)
    if start < 0:
        return Answer(text)
    stop = start + len(text)
    sentence = re.split(r"[.;:()\n]", record.document[max(0, start - 60):start])[-1]
    behind = re.match(r"\s*\S*", record.document[stop:stop + 30])
    return Answer(text, tuple(word.lower() for word in sentence.split()[-4:]), behind[0] if behind else "",
                  _small(record.document))


@functools.lru_cache(maxsize=4)
def _small(document: str) -> frozenset[str]:
    """Words that begin with a small letter; records of one document follow each other."""
    return frozenset(re.findall(r"\b[a-z][\w'-]*", document))


def article(answer: Answer) -> str:
    """`the`, `a` or `an` where the document has it in front of the answer and means the answer by it, else ""."""
    if not answer.before or answer.before[-1] not in ARTICLES or answer.first in DETERMINERS or answer.text[:1] in "\"'“":
        return ""
    following = answer.behind.strip()
    ends = not following or not answer.behind[:1].isspace() or opens_phrase(following) \
        or bare(following) in BE | HAVE | MODALS | DO or is_adverb(following)
    return answer.before[-1] if ends and not following.startswith(("-", "'", "’")) else ""


def time_lead(answer: Answer) -> str:
    """What joins a statement to a time: in, on, at, in the, during, or nothing."""
    first, text = answer.first, answer.text
    if first in TIME_STARTS and not ERA.search(text):
        return ""
    if first in PREPOSITIONS:
        return ""
    found = answer.led_by(TIME_LEADS)
    the = "" if first in DETERMINERS else " the"
    if CLOCK.search(text) and len(text) < 12:
        return found or "at"
    if len(DAY.findall(text)) > 1 and re.search(r"[–-]| to ", text):
        return "from"
    if DAY.search(text):
        return found if found in TIME_LEADS - {"in", "at"} else "on"
    if ERA.search(text):
        return (found or "in") + the
    if found:
        return found
    if re.search(r"\b\d{3,4}\b|^" + MONTH, text, re.IGNORECASE) or first in ("spring", "summer", "autumn", "winter"):
        return "in"
    if re.search(r"\b(?:days?|hours?|minutes?|weeks?|months?|years?|decades?)\b", text) and is_number(text.split()[0]):
        return "" if text.endswith("ago") else "after"
    if is_clause(answer):
        return "when"
    return "" if verbs.is_gerund(first) else "during"


def place_lead(answer: Answer, verb: str = "") -> str:
    """What joins a statement to a place; `verb`: base form of the statement's verb, which may want `to` or `from`."""
    from tasks.rewriting.words import COMING, MOVING

    if answer.first in PREPOSITIONS or is_adverb(answer.first) or answer.first in ("home", "here", "there", "where",
                                                                                   "abroad", "downtown", "everywhere"):
        return ""
    if verb in MOVING:
        return answer.led_by(frozenset(("to", "into", "from", "through", "across", "towards"))) or "to"
    if verb in COMING:
        return answer.led_by(frozenset(("from", "at", "in"))) or "from"
    return answer.led_by(PLACE_LEADS) or ("at" if SITE.search(answer.text) else "in")


def reason_lead(answer: Answer) -> str:
    """What joins a statement to its reason: because, because of, to, or nothing."""
    first = answer.first
    if first in PREPOSITIONS | {"because", "due", "so", "thanks", "owing"}:
        return ""
    if is_clause(answer):
        return "because"
    if verbs.is_third(first) and verbs.is_plain(verbs.THIRDS[first]) and len(answer.words) > 2:
        return "because it"
    if verbs.is_base(first) and (answer.before[-1:] == ("to",) or (verbs.is_plain(first) and len(answer.words) > 1)):
        return "to"
    return "because of"


def manner_lead(answer: Answer) -> str:
    """What joins a statement to the way in which it happens: by, through, as, ... or nothing."""
    first = answer.first
    if first in PREPOSITIONS | {"using", "because", "when", "if", "so", "more", "less", "very"} or is_adverb(first):
        return ""
    if len(answer.words) == 1 and is_adverb(answer.words[-1]):
        return ""
    found = answer.led_by(MANNER_LEADS)
    if found:
        return found
    return "by" if verbs.is_gerund(first) else "through"


def is_clause(answer: Answer) -> bool:
    """Whether the answer is a sentence of its own: it has a finite verb that no relative pronoun claims."""
    words = [bare(word) for word in answer.words]
    if len(words) < 2:
        return False
    if words[0] in PRONOUNS - {"one", "there", "you"} | {"there"} and len(words) > 2:
        return True
    for at, word in enumerate(words[1:], 1):
        if word in RELATIVES and at > 1:
            return False
        if word in BE | HAVE | MODALS | DO and at + 1 < len(words):
            return True
        if word in verbs.IRREGULAR_PASTS and word not in verbs.IRREGULAR_PARTICIPLES and word not in verbs.BASES:
            return True
    return False


def is_many(answer: Answer) -> bool:
    """Whether the answer names several: "and" between its parts, or a plural at its end."""
    words = answer.words
    if not words:
        return False
    if any(bare(word) in ("and",) for word in words) and len(words) < 12:
        return True
    if len(words) == 1 and is_name(words[0]):
        return False
    head = words[-1]
    for at, word in enumerate(words[1:], 1):
        if opens_phrase(word) or bare(word) in RELATIVES:
            head = words[at - 1]
            break
    return is_plural(head) and not (len(words) > 1 and all(map(is_name, words)) and answer.first != "the")


def is_person(answer: Answer) -> bool:
    """Whether it looks like one person's name: two to four capitalised words without an article or a word of bodies."""
    words = answer.words
    return 2 <= len(words) <= 5 and answer.first not in DETERMINERS and answer.before[-1:] != ("the",) and is_name(words[0]) and is_name(words[-1]) \
        and not any(is_number(word) or bare(word) in PERSON_STOPS for word in words) \
        and not any(bare(word) in ("and", "or", "of") for word in words)
