"""Sweeps: short trials, the choice on validation rows, and the training that takes it."""

import json
import math

import numpy as np
import pytest

from models import load_model
from storage.artifacts import Store
from storage.errors import SpecError, StageFailed
from storage.shards import ShardWriter
from tasks import pretrain
from tasks.specs import TrainSpec
from tasks.tokenizers import load_tokenizer
from tasks.training import loop, sweep
from tasks.training.data import RowBatches
from tasks.training.loop import Diverged
from tasks.training.spread import Spread
from tasks.training.sweep import Trial
from tests.tasks.test_pretrain import objective
from tests.tasks.training_artifacts import ROWS_SCHEMA, pretrain_spec, rows_artifact, write_rows

VALUES = (0.001, 0.02)
SWEEP = {"field": "optimiser.matrix_learning_rate", "values": VALUES, "share": 0.5}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def rows(store):
    return rows_artifact(store)


class Told:
    """Tracking that keeps tags and tables."""

    def __init__(self):
        self.tags, self.tables = {}, {}

    def metrics(self, *_, **__): ...

    def flush(self): ...

    def tag(self, run_id, tags):
        self.tags |= tags

    def table(self, run_id, rows, name):
        self.tables[name] = rows


def trials_of(spec, store, rows) -> dict[str, str]:
    """The trials trained, by input role."""
    found = spec.train.sweep
    return {sweep.role(value): pretrain.run(spec.model_copy(update={"train": spec.train.at(value, found.share)}), store,
                                            rows=rows) for value in found.values}


def summary(store, artifact) -> dict:
    return json.loads((store.path(artifact) / "summary.json").read_text())


# ------------------------------------------------------------------------------------------------------------ choice
def trial(value, loss, diverged=""):
    return Trial(value, f"trial-{value}", loss, None, diverged)


def test_the_lowest_loss_wins_and_of_equals_the_smaller_value():
    assert sweep.choose("f", [trial(1, 2.0), trial(2, 1.0), trial(3, 1.5)]).value == 2
    assert sweep.choose("f", [trial(1, 2.0), trial(2, 1.0), trial(3, 1.0)]).value == 2
    assert sweep.choose("f", [trial(3, 1.0), trial(2, 1.0)]).value == 2


def test_what_diverged_or_is_no_number_never_wins():
    assert sweep.choose("f", [trial(1, 9.0), trial(2, None)]).value == 1
    assert sweep.choose("f", [trial(1, 9.0), trial(2, 1.0, "training broke at step 3")]).value == 1
    with pytest.raises(StageFailed, match=r"every trial of f diverged \(tried 1, 2\).*broke at step 3"):
        sweep.choose("f", [trial(1, None), trial(2, None, "broke at step 3")])
    with pytest.raises(StageFailed, match="not a number"):
        sweep.choose("f", [trial(1, None)])


@pytest.mark.parametrize("losses, chosen, edge", [
    ((1.0, 2.0, 3.0), 1, "lowest"), ((2.0, 1.0, 3.0), 2, None), ((3.0, 2.0, 1.0), 3, "highest"),
    ((None, 2.0, 3.0), 2, None)])
def test_a_choice_at_the_end_of_the_range_is_marked(losses, chosen, edge):
    value, facts = sweep.outcome("f", [trial(n, loss) for n, loss in enumerate(losses, 1)])
    assert (value, facts["chosen"], facts["edge"]) == (chosen, chosen, edge)
    assert [one["validation_loss"] for one in facts["trials"]] == list(losses)


def test_summaries_without_a_number_are_read_as_none(store):
    def write(loss):
        return store.produce("trial", {"loss": str(loss)}, {}, "code", lambda folder: (folder / "summary.json").write_text(
            json.dumps({"validation_loss": loss})) and None)

    found = sweep.read(store, {0.2: write(math.nan), 0.1: write(1.5), 0.3: write(math.inf)})
    assert [(one.value, one.loss) for one in found] == [(0.1, 1.5), (0.2, None), (0.3, None)]


# -------------------------------------------------------------------------------------------------------------- spec
@pytest.mark.parametrize("change, words", [
    ({"values": [0.1]}, "two or more"), ({"values": [0.1, 0.1]}, "two or more"), ({"values": [0.1, math.nan]}, "finite"),
    ({"share": 0}, "greater than 0"), ({"field": "optimiser.rate"}, "'optimiser.rate' names no number"),
    ({"field": "optimiser"}, "names no number"), ({"field": "steps.x"}, "names no number"),
    ({"field": "trainer"}, "names no number"), ({"values": [-0.1, 0.1]}, "refuses -0.1"), ({"metric": "test"}, "validation"),
])
def test_a_sweep_that_cannot_be_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        TrainSpec.model_validate({"sweep": {**SWEEP, **change}})


def test_a_trial_sweeps_nothing():
    with pytest.raises(ValueError, match="a trial sweeps nothing"):
        TrainSpec.model_validate({"sweep": SWEEP, "trial": 0.5})


