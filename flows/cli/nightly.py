"""`reread nightly`: run a night now, see the nights that were, draw the trend."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli.base import DryRun, Flow, Json, app

nightly_app = typer.Typer(no_args_is_help=True, help="Evaluate registered models that lack scores: now, or see past nights.")
app.add_typer(nightly_app, name="nightly")

Suite = Annotated[str, typer.Option(metavar="SUITE", help="A shipped suite, or the path of a .yaml file.")]


@nightly_app.command("run")
def nightly_run(
    suite: Suite = "nightly",
    if_due: Annotated[bool, typer.Option("--if-due", help="Nothing, when the last due night has been done.")] = False,
    fail_on_regression: Annotated[bool, typer.Option(
        "--fail-on-regression", help="Exit code 1 also when a model got significantly worse.")] = False,
    flow: Flow = False, dry_run: DryRun = False, json: Json = False,
) -> None:
    """Evaluate every registered model version that lacks scores of the suite, and say what got better or worse.

    Exit code 1: a version could not be evaluated.

    Example: reread nightly run --dry-run

    Example: reread nightly run --suite mine.yaml --fail-on-regression
    """
    from flows.commands.nightly import run_night

    run_night(suite, if_due, fail_on_regression, flow, dry_run, json)


@nightly_app.command("show")
def nightly_show(suite: Suite = "nightly", json: Json = False) -> None:
    """Show the schedule and the nights that were.

    Nights are due by REREAD_NIGHTLY_CRON (five fields, or off) in REREAD_NIGHTLY_TIMEZONE (for example Europe/Zurich).

    Example: reread nightly show
    """
    from flows.commands.nightly import show_nights

    show_nights(suite, json)


@nightly_app.command("trend")
def nightly_trend(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="Registered model; none = all.")] = None,
    task: Annotated[str | None, typer.Option(help="One evaluation of the suite, or `suite` for all together.")] = None,
    suite: Suite = "nightly",
    to: Annotated[str | None, typer.Option(metavar="FOLDER", help="Where plots go. Default: nights/ in the home.")] = None,
    json: Json = False,
) -> None:
    """Draw the scores across nights: one plot for each registered model and evaluation.

    Example: reread nightly trend

    Example: reread nightly trend quick-pydocs --task lookup --to .
    """
    from flows.commands.nightly import draw_trend

    draw_trend(model, task, suite, to, json)
