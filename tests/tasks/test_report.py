"""The report says what the numbers say: which differences hold, which controls are beaten, what was left out."""

import json

import numpy as np
import pyarrow as pa
import pytest

from models import ModelConfig, build, preset, save_model
from storage.artifacts import Store
from storage.errors import ArtifactError
from storage.shards import ShardWriter
from tasks import report
from tasks.reporting.compare import claim_note
from tasks.reporting.tables import interval
from tasks.specs import StudySpec

SCHEMA = pa.schema([("item", pa.string()), ("document", pa.string()), ("task", pa.string()), ("column", pa.string()),
                    ("order", pa.string()), ("control", pa.string()), ("correct", pa.bool_()), ("uncommon", pa.bool_())])


def study(expect: str = "good", seeds=(0,)) -> StudySpec:
    return StudySpec.model_validate({
        "name": "toy", "about": "A toy.", "question": "Does it?", "estimated_minutes": 1,
        "workloads": {"pydocs": {"architectures": {"good": {"model": "jrt-mini"}, "bad": {"model": "jrt-mini"}},
                                 "seeds": seeds, "rows": {"kind": "recall"},
                                 "evaluations": [{"cloze": {"task": "pydocs"}}]}},
        "expectations": [{"workload": "pydocs", "task": "pydocs", "architecture": expect}]})


def scores(store: Store, name: str, share: float, control: float, orders=("default", "twice")) -> str:
    """A scores artifact with 200 documents answered right with probability `share`."""

    def write(folder):
        random = np.random.default_rng(int(name[-1]) + len(name))
        with ShardWriter(folder / "predictions.arrow", SCHEMA) as writer:
            for order in orders:
                for kind, right in (("none", share), ("empty", control), ("other", control)):
                    for i in range(200):
                        writer.append({"item": f"i{i:03}", "document": f"d{i:03}", "task": "pydocs", "column": "natural",
                                       "order": order, "control": kind, "correct": bool(random.random() < right),
                                       "uncommon": i % 2 == 0})
        (folder / "scores.json").write_text("[]")

    return store.produce("scores", {"name": name, "share": share, "control": control}, {}, "code", write)


def checkpoint(store: Store, name: str) -> str:
    def write(folder):
        save_model(build(ModelConfig.model_validate(preset("jrt-mini"))), folder)
        (folder / "summary.json").write_text(json.dumps(
            {"steps": 10, "tokens": 1000, "supervised": 100, "seconds": 1.0, "tokens_per_second": 1000.0}))
        (folder / "curve.jsonl").write_text("\n".join(json.dumps(
            {"step": i, "tokens": 100 * i, "loss/answer": 5 - 0.1 * i, "loss": 5.0}) for i in range(1, 4)))

    return store.produce("checkpoint", {"name": name}, {}, "code", write)


def results(store: Store, good=0.8, bad=0.3, control=0.02, seeds=(0,)) -> dict:
    names = [f"{name}/{seed}" for seed in seeds for name in ("good", "bad")]
    rows = store.produce("rows", {}, {}, "code", lambda folder: {"by_order": {"default": 10, "twice": 0}})
    return {"timings": None, "workloads": {"pydocs": {
        "rows": rows, "prompts": {}, "checkpoints": {name: checkpoint(store, name) for name in names},
        "scores": {f"{name}/pydocs": scores(store, name, good if name.startswith("good") else bad, control)
                   for name in names}}}}


def page(home, **changes) -> tuple[str, dict]:
    store = Store()
    made = report.run(study(), store, results(store, **changes))
    folder = store.path(made)
    return (folder / "report.md").read_text(), json.loads((folder / "findings.json").read_text())


def test_a_large_difference_is_significant_and_a_small_one_is_not(home):
    text, found = page(home)
    gap = next(d for d in found["differences"] if d["about"] == "architecture" and d["column"] == "natural")
    assert gap["significant"] and 0.35 < gap["value"] < 0.65 and gap["low"] > 0.3
    significant, rest = text.split("## Between architectures")[1].split("Not significant:")[:2]
    assert "pydocs / natural, default: good − bad = +0." in significant
    assert "twice − default" in text.split("Not significant:")[2]
    assert "pydocs / natural" not in rest.split("##")[0]


def test_equal_systems_show_no_difference(home):
    _, found = page(home, bad=0.8)
    assert not any(d["significant"] for d in found["differences"] if d["about"] == "architecture" and abs(d["value"]) < 0.02)


def test_uncommon_items_are_a_column_of_their_own(home):
    _, found = page(home)
    rows = {row["column"]: row for row in found["recall"] if row["architecture"] == "good" and row["order"] == "default"}
    assert rows["natural"]["n"] == 200 and rows["uncommon"]["n"] == 100


def test_an_order_that_was_never_trained_is_said(home):
    text, _ = page(home)
    assert "trained on no row in the order twice" in text


def test_tables_plots_and_csv_are_written(home):
    store = Store()
    folder = store.path(report.run(study(), store, results(store)))
    names = {path.name for path in folder.iterdir()}
    assert {"recall.png", "loss.png", "recall-against-state.png", "recall-pydocs.csv", "training.csv"} <= names
    first = (folder / "training.csv").read_text().splitlines()[1].split(",")
    assert first[:3] == ["pydocs", "good", "0"]


def test_expectations_hold_only_above_both_controls(home):
    store = Store()
    assert report.unmet(study(), store, results(store)) == []
    failures = report.unmet(study("bad"), store, results(store, bad=0.05, control=0.05))
    assert failures and "is not above the control `empty`" in failures[0]
    assert "has no score" in report.unmet(study("ghost"), store, results(store))[0]


def test_three_seeds_speak_of_architectures(home):
    store = Store()
    made = report.run(study(seeds=(0, 1, 2)), store, results(store, seeds=(0, 1, 2)))
    assert "3 training seeds" in (store.path(made) / "report.md").read_text()
    assert "about these checkpoints" in claim_note(1) and "about these checkpoints" in claim_note(2)


def test_scores_that_were_changed_are_not_reported(home):
    store = Store()
    made = results(store)
    path = store.path(made["workloads"]["pydocs"]["scores"]["good/0/pydocs"]) / "scores.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(ArtifactError, match="scores.json"):
        report.run(study(), store, made)


def test_the_planned_id_is_the_made_id(home):
    store = Store()
    made = results(store)
    assert report.plan(study(), store, made) == report.run(study(), store, made)


@pytest.mark.parametrize("value, low, high, text", [(0.5, 0.4, 0.6, "0.500 [0.40, 0.60]"), (0.5, None, None, "0.500 [–]"),
                                                   (None, None, None, "–")])
def test_intervals_read_well(value, low, high, text):
    assert interval(value, low, high) == text
