"""The shipped studies of the papers' tables: each plans at its CPU size, its published size is what its header says, its
claims are claims, and what is said to be shared between studies is the same."""

import re

import pytest

from flows import studies
from flows.planning.builder import plan, trainings
from flows.planning.checks import check_vocabulary, tokenizer_of
from models.sizing import Sketch
from storage.artifacts import Store
from tasks.claims.registry import load as claims
from tasks.pretrain import resolve_config

PAPERS = ("jrt-prompt", "order", "jrt-table2", "jrt-table3", "padding", "errors", "few-shot", "slices", "extrapolation",
          "jrt-ablation", "lavo-ablation", "deploy")
TRAINED_ALIKE = ("fda", "jrt-table2", "jrt-table3", "padding", "order", "errors", "few-shot", "deploy")


def published(name: str) -> list[str]:
    """The settings in the header of a study's file; a line that is indented more goes on with the one before."""
    settings: list[str] = []
    for line in studies.find(name).read_text(encoding="utf-8").splitlines():
        if match := re.match(r"#   --set (.*)", line):
            settings.append(match[1])
        elif settings and (match := re.match(r"#       (.*)", line)):
            settings[-1] += " " + match[1]
        elif not line.startswith("#"):
            break
    return settings


def everything(name: str):
    """The study at its CPU size and at its published size."""
    return studies.load(name), studies.load(name, published(name))


def test_all_studies_of_the_papers_are_shipped():
    assert {*PAPERS, "fda"} <= set(studies.shipped())


@pytest.mark.parametrize("name", PAPERS)
def test_a_study_says_what_it_asks_and_where_it_comes_from(name):
    study, head = studies.load(name), studies.find(name).read_text(encoding="utf-8").split("\nname:")[0]
    assert study.question.endswith("?") and study.about and study.estimated_minutes >= 5
    assert "CPU size" in head and "Published size" in head and "--set data=FOLDER" in head
    assert all(line.startswith("#") or not line for line in head.splitlines())


@pytest.mark.parametrize("name", PAPERS)
def test_the_published_size_in_the_header_is_one_that_can_be_trained(name):
    settings, study = published(name), everything(name)[1]
    assert settings
    for workload in study.workloads.values():
        for spec in trainings(workload):
            check_vocabulary(spec, tokenizer_of(workload.rows, workload.tokenise))
            assert Sketch(resolve_config(spec)).parameters > 10**8 or workload.tokenise.tokenizer != "gpt2"
    assert "published" not in str(study.data)


@pytest.mark.parametrize("name", PAPERS)
def test_every_claim_is_one_and_belongs_to_a_cell_of_the_study(name):
    cells = set()
    for study in everything(name):
        for workload, work in study.workloads.items():
            labels = {one.label for one in work.evaluations} | {"average"} | set(work.extrapolations) | set(work.perplexities)
            cells |= {(workload, architecture, label) for architecture in work.architectures for label in labels}
    for cell, names in studies.load(name).claims.items():
        assert tuple(cell.split("/")[:3]) in cells, cell
        assert len(cell.split("/")) == 5, cell
        for claim_id in names.split(","):
            claims().get(claim_id.strip())


def test_what_is_called_shared_is_trained_alike():
    """Otherwise every study would train its own models, and say that it does not."""
    first = studies.load("fda").workloads["text"]
    for name in TRAINED_ALIKE:
        workload = studies.load(name).workloads["text"]
        for field in ("corpus", "training_questions", "tokenise", "rows", "train", "seeds"):
            assert getattr(workload, field) == getattr(first, field), (name, field)
    found = {}
    for name in TRAINED_ALIKE:
        for label, one in studies.load(name).workloads["text"].architectures.items():
            assert found.setdefault(label, one) == one, (name, label)


def test_gated_delta_net_and_lavo_stand_wherever_the_list_is_free():
    for name in ("jrt-table2", "jrt-table3", "order", "errors", "few-shot", "slices", "deploy"):
        for workload in studies.load(name).workloads.values():
            assert {"gated_delta_net", "lavo"} <= set(workload.architectures), name
    assert {"vanilla", "rope", "local", "abc", "long_short", "s4d", "lavo"} <= set(
        studies.load("extrapolation").workloads["table2"].architectures)


