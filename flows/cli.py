"""The command line. Every heavy import is inside the command that needs it: `reread --help` answers at once.

Exit codes: 0 done, 1 a failure in the work, 2 a mistake in what was asked. With `--json` stdout carries one JSON
document and nothing else; everything people watch goes to stderr.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from flows import environment

INTERRUPTED = 130        # what shells expect after Ctrl-C
# the base of everything Typer says about a wrong command line: click's class, or Typer's own copy of it
ClickException = typer.BadParameter.__mro__[2]

app = typer.Typer(name="reread", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="A recall lab for language models with a fixed-size memory.\n\nStart with: "
                       "reread study run quick")
study_app = typer.Typer(no_args_is_help=True, help="Run, list and show studies.")
app.add_typer(study_app, name="study")
models_app = typer.Typer()
app.add_typer(models_app, name="models")

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]
Set = Annotated[list[str] | None, typer.Option(
    "--set", metavar="NAME=VALUE", help="Change a field, e.g. train.steps=100. Repeatable.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be made, make nothing.")]
Flow = Annotated[bool, typer.Option("--flow", help="Run through Prefect and Ray, as the web page would.")]


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


# -------------------------------------------------------------------------------------------------------------- study
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


# ------------------------------------------------------------------------------------------------------- single stages
@app.command()
def tokenise(
    source: Annotated[list[str] | None, typer.Option(
        metavar="GLOB", help="Text files (.txt, .jsonl, .parquet, also .gz). Default: the corpus pydocs.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="gpt2, bpe:<size>, bytes, ids:<n> or hf:<name>.")] = None,
    settings: Set = None, dry_run: DryRun = False, flow: Flow = False, json: Json = False,
) -> None:
    """Read a corpus and cut it into rows of tokens.

    Example: reread tokenise --source 'data/*.jsonl.gz' --tokenizer gpt2 --set corpus.on_bad_record=skip
    """
    from flows.commands.single import run_single

    fields = {"tokenizer": tokenizer, "corpus": {"source": "files", "paths": source} if source else None}
    run_single("tokenise", fields, settings or [], dry_run, flow, json)


@app.command()
def pretrain(
    model: Annotated[str, typer.Option(metavar="PRESET", help="A preset; `reread models` lists them.")],
    seed: Annotated[int, typer.Option(help="Draws initial weights and masks.")] = 0,
    settings: Set = None, dry_run: DryRun = False, flow: Flow = False, json: Json = False,
) -> None:
    """Train one model once, on recall rows of the corpus pydocs unless told otherwise.

    Example: reread pretrain --model jrt-tiny --seed 1 --set train.steps=100

    Example: reread pretrain --model based-mini --set 'rows={kind: disjoint, batches: 200}'
    """
    from flows.commands.single import run_single

    run_single("pretrain", {"model": model, "seed": seed}, settings or [], dry_run, flow, json)


@app.command()
def cloze(
    task: Annotated[str, typer.Option(help="Eval task: pydocs, lookup, disjoint, ...")],
    source: Annotated[Path | None, typer.Option(
        metavar="PATH", help="Show prompts over this file's documents instead of making an artifact.")] = None,
    order: Annotated[list[str] | None, typer.Option(help="Prompt order. Repeatable. Default: the task's.")] = None,
    template: Annotated[str | None, typer.Option(help="Template version.")] = None,
    limit: Annotated[int | None, typer.Option(help="Documents per column.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Whose tokens are counted.")] = None,
    settings: Set = None, dry_run: DryRun = False, flow: Flow = False, json: Json = False,
) -> None:
    """Write the prompts of an eval task in every order.

    Example: reread cloze --task pydocs --source notes.txt --order twice --limit 3 --json
    """
    from flows.commands.single import preview_cloze, run_single

    fields = {"task": task, "orders": order or None, "template": template, "limit": limit}
    if source is not None:
        preview_cloze(fields, source, tokenizer, settings or [], json)
    else:
        fields["tokenise"] = {"tokenizer": tokenizer} if tokenizer else None
        run_single("cloze", fields, settings or [], dry_run, flow, json)


@app.command()
def evaluate(
    checkpoint: Annotated[str, typer.Option(
        metavar="ID", help="Checkpoint artifact, see reread list; or hf:<folder or hub name>.")],
    prompts: Annotated[str | None, typer.Option(metavar="ID", help="Prompts artifact; see reread list.")] = None,
    task: Annotated[str | None, typer.Option(help="Eval task whose prompts to write first.")] = None,
    strategy: Annotated[str | None, typer.Option(help="How a prefix model reads: left_pad, iterate, ...")] = None,
    settings: Set = None, dry_run: DryRun = False, flow: Flow = False, json: Json = False,
) -> None:
    """Let a trained model answer prompts, and score the answers.

    Example: reread evaluate --checkpoint checkpoint-0123456789abcdef --task lookup --set cloze.limit=50 --json
    """
    from flows.commands.single import run_single

    fields = {"checkpoint": checkpoint, "prompts": prompts, "strategy": strategy,
              "cloze": {"task": task} if task else None}
    run_single("evaluate", fields, settings or [], dry_run, flow, json)


@app.command()
def ask(
    checkpoint: Annotated[str, typer.Argument(
        metavar="CHECKPOINT", help="Its id or first letters, a folder written by save_model, or hf:<folder or hub name>.")],
    document: Annotated[str, typer.Option(metavar="FILE", help="The text to ask about; - reads stdin.")],
    question: Annotated[str, typer.Option(metavar="TEXT", help="What to ask; also the line to complete.")],
    cloze: Annotated[str | None, typer.Option(metavar="TEXT", help="The line to complete, if not the question.")] = None,
    order: Annotated[str, typer.Option(help="Of document and question: default, question_first, twice, ...")] = "default",
    strategy: Annotated[str, typer.Option(help="How a prefix model reads: left_pad, iterate, ...")] = "left_pad",
    max_tokens: Annotated[int, typer.Option(metavar="N", help="The answer ends here, or at a line end.")] = 48,
    tokenizer: Annotated[str | None, typer.Option(help="For a model without its own: gpt2, bytes, hf:<name>.")] = None,
    json: Json = False,
) -> None:
    """Ask a model about a document: the answer as it comes, then its state's size and its speed.

    The document is cut at its end where prompt and answer would exceed what the model can place.

    Example: reread ask checkpoint-0123 --document notes.txt --question 'dtype :' --order twice

    Example: reread ask hf:gpt2 --document - --question 'The capital is' --max-tokens 8 --json < notes.txt
    """
    from flows.commands.ask import run_ask

    run_ask(checkpoint, document, question, cloze, order, strategy, max_tokens, tokenizer, json)


@app.command()
def bench(
    preset: Annotated[
        Literal["quick", "gate", "long", "decode", "models", "growth", "lavo", "table5", "full"],
        typer.Option(help="What to time; --list describes each.")] = "quick",
    list_: Annotated[bool, typer.Option("--list", help="Describe the presets and the operations; time nothing.")] = False,
    settings: Set = None, dry_run: DryRun = False, flow: Flow = False, json: Json = False,
) -> None:
    """Time operations, mixers and models on this machine, each after its correctness check, beside installed peers.

    Example: reread bench --preset gate --json

    Only some of it: reread bench --preset long --set operations=taylor,sdpa --set lengths=32768

    On a GPU node, placed by Ray: reread bench --preset table5 --set device=cuda --flow
    """
    if list_:
        from flows.commands.bench import list_bench

        list_bench(json)
        return
    from flows.commands.single import run_single

    run_single("bench", {"preset": preset}, settings or [], dry_run, flow, json)


# ------------------------------------------------------------------------------------------------------------- looking
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


# ------------------------------------------------------------------------------------------------------------- weights
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


# ------------------------------------------------------------------------------------------------------------ services
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
    from flows.doctor import examine

    examine(json)


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
    typer.echo(f"error: {message}", err=True)
    return code


if __name__ == "__main__":
    main()
