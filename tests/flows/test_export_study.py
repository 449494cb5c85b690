"""`reread export STUDY`: tidy CSV, LaTeX and HTML of a finished study; what is refused; written whole or not at all."""

from __future__ import annotations

import csv
import json

import pytest

from flows import studies
from flows.commands.export_study import results_of
from flows.planning.builder import plan
from storage.artifacts import Store
from tasks import report
from tests.tasks.test_report import results, study
from tests.tasks.test_report_language import made as language


@pytest.fixture
def toy(home, tmp_path, monkeypatch):
    """The report of a small study of two architectures and three seeds."""
    monkeypatch.chdir(tmp_path)
    store = Store()
    return store, report.run(study(seeds=(0, 1, 2)), store, results(store, seeds=(0, 1, 2)))


def rows(path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_is_tidy_and_says_where_it_comes_from(reread, toy, tmp_path):
    store, made = toy
    said = reread("export", made[:-4], "--format", "csv", "--json")
    assert said.code == 0, said.err
    folder = tmp_path / "toy-csv"
    assert said.json["folder"] == str(folder) and said.json["report"] == made
    found = {row["architecture"]: row for row in rows(folder / "recall.csv")
             if (row["column"], row["order"]) == ("natural", "default")}
    recall = {one["architecture"]: one for one in json.loads((store.path(made) / "findings.json").read_text())["recall"]
              if (one["column"], one["order"]) == ("natural", "default")}
    for name in ("good", "bad"):
        assert [float(found[name][field]) for field in ("value", "low", "high", "n", "seeds")] == [
            recall[name][field] for field in ("value", "low", "high", "n", "seeds")]
        assert float(found[name]["above_other_low"]) == recall[name]["above"]["other"]["low"]
    training = rows(folder / "training.csv")
    assert [(row["architecture"], row["seed"]) for row in training[:2]] == [("good", "0"), ("bad", "0")] and len(training) == 6
    manifest = store.manifest(made)
    assert {row["artifact"] for row in training} == {one for role, one in manifest.inputs.items() if "/checkpoints/" in role}
    assert len(rows(folder / "curves.csv")) == 18 and {row["holds"] for row in rows(folder / "differences.csv")} == {"true", "false"}
    facts = json.loads((folder / "metadata.json").read_text())
    assert facts["artifacts"] == manifest.inputs and facts["report"] == made and facts["study"] == "toy"
    assert set(facts["files"]) == {path.name for path in folder.glob("*.csv")}
    assert made in (folder / "README.md").read_text() and "3 training seeds" in (folder / "README.md").read_text()


def test_what_was_read_and_timed_is_there_by_checkpoint(reread, home, tmp_path):
    from tasks.report import run

    one, store, artifacts = language(seeds=(0, 1))
    made = run(one, store, artifacts)
    said = reread("export", made, str(tmp_path / "out"), "--format", "csv")
    assert said.code == 0, said.err
    for name, kind in (("perplexity", "perplexities"), ("extrapolation", "extrapolations"), ("deploy", "deploys")):
        found = rows(tmp_path / "out" / f"{name}.csv")
        inputs = {made for role, made in store.manifest(made).inputs.items() if f"/{kind}/" in role}
        assert {row["artifact"] for row in found} == inputs and {row["seed"] for row in found} == {"0", "1"}, name


def test_roles_come_back_as_they_went_in(home):
    store = Store()
    given = results(store)
    flat = report.flatten(given)
    made = report.run(study(), store, given)
    assert store.manifest(made).inputs == flat and report.flatten(results_of(store.manifest(made))) == flat


def test_latex_and_html(reread, toy, tmp_path):
    store, made = toy
    said = reread("export", made, "--format", "latex")
    assert said.code == 0, said.err
    folder = tmp_path / "toy-latex"
    table = (folder / "recall-pydocs.tex").read_text()
    assert r"\toprule" in table and made in table and "3 training seeds" in table and "% pydocs/checkpoints/good/0: " in table
    document = (folder / "all.tex").read_text()
    assert all(rf"\input{{{path.stem}}}" in document for path in folder.glob("*.tex") if path.stem != "all")
    said = reread("export", made, "paper", "--format", "html")
    assert said.code == 0, said.err
    page = (tmp_path / "paper" / "index.html").read_text()
    assert "data:image/png;base64," in page and "<table>" in page and 'src="recall.png"' not in page


def test_only_an_export_of_ours_is_replaced_and_only_if_told(reread, toy, tmp_path):
    _, made = toy
    assert reread("export", made, "out", "--format", "html").code == 0
    said = reread("export", made, "out", "--format", "csv")
    assert said.code == 2 and "--force to replace the export in it" in said.err and (tmp_path / "out" / "index.html").exists()
    assert reread("export", made, "out", "--format", "csv", "--force").code == 0
    assert (tmp_path / "out" / "recall.csv").exists() and not (tmp_path / "out" / "index.html").exists()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "thesis.tex").write_text("years")
    said = reread("export", made, "own", "--format", "latex", "--force")
    assert said.code == 2 and "no metadata.json" in said.err and (tmp_path / "own" / "thesis.tex").read_text() == "years"


