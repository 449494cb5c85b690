"""Comparisons pair the same items, whatever each system was asked besides, and recall means above every control."""

import numpy as np
import pytest

from tasks.reporting.compare import between_architectures, between_orders, recalls
from tasks.reporting.gather import Answers, Gathered, Panel

PANEL = Panel("pydocs", "pydocs", "natural")


def answers(right: dict[str, float]) -> Answers:
    """Item -> 1 or 0; every item is a document of its own."""
    items = sorted(right)
    return Answers(np.array(items), np.array([f"document of {item}" for item in items]),
                   np.array([right[item] for item in items], float))


def drawn(share: float, seed: int = 0, items: int = 60) -> dict[str, float]:
    random = np.random.default_rng(seed)
    return {f"i{k:02}": float(random.random() < share) for k in range(items)}


def gathered(**found: dict[str, float]) -> Gathered:
    """Keys read architecture__order__control."""
    return Gathered(answers={PANEL: {(*key.split("__")[:1], 0, *key.split("__")[1:]): answers(right)
                                     for key, right in found.items()}})


def test_systems_are_compared_item_by_item_on_what_both_answered():
    one = drawn(0.5)
    other = {item: right for item, right in one.items() if item not in ("i07", "i31")} | {"i990": 1.0, "a": 0.0}
    found = gathered(good__default__none=one, bad__default__none=other)
    [difference] = between_architectures(found, PANEL, [("good", "bad")], "default", 200, 0)
    assert (difference.gap.value, difference.gap.low, difference.gap.high, difference.gap.n) == (0, 0, 0, 58)
    assert not difference.significant


def test_orders_are_compared_item_by_item():
    one = drawn(0.5)
    better = one | {item: 1.0 for item in ("i00", "i01", "i02", "i03", "i04", "i05")}
    found = gathered(good__default__none=one, good__twice__none=better)
    [difference] = between_orders(found, PANEL, "good", 200, 0)
    gained = sum(better.values()) - sum(one.values())
    assert gained > 0 and difference.gap.value == pytest.approx(gained / 60) and difference.gap.low >= 0
    assert (difference.first, difference.second) == ("twice", "default")


@pytest.mark.parametrize("empty, other, is_recall", [(0.0, 0.0, True), (0.8, 0.0, False), (0.0, 0.8, False)])
def test_recall_is_above_both_controls(empty, other, is_recall):
    found = gathered(good__default__none=drawn(0.8), good__default__empty=drawn(empty, 1),
                     good__default__other=drawn(other, 2))
    [row] = recalls(found, PANEL, ["good"], 200, 0)
    assert row.is_recall == is_recall and set(row.controls) == set(row.above) == {"empty", "other"}


def test_without_controls_nothing_is_called_recall():
    [row] = recalls(gathered(good__default__none=drawn(0.8)), PANEL, ["good"], 200, 0)
    assert not row.is_recall and row.above == {}
