"""The two metrics."""

import json

import pytest

from storage.errors import SpecError
from tasks import scoring


@pytest.mark.parametrize("prediction, answers, expected", [
    (" array_like, optional", ["array_like"], True),
    ("ARRAY_LIKE", ["array_like"], True),
    ("f(x) = a+b", ["A+B"], True),                 # taken literally, not as a pattern
    ("aab", ["a+b"], False),
    ("ndarray of\u00a0int", ["ndarray of int"], False),
    ("two  words", ["two words"], False),
    ("either", ["none", "eith"], True),
    ("", ["x"], False),
    ("anything", [""], True),
    ("anything", [], False),
])
def test_contains(prediction, answers, expected):
    assert scoring.contains(prediction, answers) is expected


@pytest.mark.parametrize("prediction, answers, expected", [
    (" int", ["int"], True), ("int or None", ["int"], False), ("Int", ["int"], False), ("17", ["171", "17"], True),
    ("171", ["17"], False), ("", [], False),
])
def test_exact(prediction, answers, expected):
    assert scoring.exact(prediction, answers) is expected


def test_contains_agrees_with_the_released_metric(shared):
    cases = json.loads((shared / "golden/jrt/prompts.json").read_text())["contains_metric"]
    assert len(cases) >= 8
    for case in cases:
        assert scoring.contains(case["prediction"], case["labels"]) == bool(case["score"]), case


def test_an_unknown_metric_names_those_that_exist():
    assert scoring.metric("exact") is scoring.exact
    with pytest.raises(SpecError, match="contains, exact"):
        scoring.metric("rouge")
