"""What kind of mistake a wrong prediction is: exactly one class each, after JRT's Table 13.

Table 13 has two classes, as shares of all examples: "output unrelated to the input" is `unrelated` here, "repetition
error" is `repetition`; it leaves the rest unnamed. How its authors told them apart was not published, so these rules are
ours. They are asked in this order and the first that holds decides:

    no_answer              no letter and no digit was said: an empty line, white space, punctuation
    right_value_elsewhere  an answer is there, but not as the metric wants it: among other words for `exact`, with other
                           punctuation, articles or white space for `contains`
    truncated              the prediction ran into the token limit, and all it said are the first words of an answer
    repetition             it says one phrase of 1 to 8 words three times running and this is at least half of it, or it
                           begins by repeating at least 3 words of the cloze (all of them if it says 3 or fewer, 2 at least)
    other_value            (first of two) its first clause (up to , ; : . ! ? or a bracket) stands in the document word for
                           word, with at least one content word, and in no answer: a wrong span of the document
    near_miss              its first clause, or its first 3 words, are the first words of an answer, with a content word; or
                           it, or its first clause, turns into an answer by changing at most a third of its characters
                           (Levenshtein distance against the longer of the two, which has at least 4): a value that was
                           found and not copied to the letter, such as k093733 for k093732
    other_value            its first 3 words stand in the document so
    unrelated              no content word of it occurs in the document
    truncated              it shares words with the document and ran into the token limit
    other                  it shares words with the document and ended by itself

The document is all that the model read before the cloze: question, examples and filler text included where the order has
them, and of a control without a document its question alone. Words are runs of letters, digits and underscores, letter
case folded. A content word has a digit or at least 3 letters, is no common function word of English, and does not stand in
the cloze, which every prompt shows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

CLASSES = ("no_answer", "right_value_elsewhere", "repetition", "near_miss", "other_value", "unrelated", "truncated", "other")
WORD = re.compile(r"\w+")
CLAUSE_END = re.compile(r"[,;:.!?()\[\]](?:\s|$)")
LONGEST_PHRASE, TIMES = 8, 3       # words of a phrase that repeats, how often it must come running
OPENING = 3                        # words that make a quotation
NEAR, SHORTEST = 3, 4              # one character in so many may differ; of a text at least so long
FUNCTION_WORDS = frozenset(
    "about after all also and any are because been before both but can could did does each for from had has have her here "
    "him his how into its may more most not now off one only other our out over own she should some such than that the "
    "their them then there these they this those through too under until very was were what when where which while who "
    "whom whose why will with would you your".split())


def error_of(prediction: str, answers: Sequence[str], right: bool, head: str, cloze: str, truncated: bool) -> str:
    """The class of a prediction, "" when it is right.

    head, cloze  the prompt before its tail, and the tail
    truncated    the answer took all the tokens that were allowed
    """
    if right:
        return ""
    said = words(prediction)
    if not said:
        return "no_answer"
    wanted = [found for found in map(_answer_words, answers) if found]
    if any(_holds(_answer_words(prediction), answer) for answer in wanted):
        return "right_value_elsewhere"
    if truncated and any(answer[:len(said)] == said for answer in map(words, answers)):
        return "truncated"
    asked = words(cloze)
    if _says_again(said) or _opens_with(said, asked):
        return "repetition"
    document, known = _read(head)
    content = {word for word in said if _is_content(word)} - set(asked)
    clause, start = words(CLAUSE_END.split(prediction.strip(), maxsplit=1)[0]), said[:OPENING]
    tells = [part for part in (clause, start if len(said) >= OPENING else [])
             if any(_is_content(word) and word not in asked for word in part)]
    if clause in tells and _holds_text(document, clause) and not any(_holds(answer, clause) for answer in map(words, answers)):
        return "other_value"
    if _is_near(tells, (said, clause), [*filter(None, map(words, answers)), *wanted]):
        return "near_miss"
    if any(_holds_text(document, part) for part in tells):
        return "other_value"
    if not content & known:
        return "unrelated"
    return "truncated" if truncated else "other"


def words(text: str) -> list[str]:
    """Runs of letters, digits and underscores, letter case folded; underscores alone are no word."""
    return [word for word in WORD.findall(text.casefold()) if word.strip("_")]


def _answer_words(text: str) -> list[str]:
    return [word for word in words(text) if word not in ("a", "an", "the")]


def _is_content(word: str) -> bool:
    return any(map(str.isdigit, word)) or (len(word) >= OPENING and word not in FUNCTION_WORDS)


def _holds(whole: Sequence[str], part: Sequence[str]) -> bool:
    return f" {' '.join(part)} " in f" {' '.join(whole)} "


def _says_again(said: list[str]) -> bool:
    """Whether a phrase comes TIMES running and makes up at least half of what is said."""
    for size in range(1, min(LONGEST_PHRASE, len(said) // TIMES) + 1):
        run = 0                                        # words in a row that equal the one `size` before them
        for k in range(size, len(said)):
            run = run + 1 if said[k] == said[k - size] else 0
            if run >= (TIMES - 1) * size and 2 * (run + size) >= len(said):
                return True
    return False


def _opens_with(said: list[str], asked: list[str]) -> bool:
    start = said[:OPENING]
    return len(start) > 1 and _holds(asked, start)


def _holds_text(document: str, part: Sequence[str]) -> bool:
    return f" {' '.join(part)} " in document


def _is_near(openings: Sequence[list[str]], whole: Sequence[list[str]], answers: Sequence[list[str]]) -> bool:
    """Whether an answer begins with one of `openings`, or one of `whole` is an answer but for a few characters."""
    return any(part == answer[:len(part)] for part in openings for answer in answers) or any(
        _is_close(" ".join(part), " ".join(answer)) for part in whole for answer in answers)


def _is_close(one: str, other: str) -> bool:
    """Whether the Levenshtein distance is at most a NEARth of the longer text. Gives up as soon as it cannot be."""
    longest = max(len(one), len(other))
    most = longest // NEAR
    if longest < SHORTEST or abs(len(one) - len(other)) > most:
        return False
    before = list(range(len(other) + 1))
    for k, mine in enumerate(one, 1):
        row = [k]
        for j, theirs in enumerate(other, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (mine != theirs)))
        if min(row) > most:
            return False
        before = row
    return before[-1] <= most


@lru_cache(maxsize=64)
def _read(head: str) -> tuple[str, frozenset[str]]:
    found = words(head)
    return f" {' '.join(found)} ", frozenset(found)
