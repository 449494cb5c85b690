"""What there is: artifacts, models, mixers."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli.base import Json, app, models_app


@app.command()
def show(
    artifact: Annotated[str, typer.Argument(metavar="ARTIFACT", help="An artifact id; its first letters will do.")],
    json: Json = False,
) -> None:
    """Show what an artifact is, what it was made from, and where it lies.

    Example: reread show checkpoint-0123
    """
    from flows.commands.look import show_artifact

    show_artifact(artifact, json)


@app.command("list")
def list_(
    kind: Annotated[str | None, typer.Option(help="Only this kind: corpus, shards, rows, checkpoint, ...")] = None,
    json: Json = False,
) -> None:
    """List the artifacts there are.

    Example: reread list --kind checkpoint
    """
    from flows.commands.look import list_artifacts

    list_artifacts(kind, json)


@models_app.callback(invoke_without_command=True)
def models(
    context: typer.Context,
    only: Annotated[str | None, typer.Option(metavar="PATTERN", help="Names to list, e.g. 'zoo-*' or '*-360m'.")] = None,
    json: Json = False,
) -> None:
    """List the model presets with their size, cost, state and abilities; or show one, or the kinds of mixers.

    Example: reread models

    Example: reread models --only 'zoo-*' --json

    One preset, layer by layer: reread models show jrt-360m

    What every kind of mixer can do: reread models mixers
    """
    if context.invoked_subcommand is not None:
        return
    from flows.commands.models import list_models

    list_models(only, json)


@models_app.command("show")
def models_show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A preset, or a kind of mixer.")], json: Json = False,
) -> None:
    """Print a preset's plan, its parameters and state layer by layer, what was published, and the conflicts.

    Of a kind of mixer: its settings and what it can do.

    Example: reread models show based-360m

    Example: reread models show lavo --json
    """
    from flows.commands.show_model import show_model

    show_model(name, json)


@models_app.command("mixers")
def models_mixers(json: Json = False) -> None:
    """List every kind of mixer with its abilities; a file that cannot be used with its reason.

    Example: reread models mixers
    """
    from flows.commands.show_model import list_mixers

    list_mixers(json)


@app.command()
def prune(
    older_than: Annotated[str, typer.Option(
        "--older-than", metavar="AGE", help="What was made or used since then stays: 12h, 7d, 2w.")] = "1d",
    keep: Annotated[list[str] | None, typer.Option(metavar="KIND", help="Never remove this kind. Repeatable.")] = None,
    without_tracking: Annotated[bool, typer.Option(
        "--without-tracking", help="Ask no MLflow: keep only what reports were made from.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Name all that would go, remove nothing.")] = False,
    json: Json = False,
) -> None:
    """Remove artifacts that no run refers to, and what killed commands left, after showing what and how much.

    What runs in MLflow, registered versions and reports refer to stays, with everything it was made from; so does what a
    stage at work reads. With --json nothing is removed unless --yes is given.

    Example: reread prune --dry-run

    Example: reread prune --older-than 7d --keep checkpoint --yes
    """
    from flows.commands.prune import prune as prune_artifacts

    prune_artifacts(older_than, keep or [], without_tracking, yes, dry_run, json)
