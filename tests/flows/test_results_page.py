"""The page of a finished run, made from artifacts on disk."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.planning.plan import Plan, Stage
from flows.running.work import Outcome
from flows.showing import results_page
from storage.artifacts import Store
from storage.tracking.places import run_link
from tests.flows.tiny_stages import TinySpec

SCORE = {"task": "fda", "column": "fda", "order": "default", "strategy": "left_pad", "n": 300, "value": 0.4567,
         "low": 0.4, "high": 0.51, "control": "none"}


def made(store: Store, kind: str, files: dict[str, object]) -> str:
    def build(folder: Path) -> dict:
        for name, value in files.items():
            (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))
        return {"documents": 12345, "rejected": {"short": 1}}

    return store.produce(kind, {}, {}, "code", build)


def page(home, kind: str, files: dict[str, object], tokens: int = 0, links: dict | None = None) -> str:
    store = Store()
    artifact = made(store, kind, files)
    stage = Stage("k", kind, f"{kind} of a model", TinySpec(name="k"), {}, artifact, False, tokens=tokens)
    plan = Plan("quick", {"k": stage, "there": Stage("there", "rows", "rows", TinySpec(name="r"), {}, "rows-1", True)}, stage)
    return results_page.page(plan, store, {"k": Outcome(artifact, 100.0, 150.0)}, links or {})


def test_an_evaluation_shows_recall_with_intervals_and_controls(home):
    text = page(home, "evaluate", {"scores.json": [SCORE, {**SCORE, "control": "shuffled", "value": 0.01}]})
    assert "| fda | fda | default | 300 | 0.457 | 0.400 to 0.510 | shuffled 0.010 |" in text


def test_several_evaluations_of_a_model_are_all_shown(home):
    store = Store()
    files = {name: made(store, f"evaluate-{name}", {"scores.json": [{**SCORE, "column": name}]}) for name in ("one", "two")}
    stages = {name: Stage(name, "evaluate", f"evaluate jrt on {name}", TinySpec(name=name), {}, artifact, False)
              for name, artifact in files.items()}
    text = results_page.page(Plan("nightly", stages, stages["two"]), store, {}, {name: f"http://{name}" for name in files})
    for name in files:
        assert f"# evaluate jrt on {name}\n" in text and f"| fda | {name} |" in text
        assert f"[evaluate jrt on {name}](http://{name})" in text


def test_a_training_shows_loss_bits_and_speed(home):
    text = page(home, "pretrain", {"summary.json": {"loss": 2.345678, "validation_bits_per_byte": 1.5, "tokens": 2_000_000,
                                                    "tokens_per_second": 12345.6, "parameters": 419840}}, tokens=2_000_000)
    assert "| bits per byte (validation) | 1.500 |" in text and "| loss (training) | 2.346 |" in text
    assert "| tokens/s | 12,346 |" in text and "| parameters | 419,840 |" in text
    assert "| pretrain of a model | 50.0 s | 40,000 |" in text, "tokens/s of the stage as a whole"


def test_a_benchmark_and_a_reading_show_their_tables(home):
    timing = {"measure": "forward", "op": "taylor", "backend": "chunked", "n": 4096, "batch": None, "ms": 12.3456,
              "ratio_to_sdpa": None, "ratio_to_peer": 0.5, "peak_bytes": 7}
    assert "| forward | taylor | chunked | 4,096 | 12.346 | 0.500 |" in page(home, "bench", {"timings.json": [timing]})
    reading = {"slice": "all", "kind": "tokens", "n": 10, "perplexity": 20.5}
    assert "| all | tokens | 10 | 20.500 |" in page(home, "perplexity", {"perplexity.json": [reading]})


def test_a_study_shows_its_report_without_images(home):
    text = page(home, "report", {"report.md": "# Study quick\n\n![curve](curve.png)\n\n| a |\n"})
    assert text.startswith("# Study quick") and "curve.png" not in text and "## Stages" in text


def test_anything_else_shows_what_its_manifest_counts(home):
    text = page(home, "rows", {})
    assert "| documents | 12,345 |" in text and "rejected" not in text


def test_links_lead_to_the_run_and_to_all_runs(home):
    runs = SimpleNamespace(experiment="7", of={"k": "abc"}, parent=None, page="/#/experiments/7/runs?x")
    links = results_page.links(runs, "http://here")
    text = page(home, "rows", {}, links=links)
    place = f"http://here/{run_link('7', 'abc')}"
    assert f"[rows of a model]({place})" in text and f"[run]({place})" in text
    assert "[all runs of quick](http://here/#/experiments/7/runs?x)" in text
    runs.parent = "p"
    assert results_page.links(runs, "http://here")[""] == f"http://here/{run_link('7', 'p')}"


def test_stages_that_were_there_are_counted_and_long_tables_cut(home):
    assert "1 more was there already." in page(home, "rows", {})
    rows = [{**SCORE, "column": f"c{number}"} for number in range(results_page.ROWS + 5)]
    text = page(home, "evaluate", {"scores.json": rows})
    assert "5 more rows: see MLflow." in text and "c64" not in text


def test_stages_stand_in_the_order_in_which_they_began_and_an_instant_has_no_speed(home):
    stages = {key: Stage(key, "rows", f"make {key}", TinySpec(name=key), {}, f"rows-{key}", False, tokens=100) for key in "abc"}
    outcomes = {"a": Outcome("rows-a", 30.0, 40.0), "b": Outcome("rows-b", 10.0, 10.0), "c": Outcome("rows-c", 20.0, 25.0)}
    text = results_page.stages(Plan("quick", stages, stages["a"]), outcomes, {})
    assert text.index("make b") < text.index("make c") < text.index("make a")
    assert "| make b | 0.0 s | – |" in text and "| make c | 5.0 s | 20.000 |" in text


def test_a_score_without_an_interval_has_a_dash(home):
    """One document alone cannot be resampled."""
    assert "| 300 | 0.457 | – |" in page(home, "evaluate", {"scores.json": [{**SCORE, "low": None, "high": None}]})


@pytest.mark.parametrize(("kind", "published"), [("report", 1), ("rows", 0)])
def test_a_study_leaves_its_report_in_mlflow_too(home, monkeypatch, kind, published):
    import prefect
    from prefect import artifacts

    shown, files = [], []
    monkeypatch.setattr(prefect, "get_run_logger", lambda: logging.getLogger("page"))
    for name in ("create_markdown_artifact", "create_link_artifact"):
        monkeypatch.setattr(artifacts, name, lambda *what, **more: shown.append((*what, more["key"])))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@mlflow:5000")
    store = Store()
    goal = Stage("k", kind, "the goal", TinySpec(name="k"), {}, made(store, kind, {"report.md": "# Study"}), False)
    runs = SimpleNamespace(experiment="7", of={}, parent=None, page="/#/experiments/7", publish=files.append)
    results_page.publish(Plan("quick", {"k": goal}, goal), store, {}, runs)
    key = "study-quick" if kind == "report" else "rows-result"
    assert len(files) == published and [one[-1] for one in shown] == [key, f"{key}-mlflow"]
    assert "http://mlflow:5000/#/experiments/7" in str(shown) and "secret" not in str(shown)


@pytest.mark.parametrize(("name", "key"), [("study-Quick_2 x", "study-quick-2-x"), ("évaluer", "valuer"), ("a--b", "a-b")])
def test_keys_are_such_that_prefect_accepts_them(name, key):
    assert results_page.key_of(name) == key


def test_a_bar_in_a_text_does_not_break_the_table():
    assert results_page.cell("a|b\nc") == "a\\|b c" and results_page.cell(None) == "–" and results_page.cell(True) == "True"
