"""Requests that are longer than the model can place: which side goes, and a count of what went.

lm-evaluation-harness cuts contexts on the left. That takes the question of a prompt that asks first (JRT's Twice), so
the side is a setting, and whatever is cut is counted, told once a call and kept in the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from storage import logs
from storage.errors import LengthError, SpecError

Side = Literal["left", "right", "error"]
SIDES: tuple[Side, ...] = ("left", "right", "error")

log = logs.get("tasks.harness")


@dataclass
class Cuts:
    """Of one kind of request: how many there were, how many contexts were cut, and by how many tokens in all."""

    requests: int = 0
    cut: int = 0
    tokens: int = 0


@dataclass
class Limit:
    """`length`: tokens the model may be given at once; `side`: where a context that is too long loses tokens."""

    length: int
    side: Side = "left"
    cuts: dict[str, Cuts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise SpecError(f"truncate: got {self.side!r}, expected one of {', '.join(SIDES)}")

    def context(self, kind: str, context: Sequence[int], after: int) -> list[int]:
        """The context as it fits before `after` further tokens, at least one token of it.

        Raises LengthError where nothing would be left of it, or with side `error` where something would go.
        """
        counted = self.cuts.setdefault(kind, Cuts())
        counted.requests += 1
        room, over = self.length - after, len(context) - (self.length - after)
        if over <= 0:
            return list(context)
        if room < 1:
            raise LengthError(f"{kind}: {after} tokens after the context leave no room for it in the {self.length} that "
                              "the model is given; raise max_length, or ask for fewer")
        if self.side == "error":
            raise LengthError(f"{kind}: a context of {len(context)} tokens and {after} after it are more than the "
                              f"{self.length} that the model is given; raise max_length, or set truncate to left or right")
        counted.cut += 1
        counted.tokens += over
        return list(context[over:] if self.side == "left" else context[:room])

    def tell(self, kind: str) -> None:
        """Warn of what was cut so far in requests of this kind, if anything was."""
        counted = self.cuts.get(kind, Cuts())
        if counted.cut:
            log.warning("%s: %d of %d contexts were cut on the %s, %d tokens in all, to fit %d tokens",
                        kind, counted.cut, counted.requests, self.side, counted.tokens, self.length)
