"""`reread nightly run|show|trend`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from flows import suites
from flows.commands.output import document, say, table
from flows.nights.clock import CRON, Clock
from flows.nights.due import Entry, suite_version
from flows.nights.ledger import Ledger, alone
from flows.nights.night import Night, Report
from storage.artifacts import Store
from storage.errors import StageFailed


def run_night(suite: str, if_due: bool, fail_on_regression: bool, flow: bool, dry_run: bool, json: bool) -> None:
    """:raises StageFailed: a version could not be evaluated; or, with `fail_on_regression`, got worse"""
    store = Store()
    night = Night(suites.load(suite), store, Clock.from_settings(), evaluate=lambda entry: _here(entry, store))
    if dry_run:
        _plan(night, json)
        return
    if if_due and night.is_done():
        document({"headline": "the night that is due has been done"}) if json else say(
            "the night that is due has been done: nothing to do")
        return
    if flow and any(entry.due for entry in night.look()):
        _through_prefect(suite, fail_on_regression, json)
        return
    report, page = _at_once(night)
    if json:
        document({**report.summary(), "versions": [one.as_dict() for one in report.everything],
                  "not_asked": report.not_asked})
    else:
        say(page.rstrip())
    if report.failed or (fail_on_regression and report.regressions):
        raise StageFailed(report.headline())


def _at_once(night: Night) -> tuple[Report, str]:
    from flows.nights.publish import publish
    from flows.services import local

    with alone(), night.under_way() as report:
        return report, publish(night, report, local.mlflow_url())


def _here(entry: Entry, store: Store) -> None:
    from flows.commands.single import here

    here(entry.plan, store)


def _through_prefect(suite: str, fail_on_regression: bool, json: bool) -> None:
    from flows.nights.publish import folder
    from flows.nights.request import NightlyRequest
    from flows.running.embedded import run

    named = {"suite": suite} if suite in suites.shipped() else {"file": str(Path(suite).resolve())}
    done = run(_flow, NightlyRequest(**named, fail_on_regression=fail_on_regression))
    document(done) if json else say((folder(suites.load(suite).name) / "night.md").read_text(encoding="utf-8").rstrip())
    if done["failed"]:
        raise StageFailed(done["headline"])


def _flow():
    from flows.nightly import nightly_evaluation

    return nightly_evaluation


def _plan(night: Night, json: bool) -> None:
    """What a night now would do."""
    entries = night.look()
    digest = suite_version(night.suite, night.store)
    if json:
        document({"suite": night.suite.name, "suite_version": digest, "due": night.due().isoformat(),
                  "versions": [{"model": one.version.name, "version": one.version.number, "due": one.due,
                                "reason": one.reason or None, "not_asked": one.not_asked or None,
                                "failure": one.failure or None,
                                "scores": {label: asked.scores for label, asked in one.asked.items()},
                                "stages": [stage.title for stage in one.plan.missing()] if one.plan else []}
                               for one in entries]})
        return
    table(["model", "version", "architecture", "size", "what", "stages"],
          [[one.version.name, one.version.number, one.architecture, one.size,
            one.failure or one.not_asked or one.reason or "has its scores",
            len(one.plan.missing()) if one.plan else ""] for one in entries], right=("version", "stages"))
    say(f"\nsuite {night.suite.name}, version {digest}: {sum(one.due for one in entries)} of {len(entries)} versions are due"
        + ("" if entries else "; there is no registered model yet: train one, for example with `reread study run quick`"))


def show_nights(suite: str, json: bool) -> None:
    """The schedule, and the nights that were, newest first."""
    name, clock, now = suites.load(suite).name, Clock.from_settings(), datetime.now(UTC)
    nights, following = Ledger().nights(name)[::-1], clock.next_due(now)
    if json:
        document({"cron": clock.cron, "timezone": clock.timezone, "next": [each.isoformat() for each in following],
                  "nights": [{"due": one.due.isoformat(), "at": one.at.isoformat(), "status": one.status,
                              "suite_version": one.suite_version, "run": one.run, **one.summary} for one in nights]})
        return
    say(f"schedule  {clock.cron or 'off'} ({clock.timezone})" + (
        f", next {', '.join(f'{each:%Y-%m-%d %H:%M}' for each in following)} UTC" if following else f"; set {CRON} to change it"))
    if not nights:
        say(f"no night of suite {name} yet; `reread nightly run` does one now")
        return
    table(["due (UTC)", "began", "status", "suite", "what"],
          [[f"{one.due:%Y-%m-%d %H:%M}", f"{one.at:%Y-%m-%d %H:%M}", one.status.lower(), one.suite_version,
            one.summary.get("headline", "taken over by the next night" if one.summary.get("taken_over") else "")]
           for one in nights])


def draw_trend(model: str | None, task: str | None, suite: str, to: str | None, json: bool) -> None:
    from flows.nights import trend
    from flows.nights.publish import folder

    name = suites.load(suite).name
    made = trend.draw(Ledger().nights(name), Path(to) if to else folder(name) / "trend", model, task)
    if json:
        document([str(path) for path in made])
        return
    for path in made:
        say(str(path))
    if not made:
        say(f"no finished night of suite {name} has evaluated a model yet; `reread nightly run` does one now")
