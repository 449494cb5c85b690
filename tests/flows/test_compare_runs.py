"""`reread compare`: evaluations, trainings and MLflow runs, two or more, and what it refuses."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from storage.artifacts import Store
from storage.shards import ShardWriter
from storage.tracking import Tracking

FIELDS = ("item", "document", "task", "column", "order", "control", "prompt", "prediction")
SCHEMA = pa.schema([*((name, pa.string()) for name in FIELDS), ("answers", pa.list_(pa.string()))])


def checkpoint(store: Store, rate: float, seed: int = 0, loss: float = 2.0) -> str:
    def write(folder):
        (folder / "summary.json").write_text(json.dumps({"seed": seed, "loss": loss, "steps": 10, "torch": "2"}))
    spec = {"architecture": "jrt", "seed": seed, "train": {"optimiser": {"learning_rate": rate}, "steps": 10}}
    return store.produce("checkpoint", spec, {}, "code", write)


def scores(store: Store, right: int, model: str = "", prompts: str | None = None, items: int = 40, repeated: bool = False) -> str:
    """An evaluation that answers the first `right` of its items."""
    asked = prompts or store.produce("prompts", {}, {}, "code", lambda folder: {"metric": "exact"})

    def write(folder):
        with ShardWriter(folder / "predictions.arrow", SCHEMA) as writer:
            for i in [*range(items), *([3] if repeated else [])]:
                writer.append({**dict.fromkeys(FIELDS, "x"), "item": f"i{i:02}", "document": f"d{i:02}", "control": "none",
                               "prompt": f"say {i}", "prediction": str(i if i < right else -1), "answers": [str(i)]})
        (folder / "scores.json").write_text("[]")
    spec = {"metric": "contains", "bootstrap": 100, **({} if model else {"right": right, "items": items, "repeated": repeated})}
    return store.produce("scores", spec, {"prompts": asked, **({"checkpoint": model} if model else {})}, "code", write)


def test_two_keep_the_form_that_scripts_know(reread):
    store = Store()
    a, b = scores(store, 30), scores(store, 10)
    said = reread("compare", a, b, "--json")
    assert said.code == 0, said.err
    assert list(said.json) == ["first", "second", "metric", "rows"]
    assert (said.json["first"], said.json["second"], said.json["metric"]) == (a, b, "exact"), "the task's own metric"
    [row] = said.json["rows"]
    assert list(row) == ["task", "column", "order", "control", "metric", "a", "b", "difference", "low", "high", "n", "documents"]
    assert (row["a"], row["b"], row["difference"], row["n"]) == (0.75, 0.25, 0.5, 40) and row["low"] > 0.3
    shown = reread("compare", a, b).out
    assert f"\nexact: {a} minus {b}" in shown and "+0.500" in shown and "Bonferroni" not in shown


def test_more_are_each_compared_with_the_first_and_judged_together(reread):
    store = Store()
    a, b, c = (scores(store, right) for right in (30, 10, 26))
    said = reread("compare", a, b[:10], c, "--json")
    assert said.code == 0, said.err
    assert list(said.json) == ["first", "metric", "note", "comparisons"]
    large, small = said.json["comparisons"]
    assert (large["second"], small["second"]) == (b, c)
    assert large["rows"][0]["difference"] == 0.5 and large["rows"][0]["holds"]
    assert small["rows"][0]["difference"] == pytest.approx(0.1) and small["rows"][0]["low"] > 0
    assert not small["rows"][0]["holds"], "excludes zero alone, but not when both are judged"
    assert said.json["note"].startswith("2 differences") and "1 excludes zero" in said.json["note"]
    shown = reread("compare", a, b, c).out
    assert "holds" in shown and said.json["note"] in " ".join(shown.split())


def test_trainings_show_what_differs_and_what_came_of_it(reread):
    store = Store()
    first, second, third = checkpoint(store, 0.01), checkpoint(store, 0.02, 1, 1.5), checkpoint(store, 0.04, 2, 1.25)
    a, b = scores(store, 30, first), scores(store, 10, second)
    said = reread("compare", first, second, "--json")
    assert said.code == 0, said.err
    assert said.json["settings"] == [{"name": "seed", "values": [0, 1]},
                                     {"name": "train.optimiser.learning_rate", "values": [0.01, 0.02]}]
    assert said.json["results"] == [{"name": "loss", "values": [2.0, 1.5]}, {"name": "steps", "values": [10, 10]}]
    assert [(one["first"], one["second"], one["rows"][0]["difference"]) for one in said.json["comparisons"]] == [(a, b, 0.5)]
    shown = reread("compare", first, second, third).out
    assert "train.optimiser.learning_rate" in shown and "1.25" in shown and "no prompts were asked of all" in shown
    mixed = reread("compare", a, second, "--json")
    assert mixed.code == 0 and mixed.json["second"] == b, "a checkpoint beside scores stands for its own"


def test_a_run_in_mlflow_stands_for_what_it_made(reread, home):
    store = Store()
    a, b = scores(store, 30), scores(store, 10)
    tracking = Tracking()
    experiment = tracking.experiment("toy")
    runs = [tracking.start(experiment, f"evaluate {name}", {"artifact": made}) for name, made in (("a", a), ("b", b))]
    stray = tracking.start(experiment, "by hand")
    tracking.close()
    said = reread("compare", runs[0], runs[1][:12], "--json")
    assert said.code == 0 and (said.json["first"], said.json["second"]) == (a, b), said.err
    for arguments, words in (((runs[0], stray), "no tag `artifact`"), ((a, "0000000000000000dead"), "no run 0000000000000000dead")):
        said = reread("compare", *arguments)
        assert said.code != 0 and words in said.err and len(said.err.strip().splitlines()) == 1, said.err


def test_mistakes_are_one_sentence(reread):
    store = Store()
    a, other = scores(store, 30), scores(store, 30, items=20)
    twice, alone = scores(store, 30, repeated=True), checkpoint(store, 0.5)
    prompts = store.list("prompts")[0].id
    for arguments, words in (((a,), "two or more"), ((a, a[:12]), "named twice"), ((a, prompts), "is a prompts artifact"),
                             ((a, other), "were not asked the same"), ((a, "scores-zz"), "no artifact scores-zz"),
                             ((a, alone), "has no scores of the prompts"), ((a, "beef"), "there is no tracking store"),
                             ((a, twice), "answers i03, x, x, x, none (item, task, column, order, control) more than once")):
        said = reread("compare", *arguments)
        assert said.code in (1, 2) and words in said.err and len(said.err.strip().splitlines()) == 1, said.err
    assert not (store.folder / "mlflow.db").exists(), "looking makes no store"


def test_only_differences_have_signs():
    from flows.commands.output import interval

    row = {"low": 0.25, "high": 0.5}
    assert (interval(row), interval(row, signed=True)) == ("0.250 to 0.500", "+0.250 to +0.500")
    assert interval({"low": None, "high": None}) == "–"
