"""What a prediction scores: `contains`, the papers' metric, and those that stand beside it in every table.

`contains` is JRT's released metric to the letter (specs of the harness at 7490f22): an answer counts when it occurs
anywhere in the prediction, letter case folded by `re` alone. Nothing else is normalised, so a no-break space or a
doubled space is a miss, "STRASSE" does not hold "straße", and an empty answer always counts (the cloze task writes none).
`squad_exact` and `f1` follow the official SQuAD v2 script: lower case, ASCII punctuation and the articles a, an, the
taken out, white space folded; `rouge_l` is the F-measure of the package rouge_score. All take the best answer.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from storage.errors import SpecError

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
Metric = Callable[[str, Iterable[str]], float]


def contains(prediction: str, answers: Iterable[str]) -> bool:
    """True when any answer occurs in the prediction, upper and lower case alike. No answers: False."""
    return any(re.search(re.escape(answer), prediction, re.IGNORECASE) for answer in answers)


def exact(prediction: str, answers: Iterable[str]) -> bool:
    """True when the prediction, without the blanks around it, is one of the answers, letter for letter."""
    return any(prediction.strip() == answer.strip() for answer in answers)


def normalised(text: str) -> str:
    """As the official SQuAD script compares texts: punctuation goes before articles, so "a.m." is "am", not "m"."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split())


def squad_exact(prediction: str, answers: Iterable[str]) -> bool:
    """True when prediction and an answer are equal after `normalised`. No answer to give: saying nothing is right."""
    said = normalised(prediction)
    return any(said == normalised(answer) for answer in _answerable(answers))


def f1(prediction: str, answers: Iterable[str]) -> float:
    """Harmonic mean of precision and recall of words, repeats counted, best answer. If either side has no word after
    `normalised`, 1 when both have none, else 0."""
    return max(_f1(normalised(prediction).split(), normalised(answer).split()) for answer in _answerable(answers))


def rouge_l(prediction: str, answers: Iterable[str]) -> float:
    """F-measure of the longest common subsequence of words, best answer; no stemming. The package knows ASCII letters
    and digits alone: other scripts score 0. No answers: 0."""
    return max((_rouge().score(answer, prediction)["rougeL"].fmeasure for answer in answers), default=0.0)


def _answerable(answers: Iterable[str]) -> list[str]:
    """Answers that hold a word; none of them: the right answer is to say nothing (SQuAD v2)."""
    return [answer for answer in answers if normalised(answer)] or [""]


def _f1(said: list[str], wanted: list[str]) -> float:
    if not said or not wanted:
        return float(said == wanted)
    shared = sum((Counter(said) & Counter(wanted)).values())
    return 2 * shared / (len(said) + len(wanted))


@lru_cache(maxsize=1)
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], use_stemmer=False)


def _number(metric: Callable[[str, Iterable[str]], bool | float]) -> Metric:
    return lambda prediction, answers: float(metric(prediction, list(answers)))


METRICS: dict[str, Metric] = {name: _number(function) for name, function in {
    "contains": contains, "exact": exact, "squad_exact": squad_exact, "f1": f1, "rouge_l": rouge_l}.items()}
GRADED = ("f1", "rouge_l")          # those that give anything between 0 and 1
ENOUGH = 0.5                        # a graded prediction that scores this is no error


def metric(name: str) -> Metric:
    """The metric of this name, a number from 0 to 1, or `SpecError` listing those that exist."""
    if name not in METRICS:
        raise SpecError(f"unknown metric {name!r}; there are: {', '.join(METRICS)}")
    return METRICS[name]


def every_metric(prediction: str, answers: Iterable[str]) -> dict[str, float]:
    """All metrics of one prediction by name."""
    answers = list(answers)
    return {name: function(prediction, answers) for name, function in METRICS.items()}
