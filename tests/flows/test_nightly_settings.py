"""What is set around nights: schedule, suites, the deployment, missed nights, the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect.exceptions import ObjectNotFound

from flows import deployments, suites
from flows.nights import deployment as nights
from flows.nights.clock import Clock
from flows.nights.ledger import Ledger
from flows.nights.night import Night
from storage.errors import SpecError

NOW = datetime(2026, 3, 7, 9, tzinfo=UTC)
DUE = datetime(2026, 3, 7, 2, tzinfo=UTC)


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in ("REREAD_NIGHTLY_CRON", "REREAD_NIGHTLY_TIMEZONE"):
        monkeypatch.delenv(name, raising=False)


# ----------------------------------------------------------------------------------------------------------- settings
def test_without_settings_nights_are_at_two_utc():
    assert Clock.from_settings() == Clock("0 2 * * *", "UTC")


def test_settings_are_read(monkeypatch):
    monkeypatch.setenv("REREAD_NIGHTLY_CRON", "30 3 * * 1-5")
    monkeypatch.setenv("REREAD_NIGHTLY_TIMEZONE", "Europe/Zurich")
    [schedule] = nights.schedules()
    assert (schedule.cron, schedule.timezone, schedule.active, schedule.slug) == ("30 3 * * 1-5", "Europe/Zurich", True, "nightly")
    assert schedule.parameters == {"request": {"only_if_due": True}}


@pytest.mark.parametrize("name, value, words", [
    ("REREAD_NIGHTLY_CRON", "at two", "expected five fields"), ("REREAD_NIGHTLY_CRON", "99 2 * * *", "expected five fields"),
    ("REREAD_NIGHTLY_CRON", "0 0 2 * * *", "'off'"), ("REREAD_NIGHTLY_TIMEZONE", "Mars/Olympus", "name of a time zone")])
def test_a_setting_that_cannot_be_read_is_one_sentence(monkeypatch, name, value, words):
    monkeypatch.setenv(name, value)
    with pytest.raises(SpecError, match=words) as refusal:
        Clock.from_settings()
    assert name in str(refusal.value) and repr(value) in str(refusal.value) and "\n" not in str(refusal.value)


def test_off_means_never_by_itself(monkeypatch):
    monkeypatch.setenv("REREAD_NIGHTLY_CRON", "off")
    clock = Clock.from_settings()
    assert clock.last_due(NOW) is None and clock.next_due(NOW) == []
    assert [schedule.active for schedule in nights.schedules()] == [False]
    assert nights.catch_up(Server(), NOW, ledger=Past(None)) is None


# --------------------------------------------------------------------------------------------------------- deployment
def test_the_deployment_has_the_schedule_and_one_run_at_a_time():
    [one] = [each for each in deployments.deployments() if each.name == "nightly-evaluation"]
    [schedule] = one.schedules
    assert (schedule.schedule.cron, schedule.schedule.timezone, schedule.slug) == ("0 2 * * *", "UTC", "nightly")
    assert one.concurrency_limit == 1 and one.concurrency_options.collision_strategy.value == "ENQUEUE"


def existing(cron: str, slug: str | None, active: bool = True):
    return SimpleNamespace(schedule=SimpleNamespace(cron=cron, timezone="UTC"), slug=slug, active=active, parameters={"a": 1})


def test_what_a_person_changed_on_the_page_survives_a_restart(monkeypatch):
    found = nights.merged([existing("15 4 * * *", "nightly", active=False), existing("0 12 * * 0", None)], explicit=False)
    assert [(one.cron, one.slug, one.active) for one in found] == [
        ("15 4 * * *", "nightly", False), ("0 12 * * 0", "kept-1", True)]
    monkeypatch.setenv("REREAD_NIGHTLY_CRON", "0 5 * * *")
    found = nights.merged([existing("15 4 * * *", "nightly"), existing("0 12 * * 0", "noon")], explicit=True)
    assert [(one.cron, one.slug) for one in found] == [("0 5 * * *", "nightly"), ("0 12 * * 0", "noon")]


class Server:
    """What `catch_up` asks of a Prefect server."""

    def __init__(self, created: datetime = datetime(2026, 1, 1, tzinfo=UTC), paused: bool = False, active: bool = True,
                 waiting: tuple[datetime, ...] = ()) -> None:
        self.deployment = SimpleNamespace(id=uuid4(), created=created, paused=paused,
                                          schedules=[SimpleNamespace(active=active, parameters={})])
        self.waiting = [SimpleNamespace(expected_start_time=at) for at in waiting]
        self.asked: list[dict] = []

    def read_deployment_by_name(self, name):
        assert name == "nightly-evaluation/nightly-evaluation"
        return self.deployment

    def read_flow_runs(self, **_):
        return self.waiting

    def create_flow_run_from_deployment(self, identifier, **fields):
        self.asked.append(fields)
        self.waiting.append(SimpleNamespace(expected_start_time=NOW))
        return SimpleNamespace(id=uuid4())


class Past(Ledger):
    """A ledger whose last finished night is given."""

    def __init__(self, last: datetime | None) -> None:
        self.last = last

    def last_finished(self, suite: str) -> datetime | None:
        return self.last


def test_a_missed_night_is_caught_up_once():
    server, ledger = Server(waiting=(datetime(2026, 3, 8, 2, tzinfo=UTC),)), Past(datetime(2026, 3, 4, 2, tzinfo=UTC))
    assert nights.catch_up(server, NOW, ledger=ledger)
    [asked] = server.asked
    assert asked["parameters"] == {"request": {"only_if_due": True}}
    assert asked["idempotency_key"] == "nightly nightly 2026-03-07T02:00:00+00:00"
    assert nights.catch_up(server, NOW, ledger=ledger) is None and len(server.asked) == 1      # it waits already


@pytest.mark.parametrize("server, last", [
    (Server(), DUE),                                                    # done
    (Server(created=datetime(2026, 3, 7, 8, tzinfo=UTC)), None),        # new this morning: it missed nothing
    (Server(waiting=(DUE,)), None),                                     # a late run will do it
    (Server(paused=True), None), (Server(active=False), None)])
def test_where_nothing_was_missed_nothing_is_started(server, last):
    assert nights.catch_up(server, NOW, ledger=Past(last)) is None and server.asked == []


def test_what_a_schedule_asks_is_caught_up(tmp_path):
    """A person's own suite, set in the schedule's parameters on the page."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine\nevaluations: [{cloze: {task: lookup}}]\n")
    server, looked = Server(), []
    server.deployment.schedules = [
        SimpleNamespace(active=False, parameters={}),
        SimpleNamespace(active=True, parameters={"request": {"file": str(mine), "fail_on_regression": True}})]

    class Named(Past):
        def last_finished(self, suite):
            looked.append(suite)

    assert nights.catch_up(server, NOW, ledger=Named(None))
    assert looked == ["mine"] and server.asked[0]["idempotency_key"].startswith("nightly mine ")
    assert server.asked[0]["parameters"] == {
        "request": {"file": str(mine), "fail_on_regression": True, "only_if_due": True}}


