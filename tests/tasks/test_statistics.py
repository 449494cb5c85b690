"""Bootstraps on cases whose answer is known."""

import numpy as np
import pytest

from storage.errors import SpecError
from tasks.statistics import Interval, bootstrap, hierarchical, paired


def width(interval):
    return interval.high - interval.low


def test_a_bernoulli_mean_is_covered_about_as_often_as_promised():
    generator = np.random.default_rng(0)
    covered = 0
    for trial in range(300):
        values = generator.random(80) < 0.4
        interval = bootstrap(values, range(80), resamples=400, seed=trial)
        covered += interval.low <= 0.4 <= interval.high
    assert 0.90 <= covered / 300 <= 0.98


def test_width_is_that_of_the_normal_approximation_for_many_documents():
    values = np.arange(2000) % 4 == 0
    interval = bootstrap(values, range(2000), resamples=4000)
    assert interval.value == 0.25
    assert width(interval) == pytest.approx(2 * 1.96 * np.sqrt(0.25 * 0.75 / 2000), rel=0.08)


def test_documents_are_resampled_not_items():
    values = np.repeat(np.arange(50) % 2, 20)                 # twenty equal items in each document
    by_document = bootstrap(values, np.repeat(np.arange(50), 20))
    by_item = bootstrap(values, range(1000))
    assert by_document.n == 1000 and by_document.documents == 50
    assert width(by_document) > 3 * width(by_item)


def test_a_document_with_more_items_weighs_more():
    interval = bootstrap([1, 1, 1, 0], ["a", "a", "a", "b"])
    assert interval.value == 0.75
    assert (interval.low, interval.high) == (0.0, 1.0)


def test_paired_is_narrower_than_unpaired_for_systems_that_agree():
    generator = np.random.default_rng(1)
    ability = generator.random(400)
    a, b = ability > 0.5, ability > 0.52                      # nearly the same answers
    difference = paired(a, b, range(400))
    assert difference.value == pytest.approx(a.mean() - b.mean())
    unpaired = np.hypot(width(bootstrap(a, range(400))), width(bootstrap(b, range(400))))
    assert width(difference) < 0.4 * unpaired


def test_a_difference_of_zero_everywhere_is_zero():
    interval = paired([1, 0, 1], [1, 0, 1], "abc")
    assert (interval.value, interval.low, interval.high) == (0, 0, 0)


def test_seeds_widen_the_interval():
    generator = np.random.default_rng(2)
    rates = np.array([0.2, 0.4, 0.6, 0.8])
    values = generator.random((4, 300)) < rates[:, None]
    over_both = hierarchical(values, range(300))
    over_documents = bootstrap(values.mean(0), range(300))
    assert over_both.value == pytest.approx(over_documents.value)
    assert over_both.seeds == 4 and over_both.reason is None
    assert width(over_both) > 5 * width(over_documents)


def test_documents_are_shared_by_the_seeds_of_a_resample():
    values = np.tile(np.arange(60) % 2, (5, 1))               # five seeds with the same answers: no seed variance
    assert width(hierarchical(values, range(60))) == pytest.approx(width(bootstrap(values[0], range(60))), rel=0.15)


def test_a_difference_of_architectures_pairs_documents():
    hard = np.random.default_rng(3).random(200) < 0.5
    a, b = np.tile(hard, (3, 1)), np.tile(hard, (4, 1))
    interval = hierarchical(a, range(200), minus_SN=b)
    assert (interval.value, interval.low, interval.high) == pytest.approx((0, 0, 0), abs=1e-12)
    assert interval.seeds == 3


def test_few_seeds_say_what_they_are_about():
    assert "these checkpoints" in hierarchical([[1, 0], [0, 0]], "ab").reason


def test_same_seed_same_interval_also_when_computed_in_pieces(monkeypatch):
    values = np.random.default_rng(4).random(50)
    whole = bootstrap(values, range(50), seed=5)
    assert whole == bootstrap(values, range(50), seed=5) != bootstrap(values, range(50), seed=6)
    monkeypatch.setattr("tasks.statistics.CELLS", 50)
    pieces = bootstrap(values, range(50), seed=5)
    assert width(pieces) == pytest.approx(width(whole), rel=0.1)


def test_nothing_and_one_document():
    assert bootstrap([], []) == Interval(None, None, None, 0, 0, 1, "no items")
    one = bootstrap([1.0], ["a"])
    assert (one.value, one.low, one.high) == (1.0, None, None) and "one document" in one.reason
    assert bootstrap([1, 0], ["a", "a"]).value == 0.5
    assert one.as_dict() == {"value": 1.0, "low": None, "high": None, "n": 1, "documents": 1, "reason": one.reason}


@pytest.mark.parametrize("call, message", [
    (lambda: paired([1, 0], [1], "ab"), "same items"),
    (lambda: bootstrap([1, 0], "abc"), "one name per item"),
    (lambda: bootstrap([1, float("nan")], "ab"), "NaN"),
    (lambda: bootstrap([1], "a", resamples=0), "at least 1"),
])
def test_mistakes_are_named(call, message):
    with pytest.raises(SpecError, match=message):
        call()
