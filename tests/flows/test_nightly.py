"""Nights with a controlled clock: a real registry and ledger on SQLite, real prompts, real scores and statistics."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from flows.nights import ledger as ledgers
from flows.nights import trend
from flows.nights.clock import Clock
from flows.nights.due import suite_version
from flows.nights.ledger import Ledger, NightUnderWay, alone
from flows.nights.outcome import Outcome, Verdict
from flows.nights.page import markdown
from flows.nights.publish import publish
from flows.suites import Suite
from storage.errors import ServiceError, TrackingAway, TrackingError
from tests.flows.nights import SUITE, World


@pytest.fixture(scope="module")
def beginning(tmp_path_factory):
    """A home with an empty MLflow and a corpus: making that takes seconds, copying it does not."""
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.mktemp("nights") / "home"
        patch.setenv("REREAD_HOME", str(place))
        for name in ("RAY_ADDRESS", "PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
            patch.delenv(name, raising=False)
        world = World(place, patch)
        world.tracking.experiment("quick")
        world.tracking.close()
        return world.store.root


@pytest.fixture
def world(beginning, home, monkeypatch) -> World:
    shutil.copytree(beginning, home)
    return World(home, monkeypatch)


def results(outcome: Outcome, kind: str) -> dict[str, str]:
    return {verdict.what: verdict.result for verdict in outcome.verdicts if verdict.kind == kind}


def test_five_nights(world):
    model = "quick-pydocs"

    # 2 March: a new model
    world.register(0.6)
    first = world.night()
    [one] = first.outcomes
    assert (one.version, one.reason, one.failure) == ("1", "new", "") and first.regressions == []
    assert one.alias == "best-tiny" and world.registry.aliases(model) == {"best-tiny": "1"}
    assert set(one.tasks) == {"pydocs", "lookup"}
    columns = [one.cells[cell][0] for cell in ("pydocs/natural/default", "pydocs/swap/default", "lookup/list/default")]
    assert one.suite[0] == pytest.approx(sum(columns) / 3, abs=1e-5)          # every column counts the same
    tags = world.tags("1")
    assert tags["suite"] == f"tests {first.suite_version}" and tags["scores.lookup"] == one.scores["lookup"]
    assert tags["pydocs/swap/twice"].startswith(f"{one.cells['pydocs/swap/twice'][0]:.3f} [")

    # 3 March: no change
    world.later()
    world.asked.clear()
    second = world.night()
    assert not second.work and second.up_to_date == 1 and world.asked == []
    assert second.headline() == "nothing to do: 1 version had its scores"
    assert world.planned().ledger.last_finished("tests") == datetime(2026, 3, 3, 2, tzinfo=UTC)

    # 4 March: other prompts
    world.later()
    changed = json.loads(json.dumps(SUITE))
    changed["evaluations"][0]["cloze"]["seed"] = 7
    world.suite = Suite.model_validate(changed)
    third = world.night()
    [one] = third.outcomes
    assert third.suite_version != first.suite_version and one.reason == "prompts changed"
    assert results(one, "before") == {"suite": "not comparable"} and third.regressions == []
    assert "the prompts changed" in markdown(third) and one.alias_note == "it is best-tiny"
    assert world.asked and not any("lookup" in title for title in world.asked)       # the other evaluation stands

    # 5 March: a regression
    world.later()
    world.register(0.1)
    fourth = world.night()
    [one] = fourth.outcomes
    assert one.version == "2" and results(one, "previous")["suite"] == "worse"
    assert {verdict.against for _, verdict in fourth.regressions} == {"version 1"}
    assert world.registry.aliases(model) == {"best-tiny": "1"} and not one.alias
    page = markdown(fourth)
    assert "## Worse than before" in page and f"{fourth.comparisons} paired comparisons" in page
    assert "## Alias of the best\n\n* quick-pydocs version 2: best-tiny stays with version 1\n" in page
    assert page.count("| the whole suite |") == page.count("| the whole suite, for the alias |") == 1
    assert fourth.comparisons == len(one.verdicts) == 4            # suite, two evaluations, and the alias
    assert fourth.summary()["regressions"][0]["model"] == "quick-pydocs version 2"

    # 6 March: nobody was there. 7 March: once, although two nights were due
    world.later(2)
    world.register(0.98)
    assert not world.planned().is_done()
    fifth = world.night()
    assert fifth.due == datetime(2026, 3, 7, 2, tzinfo=UTC)
    assert world.planned().is_done()                              # a late run of 6 March finds it done
    [one] = fifth.outcomes
    assert one.alias == "best-tiny" and world.registry.aliases(model) == {"best-tiny": "3"}
    nights = Ledger(world.tracking).nights("tests")
    assert [(night.at.day, night.status) for night in nights] == [(2, "FINISHED"), (3, "FINISHED"), (4, "FINISHED"),
                                                                  (5, "FINISHED"), (7, "FINISHED")]
    assert nights[3].outcomes == tuple(fourth.outcomes)           # what the ledger gives back is what was found


def test_changed_code_is_evaluated_again_and_compared_with_the_answers_before(world):
    world.register(0.8)
    world.night()
    world.later()
    world.code = "2"
    same = world.night()
    assert same.outcomes[0].reason == "code or settings changed"
    assert results(same.outcomes[0], "before") == {"suite": "even", "pydocs": "even", "lookup": "even"}
    world.later()
    world.code, world.skills = "3", dict.fromkeys(world.skills, 0.2)
    worse = world.night()
    assert results(worse.outcomes[0], "before")["suite"] == "worse" and worse.regressions
    assert world.registry.aliases("quick-pydocs") == {"best-tiny": "1"}


def test_the_alias_stays_while_the_interval_includes_zero(world):
    world.register(0.6)
    world.night()
    world.register(0.63)
    close = world.night().outcomes[0]
    [verdict] = [verdict for verdict in close.verdicts if verdict.kind == "alias"]
    assert verdict.difference[0] > 0 >= verdict.difference[1]      # better, and not sure
    assert verdict.result == "even" and "includes zero" in close.alias_note
    assert world.registry.aliases("quick-pydocs") == {"best-tiny": "1"}
    world.register(0.6)
    lower = world.night()
    [verdict] = [one for one in lower.outcomes[0].verdicts if (one.kind, one.what) == ("previous", "suite")]
    assert verdict.difference[0] < 0 <= verdict.difference[2] and verdict.result == "even" and not lower.regressions


def test_a_regression_is_told_once(world):
    world.register(0.9)
    world.register(0.3)
    assert world.night().regressions
    world.later()
    world.code = "2"
    again = world.night()
    assert len(again.outcomes) == 2 and not again.regressions and not results(again.outcomes[1], "previous")


def test_the_first_of_a_size_must_be_above_its_controls(world):
    world.register(0.0)
    none = world.night().outcomes[0]
    assert not none.alias and world.registry.aliases("quick-pydocs") == {}
    assert none.alias_note == "nobody is best-tiny: this one is not above its controls"
    world.register(0.9, size="1-3b", model="jrt-1.3b")
    other = world.night().outcomes[0]
    assert other.alias == "best-1-3b" and not results(other, "previous")     # of another size: no version before it
    world.register(0.4)
    assert world.night().outcomes[0].alias == "best-tiny"                    # the better one is of another size


def test_a_version_is_compared_with_that_of_its_seed_and_says_so_where_there_is_none(world):
    world.register(0.9)
    world.register(0.3, seed="1")
    world.register(0.9, seed="0")
    found = {one.version: one for one in world.night().outcomes}
    assert {verdict.against for verdict in found["2"].verdicts if verdict.kind == "previous"} == {
        "version 1 (seed 0, not 1)"}
    assert results(found["3"], "previous") == {"suite": "even", "pydocs": "even", "lookup": "even"}


def test_a_model_that_fails_does_not_stop_the_others_and_is_tried_again(world):
    world.register(0.9)
    broken = list(world.skills)[0]
    world.breaks.add(broken)
    world.register(0.5)
    night = world.night()
    assert [(one.version, bool(one.failure)) for one in night.outcomes] == [("1", True), ("2", False)]
    assert "the weights are damaged" in markdown(night) and "scores.lookup" not in world.tags("1")
    assert results(night.outcomes[1], "previous") == {"suite": "not comparable"}
    assert night.headline().startswith("1 evaluated, 1 failed, best-tiny is now quick-pydocs version 2")
    world.breaks.clear()
    world.later()
    again = world.night()
    assert [(one.version, one.failure, one.alias) for one in again.outcomes] == [("1", "", "best-tiny")]


def test_a_service_that_is_away_is_no_failure_of_a_model(world):
    world.register(0.9)

    def away(entry):
        raise ServiceError("Ray at local did not start")

    with pytest.raises(ServiceError):
        world.planned(evaluate=away).run()
    assert [night.outcomes for night in Ledger(world.tracking).nights("tests")] == [()]
    assert [one.failure for one in world.night().outcomes] == [""]


@pytest.mark.parametrize("where", ["evaluate", "aliases"])
def test_a_store_that_goes_away_ends_the_night_and_is_no_failure_of_a_model(world, monkeypatch, where):
    world.register(0.9)

    def away(*given):
        raise TrackingAway("tracking store x does not answer")

    monkeypatch.setattr(world if where == "evaluate" else world.registry, where, away)
    with pytest.raises(TrackingAway):
        world.planned().run()
    assert [night.outcomes for night in Ledger(world.tracking).nights("tests")] == [()]


def test_an_alias_that_could_not_move_since_the_store_went_away_moves_the_next_night(world, monkeypatch):
    world.register(0.9)
    move = world.registry.move

    def away(*given):
        raise TrackingAway("tracking store x does not answer")

    monkeypatch.setattr(world.registry, "move", away)
    with pytest.raises(TrackingAway):
        world.planned().run()
    assert "suite" not in world.tags("1")
    monkeypatch.setattr(world.registry, "move", move)
    world.later()
    night = world.night()
    assert [one.alias for one in night.outcomes] == ["best-tiny"] and night.carried == []
    assert world.registry.aliases("quick-pydocs") == {"best-tiny": "1"}


def test_a_version_that_is_deleted_meanwhile_does_not_stop_the_others(world, monkeypatch):
    world.register(0.9)
    world.register(0.5, seed="1")
    tag = world.registry.tag

    def deleted(version, tags):
        if version.number == "1":
            raise TrackingError("tracking store x refuses: Model Version (version=1) not found")
        tag(version, tags)

    monkeypatch.setattr(world.registry, "tag", deleted)
    night = world.night()
    assert [(one.version, bool(one.failure)) for one in night.outcomes] == [("1", True), ("2", False)]
    assert "could not be written" in night.outcomes[0].failure and "suite" in world.tags("2")
    assert [bool(one.failure) for one in Ledger(world.tracking).nights("tests")[0].outcomes] == [True, False]


def test_an_alias_that_nobody_has_goes_to_none_that_is_worse_than_another(world):
    """The version that had it was deleted; the next one is above its controls, and still no match for the first."""
    world.register(0.9)
    world.night()
    with world.registry._store() as store:
        store.delete_registered_model_alias("quick-pydocs", "best-tiny")
    world.later()
    world.register(0.4)
    worse = world.night().outcomes[0]
    assert not worse.alias and world.registry.aliases("quick-pydocs") == {}
    assert worse.alias_note == "nobody is best-tiny: this one is worse than version 1"
    assert results(worse, "alias") == {"suite": "worse"}
    world.later()
    world.register(0.95)
    assert world.night().outcomes[0].alias == "best-tiny"


def test_another_order_is_compared_from_the_next_night_on(world):
    world.register(0.6)
    first = world.night()
    world.later()
    world.suite = Suite.model_validate({**SUITE, "order": "twice"})
    world.asked.clear()
    second = world.night()
    [one] = second.outcomes
    assert second.suite_version != first.suite_version and one.reason == "code or settings changed" and world.asked == []
    assert world.tags("1")["suite"] == f"tests {second.suite_version}" and not second.regressions
    world.later()
    assert not world.night().work


def test_runs_of_a_night_through_prefect_say_which_suite_asks(world, tmp_path, monkeypatch):
    import yaml

    from flows import nightly

    world.register(0.6)
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(SUITE))
    plans = []
    monkeypatch.setattr(nightly, "Runner", lambda plan, store: SimpleNamespace(run=lambda: plans.append(plan)))
    nightly.evaluate_version.fn("models:/quick-pydocs/1", str(tmp_path / "tests.yaml"))
    assert {stage.tags["suite"] for stage in plans[0].stages.values()} == {
        f"tests {suite_version(world.suite, world.store)}"}


def test_a_kill_while_a_night_takes_over_loses_nothing(world, monkeypatch):
    found = Outcome("a", "1", suite=(0.5, 0.4, 0.6))
    first, rest = Ledger(world.tracking), ("tests", "0", world.now, world.now, "2026-03-02")
    first.open(*rest)
    first.write(found)
    first.write(Outcome("a", "2", failure="tried again anyway"))
    start = world.tracking.start
    monkeypatch.setattr(world.tracking, "start", crash_at(start, 1))
    with pytest.raises(KeyboardInterrupt):
        Ledger(world.tracking).open(*rest)
    monkeypatch.setattr(world.tracking, "start", start)
    monkeypatch.setattr(Ledger, "write", crash_at(Ledger.write, 1))
    with pytest.raises(KeyboardInterrupt):
        Ledger(world.tracking).open(*rest)
    monkeypatch.undo()
    assert Ledger(world.tracking).open(*rest) == [found]
    assert [night.status for night in Ledger(world.tracking).nights("tests")] == ["KILLED", "KILLED", "RUNNING"]
    assert Ledger(world.tracking).open(*rest) == [found], "in the night that took it over"


@pytest.mark.parametrize("error, status", [(KeyboardInterrupt(), "KILLED"), (OSError("the disk is full"), "FAILED")])
def test_a_night_that_is_left_before_its_end_is_abandoned(world, error, status):
    world.register(0.9)
    with pytest.raises(type(error)), world.planned().under_way() as report:
        assert report.work
        raise error
    assert [night.status for night in Ledger(world.tracking).nights("tests")] == [status]


def test_a_killed_night_goes_on_and_loses_nothing(world, monkeypatch):
    """Killed first between two evaluations, then between the alias and the tags of the first version."""
    world.register(0.7)
    world.register(0.2, seed="1")
    evaluated = world.evaluate

    def second_is_killed(entry):
        if entry.version.number == "2":
            raise KeyboardInterrupt
        evaluated(entry)

    with pytest.raises(KeyboardInterrupt):
        world.planned(evaluate=second_is_killed).run()
    assert "evaluate jrt seed 0 on pydocs" in world.asked
    world.asked.clear()
    world.later()
    tag = world.registry.tag

    def killed(version, tags):
        raise KeyboardInterrupt

    monkeypatch.setattr(world.registry, "tag", killed)
    with pytest.raises(KeyboardInterrupt):
        world.planned().run()
    assert [title for title in world.asked if title.startswith("evaluate")] == [
        "evaluate jrt seed 1 on pydocs", "evaluate jrt seed 1 on lookup"]            # the first one's answers were kept
    assert world.registry.aliases("quick-pydocs") == {"best-tiny": "1"}
    assert "suite" not in world.tags("1")

    monkeypatch.setattr(world.registry, "tag", tag)
    world.asked.clear()
    world.later()
    last = world.night()
    assert world.asked == [] and [one.version for one in last.outcomes] == ["1", "2"]
    assert last.outcomes[0].alias == "best-tiny"                   # that move is reported, once
    assert last.regressions and last.outcomes[1].version == "2"
    assert [night.status for night in Ledger(world.tracking).nights("tests")] == ["KILLED", "KILLED", "FINISHED"]
    world.later()
    assert not world.night().work


def test_what_a_killed_night_had_written_whole_is_reported_by_the_next(world, monkeypatch):
    world.register(0.7)
    world.register(0.1)
    monkeypatch.setattr("flows.nights.night.Ledger.write", crash_at(Ledger.write, 2))
    with pytest.raises(KeyboardInterrupt):
        world.planned().run()
    monkeypatch.undo()
    monkeypatch.setenv("REREAD_HOME", world.store.root)
    world = restored(world, monkeypatch)
    world.later()
    last = world.night()
    assert [one.version for one in last.carried] == ["1"] and [one.version for one in last.outcomes] == ["2"]
    assert [one.name for one in last.moves] == ["quick-pydocs version 1"]


def crash_at(method, call: int):
    calls = []

    def crashing(*arguments):
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return method(*arguments)
    return crashing


def restored(world: World, monkeypatch) -> World:
    """The stand-ins for the model once more, after `undo` took them away."""
    from tasks import evaluate

    monkeypatch.setattr(evaluate, "_asked", world._answers)
    monkeypatch.setattr(evaluate, "_code", lambda mixers, checkpoint: world.code)
    return world


def test_models_that_cannot_be_asked_are_named_and_do_not_fail_a_night(world):
    world.register(0.9)
    world.registry.tag(world.registry.version("models:/quick-pydocs/1"), {"checkpoint": "checkpoint-0123456789abcdef"})
    numbers = world.store.produce("rows", {"kind": "disjoint", "vocabulary": 256}, {}, "0", lambda folder: None)
    ids = world.store.produce("checkpoint", {"of": "ids"}, {"rows": numbers}, "0", lambda folder: None)
    world.register(0.9, name="quick-disjoint")
    world.registry.tag(world.registry.version("models:/quick-disjoint/1"), {"checkpoint": ids})
    night = world.night()
    assert night.outcomes == [] and not night.failed
    assert "no complete artifact checkpoint-0123456789abcdef" in night.not_asked["quick-pydocs version 1"]
    assert "ids:256" in night.not_asked["quick-disjoint version 1"]


def test_a_suite_is_for_the_models_that_it_names(world):
    world.register(0.9)
    world.register(0.9, name="other")
    world.suite = Suite.model_validate({**SUITE, "models": "quick-*"})
    assert [entry.version.name for entry in world.planned().look()] == ["quick-pydocs"]


def test_two_nights_do_not_overlap(home):
    with alone(), pytest.raises(NightUnderWay, match=r"another nightly evaluation is at work \(process \d+\)"), alone():
        pass
    with alone():
        pass


def test_a_registry_that_is_away_is_one_sentence_and_the_night_is_not_done(world, monkeypatch):
    def away():
        raise TrackingError("tracking store x does not answer")

    monkeypatch.setattr(world.registry, "versions", away)
    with pytest.raises(TrackingError):
        world.planned().run()
    monkeypatch.undo()
    assert Ledger(world.tracking).last_finished("tests") is None


def test_a_long_outcome_comes_back_whole(world, monkeypatch):
    monkeypatch.setattr(ledgers, "PART", 100)
    outcome = Outcome("a", "1", tasks={f"t{k}": (0.1, 0.05, None) for k in range(40)},
                      verdicts=[Verdict("before", "suite", "its earlier answers", "worse", (-0.2, -0.3, -0.1))])
    ledger = Ledger(world.tracking)
    ledger.open("tests", "0", world.now, world.now, "2026-03-02")
    ledger.write(outcome)
    ledger.finish({"headline": "x" * 300}, {"a b/c": 1.0})
    [night] = ledger.nights("tests")
    assert night.outcomes == (outcome,) and night.summary["headline"] == "x" * 300


def test_a_night_is_kept_with_its_page_and_a_trend_of_every_task(world):
    from mlflow import MlflowClient

    world.register(0.5)
    publish(night := world.planned(), night.run())
    world.later()
    world.register(0.95)
    page = publish(night := world.planned(), night.run(), "http://127.0.0.1:5050")
    assert "http://127.0.0.1:5050/#/experiments/" in page and night.ledger.run in page
    client = MlflowClient(world.tracking.uri)
    assert {file.path for file in client.list_artifacts(night.ledger.run)} == {"night.md", "trend"}
    assert {file.path for file in client.list_artifacts(night.ledger.run, "trend")} == {
        f"trend/quick-pydocs.{label}.png" for label in ("pydocs", "lookup", "suite")}
    run = client.get_run(night.ledger.run)
    assert run.info.status == "FINISHED" and run.data.metrics["alias moves"] == 1
    assert run.data.metrics["quick-pydocs/2/suite"] == run.data.metrics["best-tiny/quick-pydocs"] or abs(
        run.data.metrics["quick-pydocs/2/suite"] - run.data.metrics["best-tiny/quick-pydocs"]) < 6e-4
    lines = trend.points(Ledger(world.tracking).nights("tests"), "quick-pydocs", "suite")
    assert [(point.version, point.alias, point.worse) for point in lines["jrt tiny"]] == [
        ("1", "best-tiny", False), ("2", "best-tiny", False)]


def test_lines_break_where_prompts_changed(world):
    at = datetime(2026, 3, 2, 2, tzinfo=UTC)
    one = Outcome("m", "1", "jrt", "tiny", reason="new", suite=(0.4, 0.3, 0.5), tasks={"a": (0.4, 0.3, 0.5)})
    nights = [ledgers.Past("r", "tests", "0", at + timedelta(days=k), at + timedelta(days=k), "FINISHED", (
        replace(one, reason=reason),), {}) for k, reason in enumerate(("new", "code or settings changed", "prompts changed"))]
    [own] = trend.points(nights, "m", "a").values()
    assert trend._parts(own) == [[0, 1], [2]]


@pytest.mark.parametrize(("apart", "whole"), [
    (timedelta(0), trend.SHORTEST), (timedelta(minutes=9), timedelta(minutes=9)), (timedelta(days=1), trend.SHORTEST),
    (timedelta(days=90), timedelta(days=90))])
def test_nights_of_one_day_are_drawn_apart(apart, whole):
    at = datetime(2026, 3, 2, 2, tzinfo=UTC)
    nights = [ledgers.Past("r", "tests", "0", each, each, "FINISHED", (), {}) for each in (at, at + apart)]
    assert trend._step(nights) == whole / 90


def test_a_task_without_any_score_stops_no_plot(tmp_path):
    at = datetime(2026, 3, 2, 2, tzinfo=UTC)
    one = Outcome("m", "1", "jrt", "tiny", suite=(0.4, 0.3, 0.5), tasks={"a": (None, None, None), "b": (0.4, 0.3, 0.5)})
    made = trend.draw([ledgers.Past("r", "tests", "0", at, at, "FINISHED", (one,), {})], tmp_path)
    assert [path.name for path in made] == ["m.b.png", "m.suite.png"]


def test_the_clock_knows_when_nights_are_due():
    clock, now = Clock("30 2 * * 1-5", "Europe/Zurich"), datetime(2026, 3, 8, 12, tzinfo=UTC)      # a Sunday
    assert clock.last_due(now) == datetime(2026, 3, 6, 1, 30, tzinfo=UTC)
    assert clock.next_due(now, 1) == [datetime(2026, 3, 9, 1, 30, tzinfo=UTC)]
    assert clock.night(datetime(2026, 3, 8, 23, 30, tzinfo=UTC)) == "2026-03-09"
    assert Clock("0 3 1 1 *", "UTC").last_due(now) == datetime(2026, 1, 1, 3, tzinfo=UTC)
    assert Clock("* * * * 1", "UTC").last_due(now) == datetime(2026, 3, 2, 23, 59, tzinfo=UTC)     # past 1,000 dates
