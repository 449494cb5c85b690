"""The flow `nightly-evaluation`: every registered model version that lacks scores of the suite is evaluated, one subflow
each, and what follows is published as an artifact, events, and in MLflow. A night without work starts no Ray.
"""

from __future__ import annotations

from flows import environment

environment.prepare()

from contextlib import suppress  # noqa: E402
from datetime import UTC, datetime  # noqa: E402
from typing import Any  # noqa: E402

from prefect import flow, get_run_logger, runtime  # noqa: E402
from prefect.artifacts import create_markdown_artifact  # noqa: E402
from prefect.events import emit_event  # noqa: E402
from prefect.states import Completed, State  # noqa: E402

from flows import suites  # noqa: E402
from flows.nights.clock import Clock  # noqa: E402
from flows.nights.due import Entry, look  # noqa: E402
from flows.nights.ledger import NightUnderWay, alone  # noqa: E402
from flows.nights.night import Night, Report  # noqa: E402
from flows.nights.publish import publish  # noqa: E402
from flows.nights.request import NightlyRequest  # noqa: E402
from flows.running import ray_runner  # noqa: E402
from flows.running.ray_runner import interruptible, task_runner  # noqa: E402
from flows.running.runner import Runner  # noqa: E402
from flows.services import local  # noqa: E402
from flows.showing.failure import clear_failures  # noqa: E402
from flows.showing.run_log import run_log  # noqa: E402
from storage.artifacts import Store  # noqa: E402
from storage.errors import NightFailed, RereadError, StageFailed  # noqa: E402
from storage.tracking.registry import Registry  # noqa: E402

ABOUT = """Evaluate the registered models that lack scores of the current suite, and say what got better or worse.

A model version is evaluated when it is new, or when prompts, settings or code changed since. Its scores go to the
version in MLflow; the alias `best-<size>` moves only when a paired interval excludes zero.

**Example:** leave all as it is and press *Submit*; *Schedules* on the right says when it runs by itself."""
NIGHT = NightlyRequest()
FINISHED, REGRESSION = "reread.nightly.finished", "reread.nightly.regression"


def run_name() -> str:
    """`night of 2026-11-30, suite nightly`; just the flow's name where the form cannot be read, which the run itself says."""
    with suppress(RereadError, ValueError, KeyError):
        request = NightlyRequest.model_validate(runtime.flow_run.parameters.get("request", {}))
        clock, now = Clock.from_settings(), datetime.now(UTC)
        return f"night of {clock.night(clock.last_due(now) or now)}, suite {suites.find(request.where).stem}"
    return str(runtime.flow_run.flow_name)


@flow(name="nightly-evaluation", description=ABOUT, flow_run_name=run_name, validate_parameters=False)
@clear_failures
def nightly_evaluation(request: NightlyRequest = NIGHT) -> Any:
    """One night.

    Args:
        request: Which suite, and when a night counts as failed. Example: leave all as it is.
    """
    interruptible()
    logger = get_run_logger()
    night = Night(suites.load(request.where), Store(), Clock.from_settings(), evaluate=lambda entry: evaluated(entry, request),
                  scheduled=scheduled())
    only_if_due = request.only_if_due or night.scheduled is not None       # the page's schedules ask nothing
    if only_if_due and night.is_done():
        logger.info("the night that is due has been done: nothing to do")
        return Completed(message="The night that is due has been done.", data={"headline": "done before"})
    try:
        with alone(), run_log(logger, "reread.flows.nightly"):
            report, page = tonight(night)
    except NightUnderWay as busy:
        if not only_if_due:
            raise
        logger.info("%s", busy)
        return Completed(message=str(busy), data={"headline": str(busy)})
    create_markdown_artifact(page, key=f"night-{report.suite}", description=report.headline()[:500])
    tell(report)
    logger.info("%s; MLflow: %s%s", report.headline(), local.mlflow_url(), report.link)
    return ended(report, request)


def scheduled() -> datetime | None:
    """When the schedule meant this run to begin; None for one that no schedule made."""
    if "auto-scheduled" not in runtime.flow_run.tags:
        return None
    return datetime.fromtimestamp(runtime.flow_run.scheduled_start_time.timestamp(), UTC)


def tonight(night: Night) -> tuple[Report, str]:
    """The work and its page. Ray, if any version needs it, starts with the first and serves them all."""
    try:
        with night.under_way() as report:
            return report, publish(night, report, local.mlflow_url())
    finally:
        if _ray_is_ours:
            ray_runner.shut_down()
            _ray_is_ours.clear()


_ray_is_ours: list[bool] = []


def evaluated(entry: Entry, request: NightlyRequest) -> None:
    """One version, as a subflow of its own that shows its stages."""
    if not ray_runner.is_running():
        ray_runner.start()
        _ray_is_ours.append(True)
    evaluate_version(entry.version.reference, request.where)


@flow(name="evaluate-version", flow_run_name="evaluate {model}", task_runner=task_runner())
def evaluate_version(model: str, suite: str = "nightly") -> dict[str, Any]:
    """Make what is missing of the scores of one registered model version.

    Args:
        model: As in MLflow, for example `models:/quick-pydocs/3`.
        suite: A shipped suite, or the path of a .yaml file.
    """
    store = Store()
    [entry] = look(suites.load(suite), [Registry().version(model)], store) or [None]
    if entry is None or entry.not_asked or entry.failure:
        raise StageFailed(f"suite {suite} cannot ask {model}: "
                          + (entry.not_asked or entry.failure if entry else "it is for other models"))
    return Runner(entry.plan, store).run() if entry.plan else {"artifact": "", "stages": {}}


def tell(report: Report) -> None:
    """Events, which an automation can turn into a mail or a message."""
    resource = {"prefect.resource.id": f"reread.nightly.{report.suite}",
                "prefect.resource.name": f"nightly evaluation, suite {report.suite}"}
    payload = {**report.summary(), "page": local.mlflow_url() + report.link}
    if report.regressions:
        emit_event(REGRESSION, resource, payload=payload)
    emit_event(FINISHED, resource, payload=payload)


def ended(report: Report, request: NightlyRequest) -> State:
    """How the night ends: what went wrong names the state, and fails it only when that was asked for.

    :raises NightFailed: with `fail_on_regression`, after a regression or a version that could not be evaluated
    """
    wrong = bool(report.regressions or report.failed)
    if wrong and request.fail_on_regression:
        raise NightFailed(f"{report.headline()} (failed because of `fail_on_regression`)")
    name = "Regression" if report.regressions else "SomeFailed" if report.failed else "Completed"
    return Completed(name=name, message=report.headline(), data=report.summary())
