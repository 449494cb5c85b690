"""The metrics, on cases worked by hand."""

import json
import subprocess
import sys

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


@pytest.mark.parametrize("text, expected", [
    ("The  Cat's\tpaw.", "cats paw"), ("9 a.m.", "9 am"), ("An a the", ""), ("theatre", "theatre"),
    ("U.S.", "us"), ("«Paris»", "«paris»"), ("a-b", "ab"),
])
def test_squad_normalisation(text, expected):
    assert scoring.normalised(text) == expected


@pytest.mark.parametrize("prediction, answers, exact, f1", [
    (" The Eiffel Tower.", ["Eiffel tower"], True, 1.0),
    ("Eiffel Tower in Paris", ["Eiffel tower"], False, 2 * 2 / 6),
    ("the tower", ["Eiffel tower", "a tower"], True, 1.0),          # the best answer counts
    ("tower tower", ["tower"], False, 2 / 3),                       # repeats count once each
    ("London", ["Paris"], False, 0.0),
    ("", ["Paris"], False, 0.0),
    ("the", ["Paris"], False, 0.0),                                 # nothing is left to say
    ("", [], True, 1.0), ("Paris", [], False, 0.0),                 # no answer: silence is right
    (".", ["the"], True, 1.0), ("Paris", ["the", "Paris"], True, 1.0), ("", ["the", "Paris"], False, 0.0),
])
def test_squad_scores(prediction, answers, exact, f1):
    assert scoring.squad_exact(prediction, answers) is exact
    assert scoring.f1(prediction, answers) == pytest.approx(f1)


def test_rouge_l_is_the_longest_common_subsequence():
    # words in order: police, the, gunman of (police killed the gunman) and (police kill the gunman): 3 of 4 and 4
    assert scoring.rouge_l("police kill the gunman", ["police killed the gunman"]) == pytest.approx(0.75)
    assert scoring.rouge_l("the gunman kill police", ["police killed the gunman"]) == pytest.approx(0.5)
    assert scoring.rouge_l("x", ["y", "x"]) == 1.0 and scoring.rouge_l("x", []) == 0.0 and scoring.rouge_l("", ["x"]) == 0


def test_the_registry_gives_numbers():
    found = scoring.every_metric("The int.", ["int"])
    assert found == {"contains": 1.0, "exact": 0.0, "squad_exact": 1.0, "f1": 1.0, "rouge_l": pytest.approx(2 / 3)}
    assert all(type(value) is float for value in found.values())
    assert list(found) == list(scoring.METRICS)


def test_an_unknown_metric_names_those_that_exist():
    assert scoring.metric("exact")("int", iter(["int"])) == 1.0
    with pytest.raises(SpecError, match="contains, exact, squad_exact, f1, rouge_l"):
        scoring.metric("rouge")


def test_importing_the_metrics_loads_no_package():
    code = "import sys, tasks.scoring; sys.exit('rouge_score' in sys.modules or 'nltk' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
