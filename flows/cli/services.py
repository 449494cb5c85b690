"""The web pages, and whether this installation is sound."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli.base import Json, app


@app.command()
def up(
    detach: Annotated[bool, typer.Option("--detach", help="Leave the services running and return.")] = False,
) -> None:
    """Start Prefect, MLflow and the deployments, on this machine only; flows can then be run from the web page.

    Example: reread up --detach
    """
    from flows.commands.service import bring_up

    bring_up(detach)


@app.command()
def down() -> None:
    """Stop exactly what `reread up` started, and what killed commands left.

    Example: reread down
    """
    from flows.commands.service import bring_down

    bring_down()


@app.command()
def status(json: Json = False) -> None:
    """Show which services run, and their pages.

    Example: reread status
    """
    from flows.commands.service import show_status

    show_status(json)


@app.command()
def doctor(json: Json = False) -> None:
    """Check this installation: versions, devices, known-bad combinations, paths, ports.

    Example: reread doctor
    """
    from flows.commands.doctor import examine

    examine(json)
