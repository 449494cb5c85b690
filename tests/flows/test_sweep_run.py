"""A study with a sweep, from nothing to its report, stage by stage in this process; and what a kill leaves to do."""

from __future__ import annotations

import csv
import json

import pytest

import tasks.training.loop as loop
from flows import studies
from flows.planning.builder import plan
from flows.planning.plan import Plan
from flows.running.work import Order, perform
from storage.artifacts import Store
from tests.flows.test_sweep_plan import EACH, toy, write  # noqa: F401  toy is a fixture

SETTINGS = ["train.sweep={values: [0.002, 0.02], share: 0.5}", "train.optimiser={kind: muon, warmup_steps: 1}",
            "train.steps=6", "train.checkpoint_every=2", "architectures=[toy, alone]"]


def carry_out(planned: Plan, store: Store, until: str = "") -> list[str]:
    """Perform what is missing, in order, up to the stage `until`; returns the keys that ran."""
    ran = []
    for stage in planned.missing():
        inputs = {"results": planned.results} if stage.kind == "report" else stage.inputs
        made = perform(Order(stage.kind, stage.module, stage.title, stage.spec, inputs, store.root))
        assert made.artifact == stage.artifact, stage.key
        ran.append(stage.key)
        if stage.key == until:
            break
    return ran


class Killed(BaseException):
    """Stands for a signal: no stage catches it."""


def test_a_study_with_a_sweep_and_a_mixer_of_ones_own(tmp_path, toy, monkeypatch):  # noqa: F811
    store = Store(tmp_path / "home")
    study = studies.load(write(tmp_path, EACH), SETTINGS)

    def planned() -> Plan:
        return plan(study, store)

    first = planned()
    keep = loop._check_finite

    def kill(step, what, value, run):
        if run.fingerprint == first.stages["sets/sweep/toy/0.02"].artifact and step == 2:
            raise Killed
        keep(step, what, value, run)

    monkeypatch.setattr(loop, "_check_finite", kill)
    with pytest.raises(Killed):
        carry_out(first, store)
    monkeypatch.setattr(loop, "_check_finite", keep)
    left = [stage.key for stage in planned().missing()]
    assert "sets/sweep/toy/0.002" not in left and left[0] == "sets/sweep/toy/0.02"
    steps = []
    step = loop._step
    monkeypatch.setattr(loop, "_step", lambda engine, source, run, number: (
        steps.append((run.fingerprint, number)), step(engine, source, run, number))[1])
    assert carry_out(planned(), store) == left
    assert [number for name, number in steps if name == first.stages["sets/sweep/toy/0.02"].artifact] == [2]  # 0, 1 were kept
    assert planned().finished and carry_out(planned(), store) == []

    for name in ("toy", "alone"):
        summary = json.loads((store.path(first.stages[f"sets/pretrain/{name}/0"].artifact) / "summary.json").read_text())
        losses = {one["value"]: one["validation_loss"] for one in summary["sweep"]["trials"]}
        assert summary["sweep"]["chosen"] == min(losses, key=losses.get) and set(losses) == {0.002, 0.02}
        assert summary["steps"] == 6
        for value in (0.002, 0.02):
            trial = json.loads((store.path(first.stages[f"sets/sweep/{name}/{value}"].artifact) / "summary.json").read_text())
            assert trial["steps"] == 3 and trial["validation_loss"] == losses[value]
    folder = store.path(first.goal.artifact)
    rows = list(csv.reader((folder / "sweeps.csv").open()))
    assert [row[1] for row in rows[1:]] == ["toy", "alone"]
    assert {row[0] for row in list(csv.reader((folder / "architectures-sets.csv").open()))[1:]} == {"toy", "alone"}
    assert store.manifest(first.goal.artifact).inputs["sets/sweeps/toy/0.02"] == first.stages["sets/sweep/toy/0.02"].artifact