def test_a_schedule_that_asks_what_is_no_longer_there_stops_nothing():
    server = Server()
    server.deployment.schedules = [SimpleNamespace(active=True, parameters={"request": {"file": "/nowhere/mine.yaml"}})]
    nights.catch_up_quietly(server)
    server.deployment.schedules = [SimpleNamespace(active=True, parameters={"request": {"fail": 3}})]
    nights.catch_up_quietly(server)
    assert server.asked == []


def test_a_deployment_that_never_had_a_night_has_missed_one():
    assert nights.catch_up(Server(), NOW, ledger=Past(None))


def test_looking_for_missed_nights_never_stops_the_deployments(caplog):
    class Broken(Server):
        def read_deployment_by_name(self, name):
            raise ObjectNotFound(Exception("gone"))

    nights.catch_up_quietly(Broken())


def test_a_run_of_a_schedule_from_the_page_is_due_at_its_own_time(monkeypatch):
    """Four times a day, set on the page: each of them is a night, though the settings know of one."""
    from flows import nightly

    def started(tags, at):
        monkeypatch.setattr(nightly.runtime, "flow_run", SimpleNamespace(tags=tags, scheduled_start_time=at))
        return nightly.scheduled()

    evening = datetime(2026, 3, 7, 20, tzinfo=UTC)
    assert started(["auto-scheduled"], evening) == evening and started(["caught up"], evening) is None
    clock, now = Clock("0 2 * * *", "UTC"), lambda: datetime(2026, 3, 7, 20, 1, tzinfo=UTC)
    plain, own = (Night(None, None, clock, None, registry=1, ledger=Past(DUE), now=now, scheduled=at) for at in (None, evening))
    plain.suite = own.suite = SimpleNamespace(name="nightly")
    assert (plain.due(), plain.is_done()) == (DUE, True) and (own.due(), own.is_done()) == (evening, False)
    early = Night(own.suite, None, clock, None, registry=1, ledger=Past(DUE), scheduled=DUE + timedelta(days=1),
                  now=lambda: DUE + timedelta(days=1, seconds=-0.2))
    assert not early.is_done(), "this machine's clock is behind the server's"
    late = Night(own.suite, None, clock, None, registry=1, ledger=Past(DUE), now=now, scheduled=datetime(2026, 3, 5, 20, tzinfo=UTC))
    assert late.is_done(), "one that piled up is caught up with the rest"


# -------------------------------------------------------------------------------------------------------------- suites
def test_shipped_suites_are_whole():
    for name in suites.shipped():
        suite = suites.load(name)
        assert suite.name == name and suite.about and suite.evaluations


