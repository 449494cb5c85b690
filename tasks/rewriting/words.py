"""Closed word classes, and what a word can be by its look."""

from __future__ import annotations

BE = frozenset("is are was were am".split())
DO = frozenset("do does did".split())
HAVE = frozenset("has have had".split())
MODALS = frozenset("can could will would shall should may might must cannot".split())
AUXILIARIES = BE | DO | HAVE | MODALS
PAST = frozenset("was were did had".split())
WH = frozenset("what which who whom whose when where why how".split())
DETERMINERS = frozenset("the a an this that these those his her its their our your my some any each every no both all "
                        "another either neither one two three four five six seven eight nine ten many most several "
                        "few".split())
ARTICLES = frozenset(("the", "a", "an"))
PRONOUNS = frozenset("he she it they we you i him them us there people someone anyone one".split())
RELATIVES = frozenset("who that which whose whom where when".split())
PREPOSITIONS = frozenset(
    "about above across after against along alongside amid among amongst around as at before behind below beneath beside "
    "besides between beyond by concerning despite down during except for from in inside into like near of off on onto out "
    "outside over per regarding since through throughout to toward towards under underneath until up upon via with within "
    "without versus according".split())
JOINERS = frozenset("and or but nor than".split())
CLAUSES = frozenset("if because when while where after before since until although though unless whether that "
                    "who which".split())
ADVERBS = frozenset("also first often still then now never ever always again originally only not once just soon later "
                    "already even most today usually sometimes together ago away back currently formerly most-often "
                    "mostly mainly largely initially typically generally commonly previously best well yet rather "
                    "further instead long better very too quite almost".split())
NO_ADVERBS = frozenset("family italy july reply supply ally early monopoly assembly only holy daily weekly monthly "
                       "elderly fly rely apply imply comply sicily lily butterfly jelly belly bully kelly billy emily "
                       "molly sally wolly friendly lovely likely rally anomaly melancholy".split())
ADJECTIVES = frozenset(
    "able available aware bad big blue red green white black common dead dependent different due east easy equal evident "
    "false famous far first full good great guilty hard high home ill important independent large last liable likely long "
    "low main major married native necessary new next north old open popular possible present proper ready real "
    "responsible rich poor safe second short similar small strong sure third true unable unique unlikely useful valid "
    "visible weak west wrong young free alive absent active subject close proportional equivalent inferior superior perpendicular parallel prone immune essential crucial vital "
    "significant beneficial harmful abundant prevalent evident apparent pregnant separate distinct identical fond ill-suited "
    "late rare scarce typical characteristic indicative reminiscent full guilty aware drunk blind certain concerned worried afraid asleep alone worse better reluctant greater larger smaller higher lower "
    "more less worth illegal legal capable eligible familiar".split())
ADJECTIVE_ENDS = ("able", "ible", "ful", "ous", "ive", "less", "ical", "ial")
TIME_NOUNS = frozenset("year years decade decades century centuries month months day days date dates season period era "
                       "time times point".split())
PLACE_NOUNS = frozenset("country countries city cities state states town village continent region area county province "
                        "place location part parts district neighborhood suburb island nation".split())
UNITS = frozenset("yards yard points feet foot meters metres miles kilometers kilometres km inches pounds kilograms tons "
                  "years days hours minutes seconds months weeks percent degrees dollars acres".split())
NAMING = frozenset("called named known considered termed titled dubbed nicknamed labeled labelled renamed designated "
                   "referred described credited".split())
CALLING = frozenset("call name term dub title nickname consider label".split())
MOVING = frozenset("go move travel flee return migrate emigrate immigrate sail relocate retreat escape march lead spread "
                   "send come head transfer deport bring".split())
COMING = frozenset("get originate derive hail descend receive obtain learn stem emerge gain".split())


def bare(word: str) -> str:
    """The word in small letters without punctuation around it."""
    return word.strip(",.;:!?\"'()[]“”‘’`").lower()


def is_possessive(word: str) -> bool:
    return bare(word).endswith(("'s", "’s")) or word.endswith(("s'", "s’"))


def is_name(word: str) -> bool:
    """A word with a capital letter, which inside a sentence is a name or part of one."""
    return bool(word) and word.lstrip("\"'(“‘")[:1].isupper()


def is_number(word: str) -> bool:
    return any(letter.isdigit() for letter in word)


def is_adverb(word: str) -> bool:
    word = bare(word)
    return word in ADVERBS or (word.endswith("ly") and len(word) > 4 and word not in NO_ADVERBS)


def is_adjective(word: str) -> bool:
    word = bare(word)
    return word in ADJECTIVES or (word.endswith(ADJECTIVE_ENDS) and len(word) > 5)


def is_plural(word: str) -> bool:
    word = bare(word)
    if word in ("people", "men", "women", "children", "bacteria", "criteria", "media", "police", "mice", "feet", "data",
                "phenomena", "fungi", "those", "these", "species"):
        return True
    return word.endswith("s") and len(word) > 3 and not word.endswith(("ss", "us", "is", "'s", "’s"))


def starts_noun_phrase(word: str) -> bool:
    """Whether the word can only start a noun phrase: a determiner, a pronoun, a name, a number or a possessive."""
    return bare(word) in DETERMINERS | PRONOUNS or is_name(word) or is_number(word) or is_possessive(word)


def opens_phrase(word: str) -> bool:
    """Whether the word starts something that is no part of the noun phrase before it."""
    word = bare(word)
    return word in PREPOSITIONS | CLAUSES or word in JOINERS
