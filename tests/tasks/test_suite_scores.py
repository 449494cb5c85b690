"""The suite's one number: every column counts the same, documents are resampled, other prompts are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage.errors import SpecError
from storage.shards import RowTable, ShardWriter
from tasks import suite_scores
from tasks.suite_scores import Item, Part, above_controls, difference, mean

SCHEMA = pa.schema([*((name, pa.string()) for name in ("item", "document", "task", "column", "order", "control", "prompt")),
                    ("correct", pa.float64())])


def part(folder: Path, columns: dict[str, list[float]], control: list[float] | None = None, prompt: str = "p",
         task: str = "t", base: int = 0) -> Part:
    """Answers: column -> values, one document each, and those of the control `other` to the first column."""
    folder.mkdir(parents=True)
    with ShardWriter(folder / "predictions.arrow", SCHEMA) as writer:
        def write(column, values, order="default", asked="none"):
            for k, value in enumerate(values):
                writer.append({"item": f"{column}/{k}", "document": f"d{base + k}", "task": task, "column": column, "order": order,
                               "control": asked, "prompt": f"{prompt}{column}{k}", "correct": value})

        for column, values in columns.items():
            write(column, values)
            write(column, [0.0] * len(values), order="twice")
        if control is not None:
            write(next(iter(columns)), control, asked="other")
    return Part(folder, "default")


def test_every_column_counts_the_same_whatever_its_number_of_items(tmp_path):
    found = mean({"a": part(tmp_path / "a", {"x": [1, 1, 1, 0] * 5, "y": [0.5]})})
    assert found.value == pytest.approx((0.75 + 0.5) / 2) and found.n == 21 and found.documents == 20
    two = mean({"a": Part(tmp_path / "a", "default"), "b": part(tmp_path / "b", {"z": [1.0, 0.0]})})
    assert two.value == pytest.approx((0.75 + 0.5 + 0.5) / 3)


def test_all_wrong_has_an_interval(tmp_path):
    found = mean({"a": part(tmp_path / "a", {"x": [0.0] * 20, "y": [0.0] * 3})})
    assert (found.value, found.low) == (0.0, 0.0) and 0.1 < found.high < 0.2 and found.method == "wilson"


def test_a_difference_is_paired(tmp_path):
    """Right on other documents: unpaired intervals would overlap; paired, a constant gain has no width at all."""
    low = {"a": part(tmp_path / "low", {"x": [0.1, 0.9, 0.3, 0.7] * 5})}
    high = {"a": part(tmp_path / "high", {"x": [0.2, 1.0, 0.4, 0.8] * 5})}
    gain = difference(high, low)
    assert (gain.value, gain.low, gain.high) == pytest.approx((0.1, 0.1, 0.1))
    loss = difference(low, high)
    assert loss.high == pytest.approx(-0.1)
    same = difference(high, high)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


def test_intervals_stay_within_what_there_is(tmp_path):
    """Columns of other lengths: resampled documents that favour one would lead past all right and all wrong."""
    good = {"a": part(tmp_path / "good", {"x": [1.0] * 40, "y": [1.0] * 7 + [0.99]})}
    bad = {"a": part(tmp_path / "bad", {"x": [0.0] * 40, "y": [0.0] * 8})}
    assert mean(good).high == 1.0 and difference(bad, good).low == -1.0 and difference(good, bad).high == 1.0
    assert 0.99 < mean(good).low < mean(good).value < 1.0          # one answer of 48 is short of one hundredth


def test_a_column_that_no_resample_has_to_have_keeps_its_mean(tmp_path):
    """One document of 41: it is in two of three resamples. Neither nothing nor everything stands for it in the third."""
    lone = {"a": part(tmp_path / "a", {"x": [1.0, 1.0, 1.0, 0.0] * 10}), "b": part(tmp_path / "b", {"y": [0.5]}, base=100)}
    found, alone = mean(lone), mean({"a": lone["a"]})
    assert (found.low, found.high) == pytest.approx(((alone.low + 0.5) / 2, (alone.high + 0.5) / 2), abs=0.02)


def test_every_task_keeps_its_number_of_documents():
    drawn_RD = suite_scores._drawn_RD(["one", "two", "one", "one"])
    assert (drawn_RD[:, [0, 2, 3]].sum(1) == 3).all() and (drawn_RD[:, 1] == 1).all()
    assert drawn_RD[:, 0].std() > 0.5


def test_nothing_to_resample(tmp_path):
    one = mean({"a": part(tmp_path / "a", {"x": [1.0], "y": [0.0]})})
    assert (one.value, one.low, one.high, one.documents) == (0.5, None, None, 1)
    none = difference({"a": part(tmp_path / "b", {})}, {"a": part(tmp_path / "c", {})})
    assert none.value is None and none.reason == "no items"


def test_intervals_hold_what_they_promise(monkeypatch):
    """Columns of 60 and 25 documents, ten of them shared: of 400 samples the 95 % interval misses the truth about 20 times."""
    monkeypatch.setattr(suite_scores, "RESAMPLES", 400)
    draw, truth, missed, widths = np.random.default_rng(5), (0.7, 0.3), 0, []
    for _ in range(400):
        items = {("a", column, f"{k}", 0): Item(float(draw.random() < share), "p", ("t", f"d{k}"))
                 for column, share, ks in (("x", truth[0], range(60)), ("y", truth[1], range(50, 75))) for k in ks}
        found = suite_scores._interval(items, [item.value for item in items.values()])
        missed += not found.low <= sum(truth) / 2 <= found.high
        widths.append(found.high - found.low)
    assert 10 <= missed <= 36
    exact = 2 * 1.96 * sum(share * (1 - share) / n for share, n in zip(truth, (60, 25))) ** 0.5 / 2
    assert np.mean(widths) == pytest.approx(exact, rel=0.06)


def test_an_item_that_was_asked_twice_counts_twice(tmp_path):
    def twice(name, values):
        made = part(tmp_path / name, {"x": values})
        return Part(_renamed(made.folder, tmp_path / f"{name} twice"), "default")

    first, second = {"a": twice("one", [1.0, 0.0, 1.0, 0.0])}, {"a": twice("two", [0.0, 1.0, 1.0, 0.0])}
    assert mean(first).n == 4 and mean(first).value == 0.5 and difference(first, second).value == 0.0


def _renamed(folder: Path, to: Path) -> Path:
    """The same answers, every second one under the name of the one before it."""
    to.mkdir()
    with ShardWriter(to / "predictions.arrow", SCHEMA) as writer:
        for row in RowTable(folder / "predictions.arrow").table.to_pylist():
            column, number = row["item"].split("/")
            writer.append({**row, "item": f"{column}/{int(number) // 2}"})
    return to


def test_other_prompts_are_refused(tmp_path):
    one = {"a": part(tmp_path / "one", {"x": [1.0, 0.0]})}
    for name, other in (("prompts", {"columns": {"x": [1.0, 0.0]}, "prompt": "q"}), ("items", {"columns": {"x": [1.0]}})):
        with pytest.raises(SpecError, match="not asked the same"):
            difference(one, {"a": part(tmp_path / name, **other)})
    with pytest.raises(SpecError, match="not asked the same"):
        difference(one, {"b": Part(tmp_path / "one", "default")})


def test_above_controls_is_about_the_items_that_have_them(tmp_path):
    found = above_controls({"a": part(tmp_path / "a", {"x": [1.0] * 10, "y": [0.0] * 10}, control=[0.0, 0.5] * 5)})
    assert found.value == pytest.approx(0.75) and 0.5 < found.low < found.high < 1.0
    assert above_controls({"a": part(tmp_path / "b", {"x": [1.0]})}) is None
