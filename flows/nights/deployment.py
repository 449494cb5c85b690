"""The deployment `nightly-evaluation`: its schedule by the settings, and the one run that makes up for missed nights."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectNotFound
from prefect.schedules import Cron, Schedule

from flows import suites
from flows.nights.clock import CRON, DEFAULT_CRON, Clock
from flows.nights.ledger import Ledger
from flows.nights.request import NightlyRequest
from storage import logs
from storage.errors import RereadError

NAME = "nightly-evaluation/nightly-evaluation"
SLUG = "nightly"
ASKED = {"request": {"only_if_due": True}}
WAITING = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING)

log = logs.get("flows.nightly")


def schedules() -> list[Schedule]:
    """The one schedule that the settings describe; not active when they say `off`.

    :raises SpecError: a setting cannot be read
    """
    clock = Clock.from_settings()
    return [Cron(clock.cron or DEFAULT_CRON, timezone=clock.timezone, active=clock.cron is not None, slug=SLUG,
                 parameters=ASKED)]


def merged(existing: Iterable[Any], explicit: bool) -> list[Schedule]:
    """The schedules to deploy where the server has some already, which a person may have changed on its page.

    explicit: the setting was given, and decides over the schedule `nightly`; others stay as they are either way.
    """
    found = {SLUG: schedules()[0]}
    for number, one in enumerate(existing):
        kept = _schedule(one, one.slug or f"kept-{number}")
        if kept is not None and (kept.slug != SLUG or not explicit):
            found[kept.slug] = kept
    return list(found.values())


def _schedule(one: Any, slug: str) -> Schedule | None:
    """A schedule of the server as one that can be deployed again."""
    kind = next((kind for kind in ("cron", "interval", "rrule") if getattr(one.schedule, kind, None) is not None), None)
    if kind is None:
        return None
    return Schedule(**{kind: getattr(one.schedule, kind)}, timezone=getattr(one.schedule, "timezone", None),
                    active=bool(one.active), slug=slug, parameters=dict(one.parameters or {}))


def kept_by_people(client: Any) -> list[Schedule]:
    """`merged` with what the server has now."""
    import os

    try:
        existing = client.read_deployment_by_name(NAME).schedules
    except ObjectNotFound:
        existing = []
    return merged(existing, explicit=bool(os.environ.get(CRON)))


def catch_up(client: Any, now: datetime | None = None, ledger: Ledger | None = None) -> str | None:
    """One run now, if the last due night was missed: id of the run, or None where nothing is to be done. It is asked what
    the first active schedule asks.

    A night that was due while the server was up waits there as a late run, which does the same; then there is no second.
    A deployment that is new missed nothing.
    """
    now = now or datetime.now(UTC)
    due = Clock.from_settings().last_due(now)
    if due is None:
        return None
    deployment = client.read_deployment_by_name(NAME)
    active = [schedule for schedule in deployment.schedules if schedule.active]
    if deployment.paused or not active:
        return None
    if deployment.created is None or deployment.created >= due:
        return None
    request = NightlyRequest.model_validate({**((active[0].parameters or {}).get("request") or {}), **ASKED["request"]})
    suite = suites.load(request.where).name
    last = (ledger or Ledger()).last_finished(suite)
    if last is not None and last >= due:
        return None
    waiting = client.read_flow_runs(flow_run_filter=FlowRunFilter(
        deployment_id={"any_": [deployment.id]}, state={"type": {"any_": list(WAITING)}}), limit=200)
    if any(run.expected_start_time is None or run.expected_start_time <= now for run in waiting):
        return None
    run = client.create_flow_run_from_deployment(
        deployment.id, parameters={"request": request.model_dump(mode="json", exclude_unset=True)}, tags=["caught up"], idempotency_key=f"nightly {suite} {due.isoformat()}")
    log.info("the night of %s was missed: one run makes up for it", due.isoformat())
    return str(run.id)


def catch_up_quietly(client: Any) -> None:
    """`catch_up` on the start of the process that serves deployments, which must start whatever comes of it."""
    try:
        catch_up(client)
    except (RereadError, OSError, ValueError, ObjectNotFound) as error:      # pydantic's refusal is a ValueError
        log.warning("missed nights could not be looked up: %s", error)
