"""Weights out and in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.base import Json, app


@app.command("export")
def export_(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's id or its first letters, or a folder.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write; absent or empty.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the model that FOLDER holds.")] = False,
    json: Json = False,
) -> None:
    """Write a trained model for transformers: weights, config, code, tokenizer and a model card.

    Example: reread export checkpoint-0123456789abcdef my-model
    """
    from flows.commands.weights import export_weights

    export_weights(checkpoint, str(folder), force, json)


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
