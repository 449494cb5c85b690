"""Published figures are read as they are printed, found by id, and recompute; a changed number does not."""

import csv
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from storage.errors import ArtifactError, SpecError
from tasks.claims import check, formulas
from tasks.claims.registry import COLUMNS, DATA, Registry, claim_files, half_unit, load

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def copy(tmp_path) -> Path:
    """The data folder, free to damage."""
    return shutil.copytree(DATA, tmp_path / "data")


def change(folder: Path, claim_id: str, value: str) -> None:
    """Print another value for a claim."""
    for path in claim_files(folder):
        rows = list(csv.reader(path.open(newline="", encoding="utf-8")))
        for row in rows[1:]:
            if row[COLUMNS.index("claim_id")] == claim_id:
                row[COLUMNS.index("value")] = value
                with path.open("w", newline="", encoding="utf-8") as file:
                    csv.writer(file).writerows(rows)
                return
    raise AssertionError(claim_id)


def wrong(folder: Path = DATA) -> set[str]:
    return {one.id for one in check.checks(folder=folder) if not one.right}


def test_everything_recomputes():
    found = check.checks()
    assert wrong() == set()
    assert {one.kind for one in found} == {"difference", "ratio", "count", "percent", "mean", "ordering", "conflict"}
    assert sum(one.kind != "conflict" for one in found) == 85


@pytest.mark.parametrize("claim_id, value, found", [
    ("jrt_t2_jrt_rnn_360m_30b_avg", "43.9", "d_jrt_gain_360m_30b"),
    ("jrt_t1_mamba_2p8b_300b_jrt_triviaqa", "66.9", "o_jrt_triviaqa_drop"),
    ("lavo_t2_lavo_speed16384", "20.30", "c_lavo_speed16k"),
    ("jrtc_layers_conv", "17", "c_jrt_layers"),
    ("cab_lstf_abc_ecl_mse", "0.498", "c_lavo_weather_ecl"),
])
def test_a_changed_number_is_named_by_what_no_longer_follows(copy, claim_id, value, found):
    change(copy, claim_id, value)
    assert found in wrong(copy)


def test_every_number_that_a_formula_uses_is_held_by_it():
    """Far up or far down, something must notice: an ordering holds one side alone."""
    registry = load()
    used = sorted({name for one in check.checks() for side in one.formula.split("?=") for name in formulas.names(side)})

    def noticed(claim_id: str, factor: float) -> bool:
        moved = Registry([claim if claim.claim_id != claim_id else replace(claim, value=claim.value * factor)
                          for claim in registry.claims])
        return not all(one.right for one in check.checks(moved))

    assert [name for name in used[::12] if not (noticed(name, 1000) or noticed(name, 0.001))] == []


def test_rounding_of_what_is_printed_explains_a_last_digit_and_no_more(copy):
    """107.8 / 9.0 is 11.98; the paper says 11.9, which 9.05 would give."""
    by_id = {one.id: one for one in check.checks()}
    assert by_id["d_jrt_speed_prompt_paper"].verdict == "within rounding"
    assert by_id["d_jrt_speed_rnn"].verdict == "equal"
    change(copy, "jrt_t5_jrt_prompt_n32768_b16", "9.00")           # printed with one digit more
    assert "d_jrt_speed_prompt_paper" in wrong(copy)


def test_every_formula_parses_and_names_only_claims():
    registry = load()
    for one in check.checks():
        for side in one.formula.split("?="):
            assert formulas.names(side) or side.strip().isdigit()
            assert all(name in registry for name in formulas.names(side))


def test_every_pair_of_a_conflict_has_its_verdict_and_none_is_left_over():
    kept = {row["id"] for row in csv.DictReader((DATA / "verdicts.csv").open())}
    assert kept == {one.id for one in check.checks() if one.kind == "conflict"}
    assert sum(1 for _ in (DATA / "verdicts.csv").open()) - 1 == sum(one.kind == "conflict" for one in check.checks())


@pytest.mark.parametrize("formula, value", [
    ("2 ** 3 - -1", 9), ("mean(1, 2, 6)", 3), ("max(1, 2) - min(1, 2)", 1), ("abs(1 - 4) / 2", 1.5), ("1 < 2 < 3", 1),
    ("1 < 3 < 2", 0), ("1 < 2 and 2 < 1", 0), ("a + a * b", 8)])
def test_formulas(formula, value):
    assert formulas.value(formula, {"a": 2, "b": 3}) == value


@pytest.mark.parametrize("formula, words", [
    ("__import__('os')", "__import__('os')"), ("a.b", "a.b"), ("a[0]", "a[0]"), ("[1]", "[1]"), ("'x' + 'y'", "'x'"),
    ("lambda: 1", "lambda"), ("(a := 1)", "a := 1"), ("a or b", "a or b"), ("a % b", "holds 'a % b'; it may hold"), ("True", "True"),
    ("max(*a)", "*a"), ("mean()", "mean()"), ("open('x')", "open"), ("a +", "cannot be read"), ("", "cannot be read"),
    ("max", "'max', which is no claim"), ("9 ** 9 ** 9", "beyond 64"), ("1 / 0", "divides by zero"),
    ("(0 - 8) ** 0.5", "has no value"), ("a + ghost", "'ghost', which is no claim")])
