"""The command line. Every heavy import is inside the command that needs it: `reread --help` answers at once.

Exit codes: 0 done, 1 a failure in the work, 2 a mistake in what was asked. With `--json` stdout carries one JSON
document and nothing else; everything people watch goes to stderr.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from flows import environment
from flows.cli.base import app

INTERRUPTED = 130        # what shells expect after Ctrl-C
# the base of everything Typer says about a wrong command line: click's class, or Typer's own copy of it
ClickException = typer.BadParameter.__mro__[2]


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Tracebacks, and everything in the log.")] = False,
    home: Annotated[str | None, typer.Option(
        metavar="PLACE", help="Folder or URL of artifacts. Default: REREAD_HOME, else .reread")] = None,
) -> None:
    """A recall lab for language models with a fixed-size memory."""
    import os

    from storage.home import absolute
    from storage.logs import configure_logging

    if home:
        os.environ["REREAD_HOME"] = absolute(home)
    environment.prepare()
    configure_logging("DEBUG" if debug else None)


# each adds its commands to the applications of `base`; help lists them in this order
from flows.cli import studies, stages, evaluation, looking, weights, nightly, services  # noqa: E402, F401, I001


def main(arguments: list[str] | None = None) -> None:
    """Entry point. Turns errors into one message and an exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    sys.exit(run(arguments, debug="--debug" in arguments))


def run(arguments: list[str], debug: bool = False) -> int:
    """Run one command line and return its exit code."""
    from storage.errors import RereadError

    try:
        code = int(app(arguments, standalone_mode=False) or 0)
        if code == INTERRUPTED:                      # Typer has turned Ctrl-C into an exit of its own
            raise KeyboardInterrupt
        return code
    except typer.Exit as end:
        return end.exit_code
    except ClickException as mistake:
        mistake.show(file=sys.stderr)
        return 2
    except RereadError as error:
        return _complain(str(error), error, error.exit_code, debug)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("interrupted; run the same command again to go on", err=True)
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last resort: no traceback unless asked for
        return _complain(f"unexpected {type(error).__name__}: {error} (--debug shows where)", error, 1, debug)


def _complain(message: str, error: BaseException, code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exception(error)
    from storage.masked import masked

    typer.echo(f"error: {masked(message)}", err=True)
    return code