# ------------------------------------------------------------------------------------------------------------ ablation
MIXES, ENCODERS = ("linear", "window", "conv"), ("separate", "shared")


def steps(workload: str) -> dict[str, int]:
    work = studies.load("jrt-ablation").workloads[workload]
    return {spec.architecture: spec.train.steps for spec in trainings(work)}


def test_the_ablation_is_a_full_grid_at_three_budgets():
    grid = {f"{mix}-causal" for mix in MIXES} | {f"{mix}-{encoder}{loss}" for mix in MIXES for encoder in ENCODERS
                                                for loss in ("", "-nomlm")}
    study = studies.load("jrt-ablation")
    assert list(study.workloads) == ["equal_tokens", "equal_supervised", "equal_flops"]
    for name, work in study.workloads.items():
        assert set(work.architectures) == grid
        for spec in trainings(work):
            assert (spec.train.objective.mask_share == 0) == spec.architecture.endswith("-nomlm"), (name, spec.architecture)
            kinds = {mixer.kind for mixer in resolve_config(spec).mixers.values() if mixer.kind in ("based", "prefix")}
            assert {"based" if "causal" in spec.architecture else "prefix"} <= kinds


def test_equal_tokens_are_equal_steps_and_equal_flops_are_equal_flops():
    assert set(steps("equal_tokens").values()) == {1400}
    taken = {}
    for spec in trainings(studies.load("jrt-ablation").workloads["equal_flops"]):
        config = resolve_config(spec)
        assert set(config.plan) <= set(config.mixers)
        taken[spec.architecture] = spec.train.steps * Sketch(config).cost(150).flops
    for name, flops in taken.items():
        assert flops == pytest.approx(taken[f"{name.split('-')[0]}-causal"], rel=0.005), name


def test_equal_supervision_follows_from_the_positions_that_a_step_supervises():
    """Those stand in the header; they were counted over the rows of this study."""
    head = studies.find("jrt-ablation").read_text(encoding="utf-8").split("name:")[0]
    causal, masked, plain = (float(number) for number in re.findall(r"\d{3}\.\d", head)[:3])
    found = steps("equal_supervised")
    for name, taken in found.items():
        each = causal if name.endswith("-causal") else plain if name.endswith("-nomlm") else masked
        assert taken * each == pytest.approx(found["conv-causal"] * causal, rel=0.001), name
    assert 60000 / 104348 == pytest.approx(0.575, rel=0.001)


# ---------------------------------------------------------------------------------------------------------------- plans
def planned(name: str, shared, tmp_path):
    """The study's plan on the sample data."""
    return plan(studies.load(name, [f"data={shared / 'data'}"]), Store(tmp_path))


def test_a_study_of_given_models_plans_without_training(shared, tmp_path):
    stages = planned("jrt-prompt", shared, tmp_path).stages.values()
    assert sum(stage.kind == "evaluate" for stage in stages) == 6 and not any(stage.kind == "pretrain" for stage in stages)


@pytest.mark.long
def test_a_study_of_one_set_of_models_trains_each_once(shared, tmp_path):
    stages = planned("deploy", shared, tmp_path).stages.values()
    kinds = [stage.kind for stage in stages]
    assert (kinds.count("pretrain"), kinds.count("evaluate"), kinds.count("deploy"), kinds.count("questions")) == (6, 24, 6, 2)


@pytest.mark.long
@pytest.mark.parametrize("name", ["fda", *PAPERS])
def test_every_study_plans_on_the_sample_data(shared, tmp_path, name):
    found = planned(name, shared, tmp_path)
    assert found.goal.kind == "report" and not found.finished
    assert {stage.kind for stage in found.stages.values()} >= {"report"}


@pytest.mark.long
def test_studies_share_what_they_train(shared, tmp_path):
    """fda's models are among those of jrt-table2."""
    names = [{stage.artifact for stage in planned(name, shared, tmp_path).stages.values() if stage.kind == "pretrain"}
             for name in ("fda", "padding")]
    assert len(names[0]) == 3 and len(names[0] & names[1]) == 2