def test_what_is_no_arithmetic_is_refused_by_name(formula, words):
    with pytest.raises(SpecError) as error:
        formulas.value(formula, {"a": 1, "b": 2})
    assert words in str(error.value)


def test_a_formula_over_an_unknown_id_is_named(copy):
    text = (copy / "derived.csv").read_text()
    (copy / "derived.csv").write_text(text.replace("jrt_t2_based_360m_30b_avg", "jrt_t2_baste_360m_30b_avg", 1))
    with pytest.raises(SpecError, match="no claim 'jrt_t2_baste_360m_30b_avg'; did you mean jrt_t2_based_360m_30b_avg"):
        check.checks(folder=copy)


def test_claims_are_found_by_id_and_by_field():
    registry = load()
    one = registry.get("jrt_t4_360m_30b_read_2x_fda512")
    assert (one.value, one.printed, one.system, one.higher_is_better) == (82.0, "82.0", "JRT-RNN", True)
    assert registry.get("jrt_txt_mask_rate").higher_is_better is None
    found = registry.find(system="mamba", task="squadv2 variant")
    assert len(found) == 4 and {claim.paper for claim in found} == {"JRT"}
    assert registry.find(system="mamba", metric="contains_accuracy", task="FDA")
    assert [claim.claim_id for claim in registry.matching("CEPE decoder-only fda")] == []
    assert {claim.system for claim in registry.matching("cepe")} == {"CEPE"}
    with pytest.raises(SpecError, match="no claim 'jrt_t4_360m_30b_read_2x_fda51'; did you mean jrt_t4_360m_30b_read_2x_fda512"):
        registry.get("jrt_t4_360m_30b_read_2x_fda51")


@pytest.mark.parametrize("printed, half", [("42.9", 0.05), ("99", 0.5), ("0.0005", 0.00005), ("1.00", 0.005)])
def test_a_printed_value_stands_for_half_a_unit_of_its_last_digit(printed, half):
    assert half_unit(printed) == pytest.approx(half, rel=1e-12)


def test_settings_and_counts_are_exact():
    registry = load()
    assert registry.get("jrt_txt_train_length").rounding == 0
    assert registry.get("jrt_t2_based_360m_30b_avg").rounding == pytest.approx(0.05)


@pytest.mark.parametrize("old, new, words", [
    (",54.3,", ",5x4.3,", ["jrt_table2.csv, line 20", "'5x4.3' is no number"]),
    ("jrt_t2_jrt_rnn_1p3b_50b_triviaqa", "jrt_t2_based_1p3b_50b_triviaqa", ["jrt_table2.csv, line 21", "stands in", "line 20"]),
    ("claim_id", "id", ["jrt_table2.csv", "columns"]),
    (",54.3,", ",", ["jrt_table2.csv, line 20", "cells"]),
    (",true,full document,54.3,", ",yes,full document,54.3,", ["jrt_table2.csv, line 20", "'yes'"]),
])
def test_a_damaged_file_is_named_with_its_line(copy, old, new, words):
    path = copy / "jrt_table2.csv"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ArtifactError) as error:
        load(copy)
    for word in words:
        assert word in str(error.value)


def test_what_is_only_quoted_is_listed_as_such():
    listed = {one.id: one for one in check.listed()}
    assert listed["f_jrt_depth"].standing == listed["f_jrt_based_upper"].standing == "quoted"
    assert all(one.standing == "quoted" for name, one in listed.items() if "cepe" in name or "_nn_" in name)
    assert sum("cepe" in name for name in listed) == 4
    formula_ids = {row["formula_id"] for row in csv.DictReader((DATA / "formulas.csv").open())}
    entries = {row["entry_id"] for row in csv.DictReader((DATA / "non_numeric.csv").open())}
    assert formula_ids | entries <= set(listed)
    words = {row["id"] for name in ("conflicts", "conflicts_code") for row in csv.DictReader((DATA / f"{name}.csv").open())
             if row["how_to_recompute"].startswith("not computable")}
    assert {name for name, one in listed.items() if one.standing == "not computable"} == words


def test_what_is_called_implemented_is_there():
    places = [one.why for one in check.listed() if one.standing == "implemented"]
    assert places and all((ROOT / place).exists() for place in places)


def test_the_benchmark_quotes_the_same_figures():
    """tasks/benchmarks/published.csv adds lengths and batches as numbers; its values are these."""
    registry = load()
    quoted = list(csv.DictReader((ROOT / "tasks/benchmarks/published.csv").open()))
    assert quoted and [row["claim_id"] for row in quoted if registry.get(row["claim_id"]).value != float(row["value"])] == []


def test_the_data_are_the_reference_files(shared):
    for path in sorted((shared / "claims").glob("*.csv")):
        assert (DATA / path.name).read_bytes() == path.read_bytes(), path.name
