"""Cutting a document to a number of tokens around its answer.

Full lines are kept as long as lines are short. A line that alone is longer than the limit (page text often is one line)
is broken into sentences, and such a sentence into words; nothing smaller is broken. White space belongs to the piece
that it stands before, as tokenizers have it, so that pieces cost together what they cost alone, or a little less.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from tasks import prompts

Span = tuple[int, int]
# Where a piece of each size begins: at a line feed, at white space after a sentence, at white space.
BREAKS = (
    re.compile(r"\n"),
    re.compile(r"""(?:(?<=[.!?…])|(?<=[.!?…]["'”’)\]]))\s+|(?<=[。！？])"""),
    re.compile(r"\s+"),
)
FIRST_LINE = re.compile(r"\s*([^\n]*)")
LONG = 16        # characters a token; only of a text longer than the limit by this, a head is counted first


def cut_around(document: str, tokenizer: prompts.Encoder, limit: int, keep: Span | None) -> str | None:
    """A stretch of the document within `limit` tokens that holds the characters `keep`, without white space around it.

    The head if it holds them, else pieces before and after them, as many tokens on either side. Without `keep` the head,
    in full lines. None when not even the words that hold them fit, or, without `keep`, not one line.
    """
    head = prompts.cut(document, tokenizer, limit)
    if keep is None:
        return head or None
    ruler = Ruler(document, tokenizer, limit)
    if head and len(head) >= keep[1]:
        if not ruler.next_line_is_long(len(head)):
            return head
        return ruler.grown((0, len(head)))
    core = ruler.core(keep)
    return None if core is None else ruler.grown(core)


@dataclass(frozen=True)
class Ruler:
    """Measures pieces of one document against one limit [tokens]."""

    document: str
    tokenizer: prompts.Encoder
    limit: int

    def tokens(self, start: int, stop: int) -> int:
        """Tokens of a stretch; some number above the limit for one above the limit."""
        text = self.document[start:stop]
        if len(text) > LONG * self.limit:
            head = len(self.tokenizer.encode_batch([text[: LONG * self.limit]])[0])
            if head > self.limit + 1:                       # the last token may be half a word
                return head
        return len(self.tokenizer.encode_batch([text])[0])

    def next_line_is_long(self, at: int) -> bool:
        """Whether the line after `at` is above the limit by itself."""
        line = FIRST_LINE.match(self.document, at)
        return self.tokens(*line.span(1)) > self.limit

    def core(self, keep: Span) -> Span | None:
        """The smallest pieces that hold `keep`, of the largest size that fits; None when not even words do."""
        start, stop = 0, len(self.document)
        for size in range(len(BREAKS)):
            edges = self._edges(start, stop, size)
            first = bisect_right(edges, keep[0]) - 1
            last = bisect_left(edges, max(keep[1], keep[0] + 1), lo=first + 1)
            start, stop = edges[max(first, 0)], edges[min(last, len(edges) - 1)]
            inner = self._stripped(start, stop)
            if self.tokens(*inner) <= self.limit:
                return inner
        return None

    def grown(self, core: Span) -> str | None:
        """The core with pieces before and after it, as many tokens on either side as there is room for."""
        sides = Side(self._outward(0, core[0], backwards=True)), Side(self._outward(core[1], len(self.document)))
        left = self.limit - self.tokens(*core)
        while True:
            fitting = [side for side in sides if side.cost is not None and side.cost <= left]
            if not fitting:
                break
            side = min(fitting, key=lambda each: each.taken)
            left -= side.cost
            side.take()
        return self._verified(core, *sides)

    def _verified(self, core: Span, before: Side, after: Side) -> str | None:
        """What was grown, less a piece or two where pieces cost more together than alone."""
        while True:
            start = before.pieces[-1][0][0] if before.pieces else core[0]
            stop = after.pieces[-1][0][1] if after.pieces else core[1]
            start, stop = self._stripped(start, stop)
            if self.tokens(start, stop) <= self.limit:
                return self.document[start:stop]
            longer = max((before, after), key=lambda side: side.taken)
            if not longer.pieces:
                return None
            longer.give_back()

    def _outward(self, start: int, stop: int, size: int = 0, backwards: bool = False) -> Iterator[tuple[Span, int]]:
        """Pieces of a stretch with their tokens, away from the core; those above the limit in smaller ones."""
        edges = self._edges(start, stop, size)
        spans = list(zip(edges, edges[1:]))
        for span in reversed(spans) if backwards else spans:
            cost = self.tokens(*span)
            if cost <= self.limit or size + 1 == len(BREAKS):
                yield span, cost
            else:
                yield from self._outward(*span, size + 1, backwards)

    def _edges(self, start: int, stop: int, size: int) -> list[int]:
        """Where the pieces of a stretch begin and, last, where it ends."""
        inside = [found.start() for found in BREAKS[size].finditer(self.document, start, stop)]
        return [start, *(edge for edge in inside if start < edge < stop), *([stop] if stop > start else [])]

    def _stripped(self, start: int, stop: int) -> Span:
        text = self.document[start:stop]
        return start + len(text) - len(text.lstrip()), stop - len(text) + len(text.rstrip())


class Side:
    """The pieces on one side of the core: those taken, and the one that comes next."""

    def __init__(self, waiting: Iterator[tuple[Span, int]]) -> None:
        self._waiting, self.pieces, self.taken = waiting, [], 0
        self._next = next(waiting, None)

    @property
    def cost(self) -> int | None:
        """Tokens of the next piece, None when there is none."""
        return None if self._next is None else self._next[1]

    def take(self) -> None:
        self.pieces.append(self._next)
        self.taken += self._next[1]
        self._next = next(self._waiting, None)

    def give_back(self) -> None:
        """The outermost piece is not wanted after all."""
        self.taken -= self.pieces.pop()[1]
