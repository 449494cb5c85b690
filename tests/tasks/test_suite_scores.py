"""The suite's one number: every column counts the same, documents are resampled, other prompts are refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from storage.errors import SpecError
from storage.shards import RowTable, ShardWriter
from tasks.suite_scores import Part, above_controls, difference, mean

SCHEMA = pa.schema([*((name, pa.string()) for name in ("item", "document", "task", "column", "order", "control", "prompt")),
                    ("correct", pa.float64())])


def part(folder: Path, columns: dict[str, list[float]], control: list[float] | None = None, prompt: str = "p") -> Part:
    """Answers: column -> values, one document each, and those of the control `other` to the first column."""
    folder.mkdir(parents=True)
    with ShardWriter(folder / "predictions.arrow", SCHEMA) as writer:
        def write(column, values, order="default", asked="none"):
            for k, value in enumerate(values):
                writer.append({"item": f"{column}/{k}", "document": f"d{k}", "task": "t", "column": column, "order": order,
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
    assert 0.7 < mean(good).low < mean(good).value < 1.0


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
