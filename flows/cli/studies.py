"""`reread study`: run, list and show studies."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli.base import DryRun, Json, Set, study_app


@study_app.command("run")
def study_run(
    name: Annotated[str, typer.Argument(metavar="STUDY", help="A shipped study, or the path of a .yaml file.")],
    settings: Set = None,
    only: Annotated[str | None, typer.Option(
        metavar="NAME,NAME", help="Only these architectures; the artifacts are those of the whole study.")] = None,
    dry_run: DryRun = False, json: Json = False,
) -> None:
    """Run a whole study: tokenise, train, ask, score, report. What exists already is not made again.

    Example: reread study run quick

    Example: reread study run quick --set seeds=[0,1,2] --dry-run

    Example: reread study run zoo --only based,attention
    """
    from json import dumps

    from flows.commands.study import run_study

    run_study(name, [*(settings or []), *([f"architectures={dumps(only)}"] if only is not None else [])], dry_run, json)


@study_app.command("list")
def study_list(json: Json = False) -> None:
    """Show the studies that come with reread.

    Example: reread study list
    """
    from flows.commands.study import list_studies

    list_studies(json)


@study_app.command("show")
def study_show(
    name: Annotated[str, typer.Argument(metavar="STUDY", help="A shipped study, or the path of a .yaml file.")],
    settings: Set = None, json: Json = False,
) -> None:
    """Print a study with every field, as YAML: a file to change and run.

    Example: reread study show quick > mine.yaml
    """
    from flows.commands.study import show_study

    show_study(name, settings or [], json)