def test_a_training_at_one_value_differs_in_that_field_alone():
    spec = TrainSpec.model_validate({"sweep": SWEEP, "optimiser": {"momentum": 0.9}})
    at = spec.at(0.001, trial=0.25)
    assert at.optimiser.matrix_learning_rate == 0.001 and at.sweep is None and at.trial == 0.25
    assert at.optimiser.model_copy(update={"matrix_learning_rate": 0.02}) == spec.optimiser
    assert spec.at(0.001).trial is None
    assert TrainSpec.model_validate({"sweep": {**SWEEP, "values": [0.3, 0.1, 0.2]}}).sweep.values == (0.1, 0.2, 0.3)


# ------------------------------------------------------------------------------------------------------------ spread
def test_a_short_run_sees_the_whole_of_the_data(store, rows):
    whole = RowBatches(store.path(rows), objective())
    short = Spread(whole, 24, 4)                                    # two epochs of twelve batches
    assert len(short) == 4 and short.places == [0, 6, 12, 18]
    for step, place in enumerate(short.places):
        a, b = short.micro_batches(step)[0], whole.micro_batches(place)[0]
        assert (a.ids_BL == b.ids_BL).all()
    assert short.rows_before(4) == 16
    lengths = np.diff(np.concatenate([whole._tokens, whole._tokens[-1] + whole._tokens[1:]]))
    assert short.tokens_before(4) == sum(int(lengths[place]) for place in short.places)
    assert short.tokens_before(1) == int(lengths[0])
    counted = short.lengths_before(4)
    assert sum(counted.values()) == 16
    assert sum((length + 1) * count for length, count in counted.items()) == short.tokens_before(4)


# ---------------------------------------------------------------------------------------------------------- training
def test_trials_then_the_training_with_the_best(store, rows):
    spec = pretrain_spec(sweep=SWEEP)
    trials, tracking = trials_of(spec, store, rows), Told()
    made = pretrain.run(spec, store, rows=rows, tracking=tracking, run_id="r", **trials)
    assert made == pretrain.plan(spec, store, rows=rows, **trials) and made.startswith("checkpoint-")

    losses = {value: summary(store, trials[sweep.role(value)])["validation_loss"] for value in VALUES}
    best = min(losses, key=losses.get)
    facts = summary(store, made)["sweep"]
    assert facts["chosen"] == best == 0.02 and facts["edge"] == "highest"
    assert {one["value"]: one["validation_loss"] for one in facts["trials"]} == losses
    assert [one["artifact"] for one in facts["trials"]] == [trials[sweep.role(value)] for value in VALUES]
    assert store.manifest(made).counts["sweep"] == facts
    assert {role: store.manifest(made).inputs[role] for role in trials} == trials
    assert tracking.tags == {"sweep.field": "optimiser.matrix_learning_rate", "sweep.chosen": 0.02, "sweep.edge": "highest"}
    assert tracking.tables["sweep"] == facts["trials"]

    plain = pretrain.run(pretrain_spec(optimiser=spec.train.at(best).optimiser), store, rows=rows)
    weights = [(store.path(one) / "model.safetensors").read_bytes() for one in (made, plain)]
    assert made != plain and weights[0] == weights[1]                 # nothing but the value came from the sweep


def test_a_trial_keeps_losses_and_no_weights(store, rows):
    spec = pretrain_spec(sweep=SWEEP)
    artifact = trials_of(spec, store, rows)[sweep.role(0.02)]
    assert artifact.startswith("trial-")
    assert sorted(path.name for path in store.path(artifact).iterdir()) == ["curve.jsonl", "manifest.json", "summary.json"]
    found, counts = summary(store, artifact), store.manifest(artifact).counts
    assert found["steps"] == 6 and found["rows"] == 24                # half of twelve batches
    assert counts["validation_loss"] == found["validation_loss"] > 0
    points = [json.loads(line) for line in (store.path(artifact) / "curve.jsonl").read_text().splitlines()]
    assert points[-1]["learning_rate/matrix"] == pytest.approx(0.02 * 0.1)       # its schedule came to its end


def broken_at(value: float, monkeypatch) -> None:
    """Trainings at that rate break at their third step, as one with a loss of infinity does."""
    check = loop._check_finite
    monkeypatch.setattr(loop, "_check_finite", lambda step, what, number, run: check(
        step, what, math.inf if run.spec.optimiser.matrix_learning_rate == value and step == 2 else number, run))


