"""`reread prune`: what refers to what, what is shown, and that nothing goes while that is not known."""

from __future__ import annotations

import json
import os
import time

import pytest

from storage.artifacts import Store, artifact_id
from storage.tracking import Tracking

OLD = "--older-than=0s"


def write(folder) -> None:
    (folder / "data").write_bytes(b"x" * 2000)


def chain(store: Store, name: str) -> list[str]:
    corpus = store.produce("corpus", {"name": name}, {}, "c", write)
    rows = store.produce("rows", {}, {"corpus": corpus}, "c", write)
    return [corpus, rows, store.produce("checkpoint", {}, {"rows": rows}, "c", write)]


@pytest.fixture
def kept(home):
    """Store, and chains by what refers to them."""
    store = Store()
    made = {name: chain(store, name) for name in ("run", "input", "parameter", "version", "journal", "report", "deleted", "none")}
    tracking = Tracking()
    experiment = tracking.experiment("toy")
    run = tracking.start(experiment, "pretrain", {"artifact": made["run"][2]})
    tracking.start(experiment, "evaluate", {"input.checkpoint": made["input"][2]}, {"checkpoint": made["parameter"][2]})
    (store.folder / "weights").write_text("w")
    tracking.artifacts(run, store.folder / "weights", "model")
    tracking.register("toy-x", run, "model", {"checkpoint": made["version"][2]})
    gone = tracking.start(experiment, "pretrain again", {"artifact": made["deleted"][2]})
    study = store.produce("report", {"name": "a"}, {"x/checkpoints/a/0": made["report"][2]}, "c", write)
    trashed = store.produce("report", {"name": "b"}, {"x/checkpoints/a/0": made["deleted"][2]}, "c", write)
    bad = tracking.start(experiment, "study", {"artifact": trashed})
    tracking.close()
    from storage.tracking.client import connect

    for each in (gone, bad):
        connect(tracking.uri).raw.delete_run(each)
    spool = store.folder / "spool" / "01234567"
    spool.mkdir(parents=True, exist_ok=True)
    (spool / "1-0.jsonl").write_text(json.dumps({"op": "start", "tags": {"note": f"made\n{made['journal'][2]}"}}) + "\n")
    return store, made, study, trashed


def test_what_nothing_refers_to_goes_after_it_was_shown(reread, kept):
    store, made, study, trashed = kept
    shown = reread("prune", "--dry-run", OLD)
    assert shown.code == 0, shown.err
    gone = {*made["none"], *made["deleted"], trashed}
    assert {one.id for one in store.list() if one.id in shown.out} == gone
    assert "7 artifacts, " in shown.out and "kB" in shown.out and len(store.list()) == 26
    listed = reread("prune", "--json", OLD).json
    assert {one["name"] for one in listed["unreferenced"]} == gone and listed["dry_run"] and listed["removed"] == []
    assert listed["bytes"] == 14000 and listed["runs"] == 2 and listed["versions"] == 1 and len(store.list()) == 26

    asked = reread("prune", OLD)
    assert asked.code == 2 and "--yes removes" in asked.err and len(store.list()) == 26, "nobody can answer"
    spared = reread("prune", "--yes", "--json", OLD, "--keep", "corpus").json
    assert set(spared["removed"]) == gone - {made["none"][0], made["deleted"][0]}
    done = reread("prune", "--yes", OLD)
    assert done.code == 0 and "removed 2 artifacts" in done.out, done.err
    assert {one.id for one in store.list()} == {study, *(one for name in made for one in made[name])} - gone
    assert reread("prune", OLD, "--yes").out.startswith("nothing to remove")


def test_lately_is_a_day_unless_told(reread, kept):
    assert reread("prune", "--dry-run").out.startswith("nothing to remove")
    assert "AGE" not in reread("prune", "--older-than", "7").err and reread("prune", "--older-than", "7").code == 2
    assert "expected a number and a unit" in reread("prune", "--older-than", "soon").err
    assert "no artifact of that kind" in reread("prune", "--keep", "corpora").err


def test_a_question_is_asked_and_no_means_no(reread, kept, monkeypatch):
    import sys

    import typer

    store = kept[0]
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    answers = [False, True]
    monkeypatch.setattr(typer, "confirm", lambda *given, **more: answers.pop(0))
    assert reread("prune", OLD).code == 0 and len(store.list()) == 26
    assert "removed 7 artifacts" in reread("prune", OLD).out and answers == []


def test_a_killed_training_that_its_run_refers_to_can_go_on(reread, home):
    store = Store()

    def killed(folder):
        write(folder)
        raise RuntimeError
    for name in "ab":
        with pytest.raises(RuntimeError):
            store.produce("checkpoint", {"name": name}, {}, "c", killed)
    going_on, given_up = (artifact_id("checkpoint", {"name": name}, {}, "c") for name in "ab")
    tracking = Tracking()
    tracking.start(tracking.experiment("toy"), "pretrain", {"artifact": going_on})
    tracking.close()
    assert reread("prune", "--yes", "--json", OLD).json["removed"] == [given_up]
    assert [path.name for path in (store.folder / "work").iterdir()] == [going_on]


@pytest.mark.parametrize("uri, words", [
    ("sqlite:////nowhere/mlflow.db", "there is no tracking store"), ("other", "looks like the store of another home")])
def test_nothing_goes_while_references_are_not_known(reread, home, tmp_path, monkeypatch, uri, words):
    store = Store()
    chain(store, "a")
    made = chain(store, "b")
    report = store.produce("report", {}, {"x/checkpoints/a/0": made[2]}, "c", write)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    if uri == "other":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/other.db")
        tracking = Tracking()
        tracking.start(tracking.experiment("toy"), "of another home", {"artifact": "checkpoint-0123456789abcdef"})
        tracking.close()
    said = reread("prune", "--yes", OLD)
    assert said.code == 1 or said.code == 2
    assert words in said.err and "--without-tracking" in said.err and len(store.list()) == 7, said.err
    said = reread("prune", "--yes", OLD, "--without-tracking")
    assert said.code == 0 and {one.id for one in store.list()} == {report, *made}, said.err


def test_what_killed_commands_left_goes_too(reread, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store()
    ray = tmp_path / "ray" / "session_1"
    half, own, was, theirs = (tmp_path / name for name in (
        ".model.abcd1234.partial", ".study.abcd1234.old", ".lost.abcd1234.old", ".thesis.abcd1234.partial"))
    for folder, name in ((store.folder / "notes" / "run", "note"), (ray, "log"), (half, "config.json"), (own, "was"),
                         (was, "was"), (theirs, "chapter.txt"), (theirs, "README.md")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x" * 100)
    (tmp_path / "study").mkdir()
    services = store.folder / "services"
    services.mkdir()
    (services / "session-1.json").write_text(json.dumps({"driver": [1, 1.0], "ray": str(ray), "processes": []}))
    assert len(reread("prune", "--json", "--without-tracking", OLD).json["leftovers"]) == 1, "the others are too young"
    past = time.time() - 7200
    for folder in (store.folder / "notes" / "run", half, own, was, theirs):
        for path in (*folder.iterdir(), folder):
            os.utime(path, (past, past))
    listed = reread("prune", "--json", "--without-tracking", OLD).json
    assert {one["name"] for one in listed["leftovers"]} == {str(each) for each in (store.folder / "notes" / "run", ray, half, own)}
    assert reread("prune", "--yes", "--without-tracking", OLD).code == 0
    assert [each.exists() for each in (half, own, was, theirs, ray)] == [False, False, True, True, False]
    assert not (services / "session-1.json").exists()
