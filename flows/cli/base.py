"""The applications that commands are added to, and the options that many of them share."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(name="reread", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="A recall lab for language models with a fixed-size memory.\n\nStart with: "
                       "reread study run quick")
study_app = typer.Typer(no_args_is_help=True, help="Run, list and show studies.")
app.add_typer(study_app, name="study")
models_app = typer.Typer()
app.add_typer(models_app, name="models")
claims_app = typer.Typer(no_args_is_help=True, help="Published figures: list, show, and recompute what follows from them.")
app.add_typer(claims_app, name="claims")

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]
Set = Annotated[list[str] | None, typer.Option(
    "--set", metavar="NAME=VALUE", help="Change a field, e.g. train.steps=100. Repeatable.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be made, make nothing.")]
Flow = Annotated[bool, typer.Option("--flow", help="Run through Prefect and Ray, as the web page would.")]
