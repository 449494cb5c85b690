"""Whether a prediction counts: `contains`, the papers' metric, and `exact`.

`contains` is JRT's released metric to the letter (specs of the harness at 7490f22): an answer counts when it occurs
anywhere in the prediction, letter case folded by `re` alone. Nothing else is normalised, so a no-break space or a
doubled space is a miss, "STRASSE" does not hold "straße", and an empty answer always counts (the cloze task writes none).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from storage.errors import SpecError


def contains(prediction: str, answers: Iterable[str]) -> bool:
    """True when any answer occurs in the prediction, upper and lower case alike. No answers: False."""
    return any(re.search(re.escape(answer), prediction, re.IGNORECASE) for answer in answers)


def exact(prediction: str, answers: Iterable[str]) -> bool:
    """True when the prediction, without the blanks around it, is one of the answers, letter for letter."""
    return any(prediction.strip() == answer.strip() for answer in answers)


METRICS: dict[str, Callable[[str, Iterable[str]], bool]] = {"contains": contains, "exact": exact}


def metric(name: str) -> Callable[[str, Iterable[str]], bool]:
    """The metric of this name, or `SpecError` listing those that exist."""
    if name not in METRICS:
        raise SpecError(f"unknown metric {name!r}; there are: {', '.join(METRICS)}")
    return METRICS[name]