@pytest.mark.parametrize("text, words", [
    ("name: a\nevaluations: []\n", "evaluations"), ("name: A\nevaluations: [{cloze: {task: lookup}}]\n", "name"),
    ("name: a\nevaluations: [{cloze: {task: lookup}}, {cloze: {task: lookup}}]\n", "'lookup' appears twice"),
    ("name: a\nevaluations: [{name: suite, cloze: {task: lookup}}]\n", "'suite' stands for all of them"),
    ("name: a\nevaluations: [{cloze: {task: nothing}}]\n", "nothing"),
    ("name: a\nmodel: x\nevaluations: [{cloze: {task: lookup}}]\n", "model"),
    ("name: a\nevaluations: [{cloze: {task: lookup, generation_tokens: 8}, evaluate: {generation_tokens: 9}}]\n",
     "leaves room for 8")])
def test_a_suite_that_cannot_be_is_refused(tmp_path, text, words):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(SpecError, match=words):
        suites.load(str(tmp_path / "mine.yaml"))


def test_a_suite_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(SpecError, match="did you mean nightly.*Shipped suites: nightly"):
        suites.load("nigthly")


# -------------------------------------------------------------------------------------------------------- command line
def test_the_command_line_without_any_model(reread):
    shown = reread("nightly", "show", "--json")
    assert shown.code == 0 and shown.json["cron"] == "0 2 * * *" and len(shown.json["next"]) == 3 and not shown.json["nights"]
    planned = reread("nightly", "run", "--dry-run", "--json")
    assert planned.code == 0 and planned.json["versions"] == [] and len(planned.json["suite_version"]) == 8
    done = reread("nightly", "run", "--json")
    assert done.code == 0 and done.json["headline"] == "nothing to do: 0 versions had their scores"
    again = reread("nightly", "run", "--if-due")
    assert again.code == 0 and "has been done" in again.out
    assert [night["status"] for night in reread("nightly", "show", "--json").json["nights"]] == ["FINISHED"]
    assert "2026" in reread("nightly", "show").out or "finished" in reread("nightly", "show").out
    assert reread("nightly", "trend").code == 0
    missing = reread("nightly", "trend", "quick")
    assert missing.code == 2 and "(none yet)" in missing.err
    assert reread("nightly", "run", "--suite", "none.yaml").code == 2


@pytest.mark.parametrize(("failed", "code"), [({}, 0), ({"a version 2": "the weights are damaged"}, 1)])
def test_a_night_through_prefect_shows_its_report_and_fails_as_one_without(reread, home, monkeypatch, failed, code):
    from flows.nights.publish import folder
    from flows.running import embedded

    def run(flow, request):
        assert request.suite == "nightly" and request.fail_on_regression
        folder("nightly").mkdir(parents=True)
        (folder("nightly") / "night.md").write_text("# Night of 2026-03-07\n")
        return {"headline": "1 evaluated, 1 failed", "failed": failed}

    monkeypatch.setattr(embedded, "run", run)
    monkeypatch.setattr(Night, "look", lambda night: [SimpleNamespace(due=True)])
    shown = reread("nightly", "run", "--flow", "--fail-on-regression")
    assert shown.code == code and shown.out == "# Night of 2026-03-07\n"
    assert ("1 failed" in shown.err) == bool(failed)


def test_a_night_fails_only_when_asked():
    from flows.nightly import ended
    from flows.nights.night import Report
    from flows.nights.outcome import Outcome, Verdict
    from flows.nights.request import NightlyRequest
    from storage.errors import NightFailed

    worse = Outcome("a", "2", verdicts=[Verdict("previous", "suite", "version 1", "worse", (-0.3, -0.4, -0.2))])
    for outcome, name in ((worse, "Regression"), (Outcome("a", "2", failure="no weights"), "SomeFailed"), (Outcome("a", "2"), "Completed")):
        report, strict = Report("tests", "0", DUE, NOW, [outcome]), NightlyRequest(fail_on_regression=True)
        state = ended(report, NightlyRequest())
        assert (state.type.value, state.name, state.message) == ("COMPLETED", name, report.headline())
        if name == "Completed":
            assert ended(report, strict).name == name
        else:
            with pytest.raises(NightFailed, match="fail_on_regression"):
                ended(report, strict)


def test_the_form_of_a_night_offers_suites_and_one_box_for_a_file():
    from flows.nights.request import NightlyRequest

    fields = NightlyRequest.model_json_schema()["properties"]
    assert fields["suite"]["enum"] == list(suites.shipped()) and "nightly" in fields["suite"]["enum"]
    assert fields["file"]["type"] == "string" and "anyOf" not in fields["file"]
    assert NightlyRequest.model_validate({"file": None}).where == "nightly"          # as scripts posted it before
    with pytest.raises(SpecError, match="nihgtly"):
        suites.load(NightlyRequest(suite="nihgtly").where)