def test_a_trial_that_diverges_is_a_finding(tmp_path, monkeypatch):
    store = Store(tmp_path)
    rows, spec = rows_artifact(store), pretrain_spec(sweep=SWEEP)
    broken_at(0.02, monkeypatch)
    trials = trials_of(spec, store, rows)
    found = summary(store, trials[sweep.role(0.02)])
    assert "step 3 of 6" in found["diverged"] and "validation_loss" not in found
    assert store.manifest(trials[sweep.role(0.02)]).counts["diverged"] == found["diverged"]
    facts = summary(store, pretrain.run(spec, store, rows=rows, **trials))["sweep"]
    assert facts["chosen"] == 0.001 and [one["diverged"] for one in facts["trials"]] == [False, True]
    with pytest.raises(Diverged, match="step 3 of 12"):               # the training proper still fails
        pretrain.run(pretrain_spec(optimiser=spec.train.at(0.02).optimiser), store, rows=rows)


def test_when_all_diverge_the_training_says_so(tmp_path, monkeypatch):
    store = Store(tmp_path)
    rows, spec = rows_artifact(store), pretrain_spec(sweep=SWEEP)
    monkeypatch.setattr(loop, "_check_finite", lambda *_: (_ for _ in ()).throw(Diverged("it broke")))
    trials = trials_of(spec, store, rows)
    monkeypatch.undo()
    with pytest.raises(StageFailed, match="every trial of optimiser.matrix_learning_rate diverged.*it broke"):
        pretrain.run(spec, store, rows=rows, **trials)


def test_test_rows_and_test_scores_are_nowhere_near(store, rows):
    """The choice reads the trials' summaries alone, and those come from validation.arrow."""
    spec = pretrain_spec(sweep=SWEEP)
    made = store.manifest(pretrain.run(spec, store, rows=rows, **trials_of(spec, store, rows)))
    assert set(made.inputs) == {"rows", *(sweep.role(value) for value in VALUES)}


def test_a_sweep_without_validation_rows_is_refused(tmp_path):
    store = Store(tmp_path)

    def build(folder):
        write_rows(folder / "train.arrow", 4, seed=0)
        load_tokenizer("bytes").save(folder / "tokenizer")

    rows = store.produce("rows", {"kind": "recall"}, {}, "test", build)
    with pytest.raises(SpecError, match="validation rows.*validation_tokens"):
        trials_of(pretrain_spec(sweep=SWEEP), store, rows)


def test_set_intersection_without_bytes_is_chosen_by_loss(tmp_path):
    store = Store(tmp_path)

    def build(folder):
        load_tokenizer("ids:64").save(folder / "tokenizer")
        for name in ("train", "validation"):
            with ShardWriter(folder / f"{name}.arrow", ROWS_SCHEMA) as writer:
                for batch in range(4):
                    for row in range(4):
                        writer.append({"ids": [1, 5 + row, 9, 2, 9, 20 + batch, 3, 9], "prefix": 7, "answers": [6],
                                       "order": "small_first", "form": "disjoint", "batch": batch, "document": ""})

    rows = store.produce("rows", {"kind": "disjoint", "vocabulary": 64}, {}, "test", build)
    spec = pretrain_spec(sweep=SWEEP, objective={"mask_share": 0.0})
    facts = summary(store, pretrain.run(spec, store, rows=rows, **trials_of(spec, store, rows)))["sweep"]
    assert all(one["validation_loss"] > 0 for one in facts["trials"])


# ---------------------------------------------------------------------------------------------------------- identity
def test_ids_follow_the_trials_and_nothing_changes_without_a_sweep(store, rows):
    spec = pretrain_spec(sweep=SWEEP)
    ids = {sweep.role(value): f"trial-{number:016x}" for number, value in enumerate(VALUES)}
    planned = pretrain.plan(spec, store, rows=rows, **ids)
    assert planned == pretrain.plan(spec, store, rows=rows, **ids)
    assert planned != pretrain.plan(spec, store, rows=rows, **{**ids, sweep.role(0.02): "trial-f000000000000000"})
    resolved, inputs, _ = pretrain._identity(pretrain_spec(), rows, None)
    assert not {"sweep", "trial"} & resolved["train"].keys() and set(inputs) == {"rows"}
    trial = spec.model_copy(update={"train": spec.train.at(0.02, trial=0.5)})
    longer = spec.model_copy(update={"train": spec.train.at(0.02, trial=0.75)})
    assert len({pretrain.plan(one, store, rows=rows) for one in (trial, longer)}) == 2


@pytest.mark.parametrize("trials", [{}, {"trial_0.02": "trial-0"}, {"trial_0.02": "trial-0", "trial_0.3": "trial-1"}])
def test_trials_that_do_not_fit_the_sweep_are_refused(store, rows, trials):
    with pytest.raises(SpecError, match="trial_0.001, trial_0.02"):
        pretrain.plan(pretrain_spec(sweep=SWEEP), store, rows=rows, **trials)


def test_the_model_of_a_sweep_is_an_ordinary_checkpoint(store, rows):
    spec = pretrain_spec(sweep=SWEEP)
    made = pretrain.run(spec, store, rows=rows, **trials_of(spec, store, rows))
    assert load_model(store.path(made)).config.width == 32
