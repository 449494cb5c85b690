"""Weights out and in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.cli.base import Json, Set, app
from storage.errors import SpecError


@app.command("export")
def export_(
    what: Annotated[str, typer.Argument(
        metavar="WHAT", help="A study, a .yaml file or a report's id; or a checkpoint's id or folder. First letters will do.")],
    folder: Annotated[Path | None, typer.Argument(
        metavar="FOLDER", help="Where to write; absent or empty. Of a study by default STUDY-FORMAT, here.")] = None,
    format_: Annotated[Literal["csv", "latex", "html"] | None, typer.Option("--format", help="Of a study.")] = None,
    settings: Set = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the export that FOLDER holds.")] = False,
    json: Json = False,
) -> None:
    """Write a finished study as tidy CSV files, LaTeX tables or one HTML page; or a trained model for transformers.

    A study that is not finished is refused; --set as when it was run. A model is written with config, code, tokenizer and
    a model card.

    Example: reread export quick --format csv

    Example: reread export report-0123456789abcdef paper-tables --format latex

    Example: reread export checkpoint-0123456789abcdef my-model
    """
    from flows.commands.export_study import export_study, is_study

    target = None if folder is None else str(folder)
    if is_study(what, format_, settings or []):
        export_study(what, target, format_, settings or [], force, json)
        return
    if target is None:
        raise SpecError(f"export {what} needs a FOLDER to write to: reread export {what} my-model")
    from flows.commands.weights import export_weights

    export_weights(what, target, force, json)


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Folder of another's checkpoint: config.json and weights.")],
    folder: Annotated[Path | None, typer.Argument(
        metavar="FOLDER", help="Where to write. Default: a checkpoint artifact, which evaluate takes.")] = None,
    preset: Annotated[str | None, typer.Option(help="Released Based or JRT weights without a config: which model.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Default: the folder's own. none: the weights alone.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the model that FOLDER holds.")] = False,
    json: Json = False,
) -> None:
    """Make a model of Mamba or Mamba-2 of transformers, released Based or JRT weights, or an export of ours.

    Example: reread import mamba-130m-hf my-mamba
    """
    from flows.commands.weights import import_weights

    import_weights(str(path), None if folder is None else str(folder), preset, tokenizer, force, json)