@pytest.mark.parametrize("text", ['{"title": "a data set of somebody"}', "[]", "no JSON"])
def test_another_folder_with_metadata_is_not_replaced(reread, toy, tmp_path, text):
    _, made = toy
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "metadata.json").write_text(text)
    said = reread("export", made, "own", "--format", "csv", "--force")
    assert said.code == 2 and "is none of an export" in said.err and len(said.err.strip().splitlines()) == 1, said.err
    assert (tmp_path / "own" / "metadata.json").read_text() == text


def test_a_failure_in_the_middle_leaves_nothing(reread, toy, tmp_path, monkeypatch):
    _, made = toy
    monkeypatch.setattr("tasks.reporting.tidy.tidy", lambda *given: {"recall": [{"a": 1}], "broken": 3})
    assert reread("export", made, "out", "--format", "csv").code == 1
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


def test_a_study_is_known_by_its_name(reread, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ("--set", "workloads.disjoint.rows.batches=3")
    said = reread("export", "smoke", "--format", "csv", *arguments)
    assert said.code == 2 and "stages are to do" in said.err and len(said.err.strip().splitlines()) == 1, said.err
    assert "finish it with: reread study run smoke --set workloads.disjoint.rows.batches=3" in said.err

    store, chosen = Store(), studies.load("smoke", arguments[1:])
    planned = plan(chosen, store)

    def write(folder):
        (folder / "report.md").write_text("# Smoke\n\n## Tables\n")
    assert store.produce("report", chosen.model_dump(mode="json"), report.flatten(planned.results),
                         _code(), write) == planned.goal.artifact
    said = reread("export", "smoke", "--format", "html", *arguments, "--json")
    assert said.code == 0 and said.json["report"] == planned.goal.artifact, said.err
    assert (tmp_path / "smoke-html" / "index.html").is_file()
    said = reread("export", "smoke", "--format", "html")
    assert said.code == 2 and f"reread export {planned.goal.artifact}" in said.err


def _code() -> str:
    from storage.identity import code_hash

    return code_hash(report.SOURCES)


def test_mistakes_are_one_sentence(reread, toy, tmp_path):
    store, made = toy
    [checkpoint, *_] = [one.id for one in store.list("checkpoint")]
    for arguments, words in (((made,), "say --format csv"), ((checkpoint, "out", "--format", "csv"), "is a checkpoint artifact"),
                             (("nothing", "--format", "csv"), "neither a study"), ((checkpoint,), "needs a FOLDER"),
                             ((made, "--format", "csv", "--set", "seeds=[0]"), "names a report as it is"),
                             (("nowhere.yaml", "--format", "csv"), "there is no study file nowhere.yaml")):
        said = reread("export", *arguments)
        assert said.code == 2 and words in said.err and len(said.err.strip().splitlines()) == 1, said.err
    assert reread("export", made, "--format", "word").code == 2
