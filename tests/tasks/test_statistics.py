"""Bootstraps on cases whose answer is known."""

import math

import numpy as np
import pytest

from storage.errors import SpecError
from storage.shards import ShardWriter
from tasks.evaluate import SCHEMA
from tasks.statistics import Interval, bootstrap, compare, hierarchical, paired, wilson


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


# -------------------------------------------------------------------------------------------------- nothing, everything
def test_nothing_right_has_wilsons_interval_over_documents():
    none = bootstrap([0] * 40, np.repeat(np.arange(20), 2))
    z = 1.959964
    assert (none.value, none.low, none.documents, none.method) == (0.0, 0.0, 20, "wilson")
    assert none.high == pytest.approx(z**2 / (20 + z**2), abs=1e-6) == pytest.approx(0.1611, abs=1e-4)
    every = bootstrap([1] * 20, range(20))
    assert (every.value, every.high) == (1.0, 1.0) and every.low == pytest.approx(1 - none.high)
    assert none.as_dict()["method"] == "wilson" and "method" not in bootstrap([0, 1], "ab").as_dict()
    assert bootstrap([0] * 5, range(5), level=0.5).high < bootstrap([0] * 5, range(5)).high
    over_seeds = hierarchical(np.zeros((3, 20)), range(20), share=True)
    assert (over_seeds.low, over_seeds.high, over_seeds.seeds) == (0.0, none.high, 3)


def test_wilson_is_the_published_formula():
    # solves |p - share| = z sqrt(p (1 - p) / n) for p
    for share, n in ((0.3, 10), (0.05, 200)):
        for end in wilson(share, n):
            assert abs(end - share) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / n), abs=1e-6)


def test_only_a_share_gets_wilsons_interval():
    assert paired([1] * 9, [1] * 9, range(9)).method == paired([1] * 9, [0] * 9, range(9)).method == "bootstrap"
    assert hierarchical(np.zeros((3, 9)), range(9)).high == 0.0                     # differences taken before
    assert hierarchical(np.ones((3, 9)), range(9), minus_SN=np.zeros((3, 9)), share=True).method == "bootstrap"
    assert bootstrap([0.5] * 9, range(9)).method == "bootstrap"
    assert bootstrap([0], ["a"]).low is None


# ------------------------------------------------------------------------------------------------------------- two runs
def run_of(folder, rights, change=lambda row: row):
    """predictions.arrow of a run that was right where it says, in two orders."""
    with ShardWriter(folder / "predictions.arrow", SCHEMA) as writer:
        for order in ("default", "twice"):
            for k, right in enumerate(rights):
                row = {name: None for name in SCHEMA.names} | {
                    "item": f"i{k}", "document": f"d{k // 2}", "task": "t", "column": "all", "order": order,
                    "control": "none", "prompt": f"hash{k}{order}", "answers": [f"value {k}"],
                    "prediction": f"a value {k}, say" if right else "value"}
                writer.append(change(row))
    return folder


def test_compare_joins_two_runs_and_pairs_them(tmp_path):
    a = run_of(tmp_path / "a", [1, 1, 1, 0] * 10)
    b = run_of(tmp_path / "b", [1, 0, 1, 0] * 10)
    rows = compare(a, b, "contains", resamples=500)
    assert [(row["column"], row["order"], row["control"]) for row in rows] == [
        ("all", "default", "none"), ("all", "twice", "none")]
    for row in rows:
        assert (row["a"], row["b"], row["n"], row["documents"]) == (0.75, 0.5, 40, 20)
        assert row["difference"] == 0.25 and 0 < row["low"] < 0.25 < row["high"] and row["metric"] == "contains"
    assert all(row["difference"] == 0 for row in compare(a, b, "exact"))            # nobody is exact
    assert compare(a, b, "f1")[0]["difference"] == pytest.approx(0.25 * (2 * 2 / 5 - 2 / 3))
    assert compare(b, a, "contains")[0]["difference"] == -0.25


@pytest.mark.parametrize("change, message", [
    (lambda row: row | {"item": "other"} if row["item"] == "i3" else row, "1 of 8|2 of 8.*i3, t, all, default, none"),
    (lambda row: row | {"prompt": "x"} if row["item"] == "i2" else row, "2 of 8 items.*another prompt .i2, t, all"),
    (lambda row: row | {"answers": ["x"]} if row["item"] == "i2" else row, "another answers"),
    (lambda row: row | {"column": "new"}, "8 of 8 prompts of a are not in b"),
])
def test_compare_refuses_prompts_that_differ(tmp_path, change, message):
    a, b = run_of(tmp_path / "a", [1, 0, 1, 0]), run_of(tmp_path / "b", [1, 0, 1, 0], change)
    with pytest.raises(SpecError, match=message):
        compare(a, b)
    with pytest.raises(SpecError, match="unknown metric"):
        compare(a, a, "rouge")
