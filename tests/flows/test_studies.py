from __future__ import annotations

import pytest

from flows import studies
from flows.forms.requests import StudyRequest
from storage.errors import SpecError

GOOD = """
name: mine
about: a test
estimated_minutes: 1
workloads:
  sets:
    rows: {kind: disjoint, batches: 5}
    train: {optimiser: {learning_rate: 1e-2}}
    architectures:
      jrt: {model: jrt-mini, train_overrides: {optimiser.warmup_steps: 7}}
    evaluations:
      - cloze: {task: disjoint, orders: [small_first]}
"""


def write(tmp_path, text: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", studies.shipped())
def test_shipped_studies_are_valid_and_named_after_their_file(name):
    assert studies.load(name).name == name


def test_the_form_offers_exactly_the_shipped_studies():
    assert set(StudyRequest.model_json_schema()["properties"]["study"]["enum"]) == set(studies.shipped())


def test_quick_is_one_seed_and_evening_is_three():
    """Claims about architectures need three; both train every architecture on equal tokens."""
    assert {workload.seeds for workload in studies.load("quick").workloads.values()} == {(0,)}
    assert {workload.seeds for workload in studies.load("evening").workloads.values()} == {(0, 1, 2)}


@pytest.mark.parametrize("name", ["quick", "evening"])
def test_set_intersection_is_trained_on_its_answers_alone(name):
    """Masked elements could not be found, and which element comes next in a set nobody can know."""
    study = studies.load(name)
    for architecture in study.workloads["disjoint"].architectures:
        objective = studies.training(study.workloads["disjoint"], architecture).objective
        assert (objective.mask_share, objective.document_share) == (0, 0)


def test_a_study_file_is_read(tmp_path):
    study = studies.load(write(tmp_path, GOOD))
    workload = study.workloads["sets"]
    assert workload.train.optimiser.learning_rate == 0.01
    assert studies.training(workload, "jrt").optimiser.warmup_steps == 7
    assert workload.train.optimiser.warmup_steps == 600


def test_a_setting_may_start_inside_a_workload():
    study = studies.load("quick", ["train.steps=9", "rows.batch_tokens=512", "seeds=[3,4]"])
    assert {workload.train.steps for workload in study.workloads.values()} == {9}
    assert {workload.rows.batch_tokens for workload in study.workloads.values()} == {512}
    assert {workload.seeds for workload in study.workloads.values()} == {(3, 4)}


def test_such_a_setting_reaches_the_workloads_that_have_the_field():
    study = studies.load("quick", ["rows.batches=3"])           # recall rows have no `batches`
    assert study.workloads["disjoint"].rows.batches == 3


@pytest.mark.parametrize("settings, words", [
    (["trian.steps=1"], ["did you mean train"]),
    (["train.stepz=1"], ["did you mean steps"]),
    (["expectations.0.architecture=lstm"], ["expectations.0.architecture", "'lstm'", "transformer"]),
    (["expectations.0.order=repeat"], ["expectations.0.order", "'repeat'", "default"]),
    (["workloads.pydocs.rows=null"], ["workloads.pydocs.rows", "missing"]),
    (["workloads.pydocs.corpus=null"], ["workloads.pydocs.corpus", "missing"]),
    (["workloads.pydocs.architectures.jrt.train_overrides={stepz: 1}"], ["architectures.jrt.train_overrides", "steps"]),
    (["workloads.pydocs.architectures={a/b: {model: x}}"], ["no '/'"]),
    (["workloads.pydocs.architectures={}"], ["workloads.pydocs.architectures", "at least one"]),
    (["workloads={}", "expectations=[]"], ["workloads", "at least one"]),
    (["seeds=[]"], ["workloads.pydocs.seeds", "one or more"]),
    (["seeds=[0,-1]"], ["workloads.pydocs.seeds", "-1"]),
    (["seeds=[1,1]"], ["workloads.pydocs.seeds", "different"]),
    (["workloads.pydocs.evaluations.0.evaluate.generation_tokens=99"],
     ["workloads.pydocs.evaluations.0.evaluate.generation_tokens", "99", "48"]),
    (["workloads.disjoint.evaluations.0.cloze.generation_tokens=8"],
     ["workloads.disjoint.evaluations.0.evaluate.generation_tokens", "48", "8"]),
])
def test_a_study_that_contradicts_itself_is_refused(settings, words):
    with pytest.raises(SpecError) as error:
        studies.load("quick", settings)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("change, words", [
    (("name: mine", "name: Mine!"), ["name", "'Mine!'"]),
    (("rows: {kind: disjoint, batches: 5}", "rows: {kind: list}"), ["workloads.sets.rows", "recall", "disjoint"]),
    (("batches: 5", "batchez: 5"), ["workloads.sets.rows.batchez", "no such field"]),
    (("name: mine", "name: [mine"), ["YAML"]),
    (("estimated_minutes: 1", ""), ["estimated_minutes: missing"]),
    (("batches: 5", "batches: 5, batches: 6"), ["'batches'", "twice", "line 7"]),
    (("about: a test", "about: &a [*a]"), ["cannot be read"]),
    (("  sets:", "  a/b:"), ["no '/'", "'a/b'"]),
])
def test_a_wrong_file_is_refused_naming_file_and_field(tmp_path, change, words):
    with pytest.raises(SpecError) as error:
        studies.load(write(tmp_path, GOOD.replace(*change)))
    for word in ["mine.yaml", *words]:
        assert word in str(error.value)


def test_unknown_studies_get_a_suggestion():
    with pytest.raises(SpecError, match="did you mean quick"):
        studies.load("qiuck")
    with pytest.raises(SpecError, match="'xyz'. Shipped studies"):
        studies.load("xyz")
    with pytest.raises(SpecError, match="no study file"):
        studies.load("there/is/none.yaml")


def test_a_study_without_its_data_says_how_to_give_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = studies.load("fda")
    with pytest.raises(SpecError, match=r"--set data=FOLDER"):
        studies.check_data(study)
    (tmp_path / "data").mkdir()
    studies.check_data(study)
    elsewhere = studies.load("fda", ["data=elsewhere"])
    assert elsewhere.workloads["text"].training_questions.paths == ("elsewhere/fda_510k/train_docs.jsonl*",)
    with pytest.raises(SpecError, match="'elsewhere'"):
        studies.check_data(elsewhere)


def test_what_is_trained_on_is_not_asked():
    with pytest.raises(SpecError, match="train on other documents"):
        studies.load("fda", ["evaluations.0.questions.paths=['{data}/fda_510k/train_docs.jsonl*']"])
