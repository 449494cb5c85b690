from __future__ import annotations

import pytest

from flows.overrides import apply, parse, plain, validate
from storage.errors import SpecError
from tasks.specs import (
    ArchitecturePlan,
    ClozeSpec,
    CorpusSpec,
    EvaluationPlan,
    PretrainSpec,
    RecallRowsSpec,
    StudySpec,
    Workload,
)


@pytest.fixture
def study() -> StudySpec:
    return StudySpec(name="a", about="b", estimated_minutes=1, workloads={"text": Workload(
        corpus=CorpusSpec(), rows=RecallRowsSpec(), architectures={"jrt": ArchitecturePlan(model="jrt-tiny")},
        evaluations=(EvaluationPlan(cloze=ClozeSpec(task="disjoint")),))})


@pytest.mark.parametrize("setting, get, value", [
    ("workloads.text.train.steps=100", lambda w: w.train.steps, 100),
    ("workloads.text.train.steps=null", lambda w: w.train.steps, None),
    ("workloads.text.train.optimiser.learning_rate=1e-2", lambda w: w.train.optimiser.learning_rate, 0.01),
    ("workloads.text.train.optimiser.betas=[0.8, 0.9]", lambda w: w.train.optimiser.betas, (0.8, 0.9)),
    ("workloads.text.train.optimiser.betas.1=0.99", lambda w: w.train.optimiser.betas, (0.9, 0.99)),
    ("workloads.text.rows.list_lines.0=2", lambda w: w.rows.list_lines, (2, 8)),
    ("workloads.text.rows.order_shares={default: 1.0}", lambda w: w.rows.order_shares, {"default": 1.0}),
    ("workloads.text.evaluations.0.cloze.limit=7", lambda w: w.evaluations[0].cloze.limit, 7),
    ("workloads.text.architectures.jrt.model_overrides.norm_eps=1e-6",
     lambda w: w.architectures["jrt"].model_overrides, {"norm_eps": 1e-6}),
    ("workloads.text.architectures.jrt.train_overrides.optimiser.momentum=0.9",
     lambda w: w.architectures["jrt"].train_overrides, {"optimiser.momentum": 0.9}),
    ("workloads.text.architectures.based={model: based-tiny}",
     lambda w: w.architectures["based"].model, "based-tiny"),
    ("workloads.text.corpus.packages=[numpy]", lambda w: w.corpus.packages, ("numpy",)),
])
def test_any_field_can_be_set(study, setting, get, value):
    assert get(apply(study, [setting]).workloads["text"]) == value


def test_later_settings_win_and_the_original_stays(study):
    changed = apply(study, ["workloads.text.train.steps=1", "workloads.text.train.steps=2"])
    assert changed.workloads["text"].train.steps == 2
    assert study.workloads["text"].train.steps is None


def test_what_was_left_to_its_default_stays_so(study):
    """A task may have default orders of its own; a setting elsewhere must not fix the spec's."""
    changed = apply(study, ["workloads.text.evaluations.0.cloze.limit=7"])
    assert "orders" not in changed.workloads["text"].evaluations[0].cloze.model_fields_set


@pytest.mark.parametrize("setting, words", [
    ("expectations.0.order=twice", ["expectations is an empty list"]),
    ("workloads.text.train.step=1", ["workloads.text.train has no 'step'", "did you mean steps"]),
    ("workload.text.train.steps=1", ["no 'workload'", "did you mean workloads"]),
    ("workloads.tekst.train.steps=1", ["no 'tekst'", "did you mean text"]),
    ("workloads.text.evaluations.3.cloze.limit=1", ["a list of 1", "from 0 to 0"]),
    ("workloads.text.train.steps.deeper=1", ["has no field 'deeper'"]),
    ("workloads.text.architectures.mamba.model=x", ["no 'mamba'", "it can be: jrt"]),
    ("workloads.text.train.steps=lots", ["workloads.text.train.steps", "'lots'", "integer"]),
    ("workloads.text.train.zero_stage=7", ["workloads.text.train.zero_stage", "got 7", "0, 1, 2 or 3"]),
    ("workloads.text.rows.tokens=5", ["workloads.text.rows.tokens", "got 5", "1000"]),
    ("workloads.text.train.zero_stage=2", ["workloads.text.train", "in_process", "deepspeed"]),
    ("steps", ["NAME=VALUE", "train.steps=100"]),
    ("=3", ["NAME=VALUE"]),
    ("name={", ["not valid YAML"]),
])
def test_a_mistake_names_field_value_and_expectation(study, setting, words):
    with pytest.raises(SpecError) as error:
        apply(study, [setting])
    for word in words:
        assert word in str(error.value)
    assert error.value.exit_code == 2


def test_every_finding_is_listed_once():
    with pytest.raises(SpecError) as error:
        validate(PretrainSpec, {"model": 3, "seed": -1, "colour": "red"}, "spec.yaml")
    text = str(error.value)
    assert text.startswith("spec.yaml: ")
    assert "architecture: missing" in text and "seed: got -1" in text and "colour: there is no such field" in text
    assert "pydantic" not in text and "http" not in text


def test_numbers_that_yaml_reads_as_text():
    assert parse("a=1e-2") == (["a"], 0.01)
    assert parse("a.b=[1e3, x]") == (["a", "b"], [1000.0, "x"])
    assert plain((1, ("1e1", "e1"))) == [1, [10.0, "e1"]]
