"""Documents of a wanted length around a gold passage: other passages before and after it, or a window of its page.

Length is counted in words and signs (`WORDS`): no tokenizer is asked, so a document is the same for every model. In NQ's
passages 100 of them are about 113 GPT-2 tokens.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.datasets.spans import Span, find

WORDS = re.compile(r"\w+|[^\w\s]")
COLUMNS = {"512": 512, "1024": 1024, "2048": 2048}      # those of the published NQ sets
BETWEEN = "\n\n"
SHORT = 0.8         # of the wanted length; below it a document is said to be short


@dataclass(frozen=True)
class Passage:
    """A passage and the title of its page. `size`: of the text as it is shown, in words and signs."""

    title: str
    text: str
    size: int

    @classmethod
    def of(cls, title: str, text: str) -> Passage:
        passage = cls(title, text.strip(), 0)
        return cls(title, passage.text, count(passage.shown))

    @property
    def shown(self) -> str:
        return f"{self.title}\n{self.text}" if self.title else self.text


def count(text: str) -> int:
    """Words and signs of a text."""
    return len(WORDS.findall(text))


def generator(*about: str) -> random.Random:
    """A generator that depends on what it is for alone."""
    return random.Random("/".join(about))


def joined(gold: Passage, others: Sequence[Passage], answers: Sequence[str], target: int,
           draw: random.Random) -> tuple[str, int]:
    """(document, character where the gold passage's text starts): at most `target` words, the gold at a drawn place.

    The others are drawn from the sequence, none twice, none of the gold's page, none that holds an answer. With too few
    of them the document stays short; a gold passage longer than `target` stands alone and whole.
    """
    chosen = _drawn(gold, others, answers, target - gold.size, draw)
    chosen.insert(draw.randrange(len(chosen) + 1), gold)
    before = BETWEEN.join(passage.shown for passage in chosen[:chosen.index(gold)])
    start = len(before) + (len(BETWEEN) if before else 0) + len(gold.shown) - len(gold.text)
    return BETWEEN.join(passage.shown for passage in chosen), start


def _drawn(gold: Passage, others: Sequence[Passage], answers: Sequence[str], room: int,
           draw: random.Random) -> list[Passage]:
    order, chosen, misses = list(range(len(others))), [], 0
    while order and room > 0 and misses < 32:
        k = draw.randrange(len(order))
        order[k], order[-1] = order[-1], order[k]
        other = others[order.pop()]
        if other.size > room:
            misses += 1
        elif other.text and (other.title != gold.title or not gold.title) and other != gold and not any(
                find(other.shown, answer) for answer in answers):
            chosen.append(other)
            room -= other.size
    return chosen


def window(document: str, keep: Span, target: int, draw: random.Random) -> tuple[str, Span]:
    """`target` words of the document that hold the characters `keep`, and where these are then.

    The place of `keep` in the window is drawn. A shorter document comes back whole.
    """
    words = [match.span() for match in WORDS.finditer(document)]
    if len(words) <= target:
        return document, keep
    first = next(k for k, (_, end) in enumerate(words) if end > keep[0])
    last = next(k for k in range(len(words) - 1, -1, -1) if words[k][0] < keep[1])
    low, high = max(0, last + 1 - target), min(first, len(words) - target)
    start = draw.randint(low, high) if low <= high else first
    begin, end = words[start][0], max(words[min(start + target, len(words)) - 1][1], keep[1])
    return document[begin:end], (keep[0] - begin, keep[1] - begin)
