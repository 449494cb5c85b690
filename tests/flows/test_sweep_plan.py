"""Sweeps in a plan, and `each_mixer`: every id known before anything runs, in parts or as a whole."""

from __future__ import annotations

import pytest

import models.mixers
from flows import studies
from flows.forms.requests import PretrainRequest
from flows.planning.builder import plan
from flows.studies.every_mixer import causal_kinds
from models import registry
from storage.artifacts import Store
from storage.errors import SpecError
from tasks.specs import DisjointRowsSpec

SWEEP = "workloads.pydocs.train.sweep={values: [0.01, 0.02, 0.005], share: 0.5}"
TOY = '''
from typing import Literal
from models.mixers.based import Based
from models.mixer import MixerConfig
from models.mixers import based


class Config(based.Config):
    kind: Literal["{kind}"] = "{kind}"


class Toy(Based):
    """A toy."""
'''
ZOO = """
name: mine
about: a test
estimated_minutes: 1
bench: null
workloads:
  sets:
    rows: {kind: disjoint, vocabulary: 64, sizes: [[4, 8]], batches: 20, batch_tokens: 512}
    train: {steps: 4, validation_batches: 1, log_every: 2}
    architectures:
      each_mixer: EACH
      alone: {model: based-mini}
    evaluations:
      - cloze: {task: disjoint, orders: [small_first], limit: 4, task_options: {vocabulary: 64, sizes: [[4, 8]]}}
        evaluate: {metric: exact, bootstrap: 200}
"""
EACH = ("{model: based-mini, model_overrides: {mixers: {conv: {kind: base_conv}, own: {kind: '{kind}'}}, "
        "plan: [conv, own]}}")


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return Store(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def swept(store):
    return plan(studies.load("smoke", [SWEEP]), store)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """One more mixer file, in a folder of its own."""
    folder = tmp_path / "mixers"
    folder.mkdir()
    (folder / "toy.py").write_text(TOY.replace("{kind}", "toy"))
    monkeypatch.setattr(models.mixers, "__path__", [*models.mixers.__path__, str(folder)])
    yield folder
    import sys

    for name in ("toy", "wrong", "deaf", "mute"):
        sys.modules.pop(f"models.mixers.{name}", None)


def write(tmp_path, each: str = EACH) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(ZOO.replace("EACH", each))
    return str(path)


# ------------------------------------------------------------------------------------------------------------ sweeps
def test_trials_are_stages_before_the_training_that_takes_them(swept):
    keys = [key for key in swept.stages if key.startswith("pydocs/sweep/jrt/")]
    assert keys == [f"pydocs/sweep/jrt/{value}" for value in ("0.005", "0.01", "0.02")]
    full = swept.stages["pydocs/pretrain/jrt/0"]
    assert set(keys) <= set(full.after)
    assert {f"trial_{key.rpartition('/')[2]}": swept.stages[key].artifact for key in keys}.items() <= full.inputs.items()
    trial = swept.stages["pydocs/sweep/jrt/0.01"]
    assert trial.title == "sweep jrt lr 0.01 on pydocs" and trial.module == "tasks.pretrain"
    assert trial.spec.train.optimiser.matrix_learning_rate == 0.01 and trial.tags["sweep"].endswith("rate=0.01")
    assert trial.tokens * 2 == full.tokens and trial.weight * 2 == full.weight
    assert not any(key.startswith("disjoint/sweep") for key in swept.stages)


def test_the_results_name_the_trials_apart_from_the_checkpoints(swept):
    parts = swept.results["workloads"]["pydocs"]
    assert set(parts["checkpoints"]) == {"transformer/0", "jrt/0"}
    assert set(parts["sweeps"]) == {f"{name}/{value}" for name in ("transformer", "jrt") for value in ("0.005", "0.01", "0.02")}
    assert parts["sweeps"]["jrt/0.01"] == swept.stages["pydocs/sweep/jrt/0.01"].artifact
    assert "sweeps" not in swept.results["workloads"]["disjoint"]


def test_ids_with_a_sweep_are_stable_and_follow_it(store, swept):
    def ids(setting):
        return {key: stage.artifact for key, stage in plan(studies.load("smoke", [setting]), store).stages.items()}

    before = {key: stage.artifact for key, stage in swept.stages.items()}
    assert ids(SWEEP) == before
    more = ids(SWEEP.replace("0.02,", "0.02, 0.04,"))
    assert {key: more[key] for key in before if "/sweep/" in key} == {k: v for k, v in before.items() if "/sweep/" in k}
    assert more["pydocs/pretrain/jrt/0"] != before["pydocs/pretrain/jrt/0"]
    assert more["disjoint/pretrain/based/0"] == before["disjoint/pretrain/based/0"]
    plain = ids("workloads.pydocs.train.sweep=null")
    assert plain == {key: stage.artifact for key, stage in plan(studies.load("smoke"), store).stages.items()}


def test_all_seeds_share_the_trials_of_the_first(store):
    found = plan(studies.load("smoke", [SWEEP, "workloads.pydocs.seeds=[3,4]"]), store)
    trials = [stage for key, stage in found.stages.items() if key.startswith("pydocs/sweep/jrt/")]
    assert len(trials) == 3 and {stage.spec.seed for stage in trials} == {3}
    a, b = (found.stages[f"pydocs/pretrain/jrt/{seed}"].inputs for seed in (3, 4))
    assert a == b


def test_one_architecture_may_sweep_otherwise_or_not_at_all(store):
    found = plan(studies.load("smoke", [
        SWEEP, "workloads.pydocs.architectures.jrt.train_overrides={sweep.values: [0.1, 0.2]}",
        "workloads.pydocs.architectures.transformer.train_overrides={sweep: null}"]), store)
    assert [key for key in found.stages if "/sweep/" in key] == ["pydocs/sweep/jrt/0.1", "pydocs/sweep/jrt/0.2"]


def test_one_training_may_have_a_sweep_too(store):
    request = PretrainRequest(model="jrt-mini", rows=DisjointRowsSpec(batches=10), seed=5,
                              train={"sweep": {"values": [0.01, 0.02]}})
    stages = request.plan(store).stages
    assert [stage.kind for stage in stages.values()] == ["rows", "pretrain", "pretrain", "pretrain"]
    assert [stage.spec.seed for stage in list(stages.values())[1:]] == [5, 5, 5]


def test_a_sweep_that_could_not_choose_is_refused_before_any_work():
    with pytest.raises(SpecError, match="rows.validation_tokens.*sweep of transformer"):
        studies.load("smoke", [SWEEP, "workloads.pydocs.rows.validation_tokens=0"])
    with pytest.raises(SpecError, match="two or more different"):
        studies.load("smoke", ["train.sweep={values: [0.01]}"])
    with pytest.raises(SpecError, match="names no number"):
        studies.load("smoke", ["train.sweep={field: optimiser.rate, values: [0.01, 0.02]}"])
    with pytest.raises(SpecError, match="train.trial: got 0.5; a trial keeps no weights"):
        studies.load("smoke", ["train.trial=0.5"])


def test_a_dry_run_lists_the_trials(reread):
    answer = reread("study", "run", "smoke", "--set", SWEEP, "--dry-run")
    assert answer.code == 0 and answer.out.count("sweep jrt lr") == 3, answer.err
    facts = reread("study", "run", "smoke", "--set", SWEEP, "--dry-run", "--json").json
    assert sum(one["kind"] == "trial" for one in facts["artifacts"]) == 6
    plain = reread("study", "run", "smoke", "--dry-run", "--json").json
    assert facts["tokens"] > plain["tokens"] and facts["parameters"] == plain["parameters"]


# -------------------------------------------------------------------------------------------------------- each_mixer
def test_a_mixer_file_is_an_architecture(tmp_path, toy, store):
    study = studies.load(write(tmp_path))
    labels = list(study.workloads["sets"].architectures)
    assert labels == [*causal_kinds(), "alone"] and {"toy", "attention", "based", "prefix"} <= set(labels)
    found = plan(studies.load(write(tmp_path), ["architectures=toy,alone"]), store)
    assert found.stages["sets/pretrain/toy/0"].spec.model_overrides["mixers"]["own"] == {"kind": "toy"}
    assert set(found.results["workloads"]["sets"]["checkpoints"]) == {"toy/0", "alone/0"}


def test_what_cannot_be_causal_or_is_broken_is_no_architecture(tmp_path, toy, capfd, caplog):
    (toy / "wrong.py").write_text("raise RuntimeError('half written')")
    (toy / "deaf.py").write_text(TOY.replace("{kind}", "deaf") + (
        "\n    @classmethod\n    def abilities(cls, config):\n        from models.cost import Abilities\n"
        "        return Abilities(causal=False)\n"))
    (toy / "mute.py").write_text(TOY.replace("{kind}", "mute") + (
        "\n    @classmethod\n    def abilities(cls, config):\n        raise RuntimeError('not written yet')\n"))
    assert {"wrong", "deaf", "mute"} <= set(registry.names())
    kinds = causal_kinds()
    assert "toy" in kinds and not {"wrong", "deaf", "mute"} & set(kinds)
    assert all(any(registry.abilities(case).causal for case in registry.config_class(kind).cases().values()) for kind in kinds)
    told = capfd.readouterr().err + caplog.text       # where it goes depends on whether a command has set up the log
    assert "wrong is left out of the study: RuntimeError: half written" in told
    assert "mute is left out of the study: RuntimeError: not written yet" in told


def test_some_may_be_left_out_or_be_set_otherwise(tmp_path):
    each = EACH[:-1] + ", leave_out: [lavo, lavo]}\n      based: {model: based-tiny, model_overrides: {width: 32}}"
    architectures = studies.load(write(tmp_path, each)).workloads["sets"].architectures
    assert "lavo" not in architectures and "attention" in architectures
    assert architectures["based"].model == "based-tiny" and architectures["attention"].model == "based-mini"


@pytest.mark.parametrize("each, words", [
    ("{model: based-mini}", "each_mixer.*kind"), ("all", "each_mixer.*kind"),
    ("{model: '{kind}', leave_out: [atention]}", "leave_out.*did you mean attention"),
    ("{model: '{kind}', leave_out: 5}", "leave_out: got 5; expected a list"),
    ("{model: '{kind}', colour: red}", "architectures.attention.colour: there is no such field")])
def test_a_pattern_that_cannot_be_is_refused(tmp_path, each, words):
    with pytest.raises(SpecError, match=words):
        studies.load(write(tmp_path, each))


# ----------------------------------------------------------------------------------------------------------- in parts
def test_a_study_in_parts_makes_the_same_artifacts(store):
    whole = plan(studies.load("smoke", [SWEEP]), store)
    part = plan(studies.load("smoke", [SWEEP, "architectures=[jrt]"]), store)
    assert set(part.results["workloads"]) == {"pydocs"}
    assert {key for key in part.stages if "/pretrain/" in key} == {"pydocs/pretrain/jrt/0"}
    for key, stage in part.stages.items():
        if key != "report":
            assert stage.artifact == whole.stages[key].artifact, key


def test_in_parts_what_was_expected_of_others_is_not_expected():
    assert studies.load("quick", ["architectures=based"]).expectations == ()
    assert len(studies.load("quick", ["architectures=based,transformer"]).expectations) == 1


@pytest.mark.parametrize("setting", ["architectures=[jrtt]", "architectures=''", "architectures=[]"])
def test_parts_that_do_not_exist_are_refused(setting):
    with pytest.raises(SpecError, match="did you mean jrt|it can be: transformer, jrt, based"):
        studies.load("smoke", [setting])


def test_the_command_line_takes_a_part(reread):
    facts = reread("study", "run", "smoke", "--only", "based", "--dry-run", "--json")
    assert facts.code == 0 and set(facts.json["parameters"]) == {"disjoint/based"}, facts.err
    wrong = reread("study", "run", "smoke", "--only", "basde", "--dry-run")
    assert wrong.code == 2 and "did you mean based?" in wrong.err
    for unclear, words in ((",", "it can be: transformer, jrt, based"), ("", "it can be"), ("[based", "did you mean based?")):
        wrong = reread("study", "run", "smoke", "--only", unclear, "--dry-run")
        assert wrong.code == 2 and words in wrong.err and wrong.err.count("\n") == 1, wrong.err
    facts = reread("study", "run", "smoke", "--only", " based , ", "--dry-run", "--json")
    assert facts.code == 0 and set(facts.json["parameters"]) == {"disjoint/based"}, facts.err
