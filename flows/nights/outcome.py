"""What came of a version in a night, as data that fits into JSON and comes back from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

BETTER, WORSE, EVEN, UNKNOWN = "better", "worse", "even", "not comparable"
Figure = tuple[float | None, float | None, float | None]        # value, low, high


@dataclass
class Verdict:
    """One comparison. `difference` is this version minus the other, with its interval; None where there is no pair.

    kind    `alias` (against the best of the size), `previous` (the version before it), `before` (its own earlier answers)
    what    label of the evaluation, or `suite` for all of them together
    """

    kind: str
    what: str
    against: str
    result: str
    difference: Figure | None = None
    reason: str = ""

    @property
    def counted(self) -> bool:
        """Whether an interval was computed."""
        return self.difference is not None

    @property
    def regression(self) -> bool:
        return self.result == WORSE and self.kind in ("previous", "before")


@dataclass
class Outcome:
    """One version: why it was looked at, what it scored, and what followed."""

    model: str
    version: str
    architecture: str = ""
    size: str = ""
    seed: str = ""
    reason: str = ""
    failure: str = ""                                                   # one sentence; then nothing else is there
    suite: Figure | None = None                                         # the suite's number
    tasks: dict[str, Figure] = field(default_factory=dict)              # label -> mean over its columns
    cells: dict[str, Figure] = field(default_factory=dict)              # label/column/order -> score
    scores: dict[str, str] = field(default_factory=dict)                # label -> artifact
    verdicts: list[Verdict] = field(default_factory=list)
    alias: str = ""                                                     # that moved to this version
    alias_note: str = ""                                                # why it did or did not

    @property
    def name(self) -> str:
        return f"{self.model} version {self.version}"

    @property
    def regressions(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.regression]

    def as_dict(self) -> dict[str, Any]:
        """For JSON; what is empty is left out."""
        return {key: value for key, value in asdict(self).items() if value not in ("", None, {}, [])}

    @classmethod
    def of(cls, data: dict[str, Any]) -> Outcome:
        """Back from JSON."""
        data = dict(data)
        data["verdicts"] = [Verdict(**{**one, "difference": _figure(one.get("difference"))})
                            for one in data.get("verdicts", ())]
        data["suite"] = _figure(data.get("suite"))
        for name in ("tasks", "cells"):
            data[name] = {key: _figure(figure) for key, figure in data.get(name, {}).items()}
        return cls(**data)


def shown(figure: Figure | None, signed: bool = False) -> str:
    """`0.412 [0.380, 0.445]`"""
    if figure is None or figure[0] is None:
        return "–"
    form = "+.3f" if signed else ".3f"
    value, low, high = figure
    return format(value, form) + ("" if low is None else f" [{format(low, form)}, {format(high, form)}]")


def rounded(figure: Any) -> Figure:
    """An interval to six digits, which is more than it is worth and less than half of what it takes in JSON."""
    return tuple(None if each is None else round(float(each), 6) for each in (figure.value, figure.low, figure.high))


def _figure(value: Any) -> Figure | None:
    return None if value is None else tuple(value)
