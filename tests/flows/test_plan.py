"""The plan of a study: ids known before anything runs. No stage works here; artifacts are made by hand."""

from __future__ import annotations

import pytest

from flows import studies
from flows.forms.requests import ClozeRequest, EvaluateRequest, PretrainRequest, TokeniseRequest
from flows.planning.builder import plan
from flows.planning.plan import Plan
from storage.artifacts import Store
from storage.errors import ArtifactError, SpecError
from tasks.specs import DisjointRowsSpec

SMALL = ["bench=null"]


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return Store(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def smoke(store) -> Plan:
    return plan(studies.load("smoke"), store)


def pretend(store: Store, identifier: str) -> None:
    """A manifest where the plan looks for one."""
    folder = store.folder / "artifacts" / identifier
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text("{}")


def test_a_plan_is_the_same_every_time(store, smoke):
    again = plan(studies.load("smoke"), store)
    assert [stage.artifact for stage in again.stages.values()] == [stage.artifact for stage in smoke.stages.values()]


def test_stages_come_after_what_they_need(smoke):
    seen: set[str] = set()
    for stage in smoke.stages.values():
        assert set(stage.after) <= seen, stage.key
        seen.add(stage.key)
    assert smoke.goal.key == "report" and set(smoke.goal.after) == seen - {"report"}


def test_the_results_name_every_artifact_the_report_reads(smoke):
    parts = smoke.results["workloads"]["pydocs"]
    assert set(parts) == {"corpus", "shards", "rows", "prompts", "checkpoints", "scores"}
    assert set(parts["checkpoints"]) == {"transformer/0", "jrt/0"}
    assert set(parts["scores"]) == {"transformer/0/pydocs", "jrt/0/pydocs"}
    sets = smoke.results["workloads"]["disjoint"]
    assert sets["corpus"] is None and sets["rows"].startswith("rows-")
    assert smoke.results["timings"] is None


def test_every_architecture_trains_on_the_same_rows(smoke):
    """Equal tokens in the same order, whatever the model."""
    rows = {stage.inputs["rows"] for stage in smoke.stages.values() if stage.key.startswith("pydocs/pretrain")}
    assert len(rows) == 1


@pytest.mark.parametrize("setting, changed, kept", [
    ("workloads.pydocs.train.steps=7", "pydocs/pretrain/jrt/0", "pydocs/rows"),
    ("workloads.pydocs.architectures.jrt.train_overrides.optimiser.momentum=0.9", "pydocs/pretrain/jrt/0",
     "pydocs/pretrain/transformer/0"),
    ("workloads.pydocs.evaluations.0.cloze.limit=3", "pydocs/evaluate/jrt/0/pydocs", "pydocs/pretrain/jrt/0"),
    ("workloads.pydocs.corpus.minimum_characters=300", "disjoint/none", "disjoint/pretrain/based/0"),
])
def test_a_change_renames_what_depends_on_it_and_nothing_else(store, smoke, setting, changed, kept):
    other = plan(studies.load("smoke", [setting]), store)
    if changed in smoke.stages:
        assert other.stages[changed].artifact != smoke.stages[changed].artifact
    assert other.stages[kept].artifact == smoke.stages[kept].artifact
    assert other.goal.artifact != smoke.goal.artifact


def test_what_exists_is_not_made_again_and_a_report_ends_it_all(tmp_path):
    store = Store(tmp_path)
    study = studies.load("smoke")
    first = plan(study, store)
    assert len(first.missing()) == len(first.stages) and not first.finished
    pretend(store, first.stages["pydocs/corpus"].artifact)
    second = plan(study, store)
    assert len(second.missing()) == len(first.stages) - 1
    pretend(store, first.goal.artifact)
    assert plan(study, store).finished and plan(study, store).missing() == []


def test_the_same_work_asked_for_twice_is_one_stage(store):
    study = studies.load("smoke")
    twice = study.model_copy(update={"workloads": {**study.workloads, "again": study.workloads["pydocs"]}})
    doubled = plan(twice, store)
    assert not any(stage.key.startswith("again/") for stage in doubled.stages.values())
    assert doubled.results["workloads"]["again"] == doubled.results["workloads"]["pydocs"]


@pytest.mark.parametrize("settings", [
    ["tokenise.tokenizer=gpt2"], ["workloads.disjoint.rows.vocabulary=5000"],
    ["workloads.pydocs.architectures.jrt.model_overrides={vocabulary: 100}"]])
def test_a_model_too_small_for_its_tokenizer_is_refused_before_any_work(store, settings):
    with pytest.raises(SpecError, match="model's embedding"):
        plan(studies.load("smoke", settings), store)


@pytest.mark.parametrize("settings, words", [
    (["workloads.disjoint.rows.vocabulary=32"], "'disjoint' are written in ids:64, the models are trained on ids:32"),
    (["workloads.disjoint.evaluations.0.cloze={task: lookup}"], "'lookup' are written in text"),
    (["workloads.pydocs.evaluations.0.cloze={task: disjoint}"], "are written in ids:256.*trained on bpe:512"),
])
def test_prompts_that_the_models_cannot_read_are_refused_before_any_work(store, settings, words):
    with pytest.raises(SpecError, match=words):
        plan(studies.load("smoke", settings), store)


def test_an_objective_that_does_not_fit_is_refused_before_any_work(store):
    with pytest.raises(SpecError, match="does not fit"):
        plan(studies.load("smoke", ["train.objective.kind=next_token"]), store)


def test_the_tokens_of_one_training_are_those_of_its_rows(store):
    request = PretrainRequest(model="jrt-mini", rows=DisjointRowsSpec(batches=10, batch_tokens=500))
    assert request.plan(store).goal.tokens == 5000


def test_longer_trainings_weigh_more(store):
    quick = plan(studies.load("quick", SMALL), store)
    assert quick.stages["pydocs/pretrain/jrt/0"].weight > quick.stages["disjoint/pretrain/jrt/0"].weight > 0
    assert quick.stages["pydocs/pretrain/jrt/0"].weight > quick.stages["pydocs/pretrain/transformer/0"].weight


def test_stages_that_drive_others_hold_no_core(smoke):
    assert smoke.stages["pydocs/corpus"].drives and not smoke.stages["pydocs/pretrain/jrt/0"].drives
    assert smoke.stages["pydocs/pretrain/jrt/0"].cores == 1


def test_deepspeed_drives_and_a_gpu_is_asked_for_in_process_only(store):
    wide = plan(studies.load("smoke", [
        "train.trainer=deepspeed", "train.workers=2", "train.gpus_per_worker=1", "train.optimiser.kind=adamw"]), store)
    stage = wide.stages["pydocs/pretrain/jrt/0"]
    assert stage.drives and stage.cores == 2 and stage.gpus == 0
    alone = plan(studies.load("smoke", ["train.gpus_per_worker=1"]), store)
    assert alone.stages["pydocs/pretrain/jrt/0"].gpus == 1


def test_requests_of_one_step(store):
    assert TokeniseRequest(tokenizer="bytes").plan(store).goal.kind == "tokenise"
    text = PretrainRequest(model="jrt-tiny")
    assert [stage.kind for stage in text.plan(store).stages.values()] == ["corpus", "tokenise", "rows", "pretrain"]
    assert text.plan(store).goal.title == "pretrain jrt seed 0 on data rows"
    sets = PretrainRequest(model="jrt-mini", rows=DisjointRowsSpec(batches=2))
    assert [stage.kind for stage in sets.plan(store).stages.values()] == ["rows", "pretrain"]
    assert [stage.kind for stage in ClozeRequest(task="disjoint").plan(store).stages.values()] == ["cloze"]
    assert [stage.kind for stage in ClozeRequest(task="pydocs").plan(store).stages.values()] == [
        "corpus", "tokenise", "cloze"]


def test_a_request_keeps_the_defaults_of_its_task(store):
    """`orders` left alone means the task's own orders."""
    stage = ClozeRequest(task="disjoint", limit=3).plan(store).goal
    assert "orders" not in stage.spec.model_fields_set and stage.spec.limit == 3


def test_evaluation_asks_for_artifacts_of_the_right_kind(store):
    with pytest.raises(ArtifactError, match="checkpoint-0000"):
        EvaluateRequest(checkpoint="checkpoint-0000", prompts="prompts-0000").plan(store)
    with pytest.raises(ValueError, match="either `prompts`"):
        EvaluateRequest(checkpoint="checkpoint-0000")
    with pytest.raises(SpecError):
        from flows.commands.single import request_of

        request_of("evaluate", {"checkpoint": "x", "prompts": "y", "cloze": {"task": "lookup"}}, [])


def test_an_unknown_prefix_is_told_before_any_work(home):
    """left_pad_released fills prompts up to M: of the evaluation, else of the model; others read no prefix."""
    released = ["workloads.pydocs.evaluations.0.evaluate.strategy=left_pad_released"]
    with pytest.raises(SpecError, match="evaluate.prefix_tokens"):
        plan(studies.load("smoke", released), Store())
    plan(studies.load("smoke", [*released, "workloads.pydocs.evaluations.0.evaluate.prefix_tokens=64"]), Store())
    plan(studies.load("smoke", [*released, "architectures=transformer"]), Store())


def test_questions_of_another_task_are_refused_by_the_form():
    with pytest.raises(ValueError, match="must be the same"):
        ClozeRequest(task="squad", questions={"task": "fda", "paths": ["x.jsonl"]})
