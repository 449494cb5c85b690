"""Each rule by an example, and that there is exactly one class for every wrong prediction."""

import itertools
import random

import pytest

from tasks.answer_errors import CLASSES, error_of

HEAD = ("What is the treaty's year?\nThe Treaty of Lunden was signed in 1423 by Duke Albrecht, who ruled Northmark. Its text "
        "lies in the abbey of Sankt Elm; a copy of 1501 was burnt.\n\n")
CLOZE = "The Treaty of Lunden was signed in the year"


@pytest.mark.parametrize("prediction, answers, truncated, expected", [
    ("", ["1423"], False, "no_answer"),
    (" \u2014 ... _", ["1423"], False, "no_answer"),
    (" 1423, by the Duke", ["1423"], False, "right_value_elsewhere"),           # the metric was `exact`
    (" Duke  Albrecht", ["duke albrecht"], False, "right_value_elsewhere"),     # a doubled space, for `contains`
    (" abbey of Sankt-Elm", ["the abbey of Sankt Elm"], False, "right_value_elsewhere"),
    (" abbey of Sankt", ["the abbey of Sankt Elm"], True, "near_miss"),         # an article is missing
    (" the abbey of", ["the abbey of Sankt Elm"], True, "truncated"),
    (" the abbey of", ["the abbey of Sankt Elm"], False, "near_miss"),
    (" the abbey of Maria Laach", ["the abbey of Sankt Elm"], False, "near_miss"),
    (" k093733", ["k093732"], False, "near_miss"),
    (" K063170, and so on", ["k060070"], False, "near_miss"),                   # two of seven characters
    (" k063179", ["k060070"], False, "unrelated"),                              # three of seven
    (" 1501", ["1502"], False, "other_value"),                                  # as near, but it stands there
    (" copy of 1502", ["1501"], False, "other"),
    (" cat", ["car"], False, "unrelated"),                                      # too short to be near
    (" Northmarc", ["Northmark"], True, "near_miss"),
    (" war war war", ["1423"], False, "repetition"),
    (" not war and not war and not war and", ["1423"], True, "repetition"),
    (" war war", ["1423"], False, "unrelated"),                                 # twice is none
    (" when all was lost he said no no no", ["1423"], False, "unrelated"),      # and so is a short end
    (" The Treaty of Lunden was broken", ["1423"], False, "repetition"),        # says the cloze again
    (" treaty of", ["1423"], False, "repetition"),
    (" 1501", ["1423"], False, "other_value"),
    (" Duke Albrecht, and nobody knew", ["1423"], False, "other_value"),        # first clause
    (" Albrecht, who ruled over zebras", ["1423"], False, "other_value"),
    (" copy of 1501 zebras", ["1423"], True, "other_value"),                    # first three words
    (" who", ["1423"], False, "unrelated"),                                     # stands there, and says nothing
    (" zebras and lions", ["1423"], False, "unrelated"),
    (" zebras and lions", ["1423"], True, "unrelated"),
    (" of the Treaty", ["1423"], False, "unrelated"),                           # words of the cloze are no sign of reading
    (" zebras burnt the Northmark", ["1423"], True, "truncated"),
    (" zebras burnt the Northmark", ["1423"], False, "other"),
    (" ZEBRAS 1501", ["1423"], False, "other"),
])
def test_rules(prediction, answers, truncated, expected):
    assert error_of(prediction, answers, False, HEAD, CLOZE, truncated) == expected


def test_right_is_no_error_whatever_was_said():
    assert error_of("", ["x"], True, HEAD, CLOZE, True) == ""


def test_without_a_document_only_the_question_can_be_shared():
    assert error_of(" 1501", ["1423"], False, "What is the treaty's year?\n\n", CLOZE, False) == "unrelated"
    assert error_of(" 1501", ["1423"], False, "", CLOZE, False) == "unrelated"
    assert error_of(" what is best", ["1423"], False, "What is best?\n\n", CLOZE, False) == "other_value"


def test_no_answers_to_hold():
    assert error_of(" 1501", [], False, HEAD, CLOZE, False) == "other_value"
    assert error_of(" 1501", ["..."], False, HEAD, CLOZE, True) == "other_value"


def test_every_wrong_prediction_has_exactly_one_class_and_every_class_is_met():
    pool = ["1423", "1424", "1501", "zebra", "the", "treaty", "Duke", "Albrecht", "burnt", ",", ".", "abbey", "\u00e9t\u00e9"]
    draw, met = random.Random(0), set()
    for size, truncated in itertools.product(range(9), (False, True)):
        for _ in range(150):
            said = " ".join(draw.choices(pool, k=size))
            found = error_of(said, ["1423"], False, HEAD, CLOZE, truncated)
            assert found in CLASSES
            met.add(found)
    assert met == set(CLASSES)
