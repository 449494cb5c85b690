"""Around an evaluation: published figures, other harnesses, comparing and scoring again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.base import Json, app, claims_app


# -------------------------------------------------------------------------------------------------------------- claims
@claims_app.command("check")
def claims_check(json: Json = False) -> None:
    """Recompute what the papers derive from their figures, and their conflicts. Exit code 1 where one does not.

    Example: reread claims check
    """
    from flows.commands.claims import check_claims

    check_claims(json)


@claims_app.command("list")
def claims_list(
    pattern: Annotated[str, typer.Argument(metavar="WORDS", help="Only claims that hold all of them.")] = "",
    json: Json = False,
) -> None:
    """List published figures: where they stand, what was measured, under which conditions.

    Example: reread claims list 'jrt_t13 repetition'
    """
    from flows.commands.claims import list_claims

    list_claims(pattern, json)


@claims_app.command("show")
def claims_show(
    claim: Annotated[str, typer.Argument(metavar="CLAIM", help="A claim id.")], json: Json = False,
) -> None:
    """Show one published figure, and what follows from it.

    Example: reread claims show jrt_t13_mamba_2p8b_squad_repetition_jrt
    """
    from flows.commands.claims import show_claim

    show_claim(claim, json)


# --------------------------------------------------------------------------------------------------- scores, prompts
@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(
        metavar="RUN RUN...", help="Scores, checkpoints, or ids of their runs in MLflow; first letters will do.")],
    metric: Annotated[str | None, typer.Option(help="contains, exact, squad_exact, f1, rouge_l. Default: the first's.")] = None,
    json: Json = False,
) -> None:
    """Compare evaluations of the same prompts, each with the first: paired differences, 95 % intervals over documents.

    Of trainings: the settings that differ, the final figures side by side, and their evaluations of common prompts.

    Example: reread compare scores-0123 scores-4567 --metric f1

    Runs as MLflow names them: reread compare 3f2a9c81 b07d44e2 91c0aa5f

    Trainings: reread compare checkpoint-0123 checkpoint-4567
    """
    from flows.commands.compare import compare_runs

    compare_runs(runs, metric, json)


@app.command()
def rescore(
    scores: Annotated[str, typer.Argument(metavar="SCORES", help="A scores artifact; its first letters will do.")],
    metric: Annotated[str, typer.Option(help="contains, exact, squad_exact, f1, rouge_l.")], json: Json = False,
) -> None:
    """Score kept answers by another metric; no model is needed.

    Example: reread rescore scores-0123 --metric f1
    """
    from flows.commands.scores import rescore_answers

    rescore_answers(scores, metric, json)


@app.command()
def samples(
    scores: Annotated[str, typer.Argument(metavar="SCORES", help="A scores artifact; its first letters will do.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write, .jsonl or .jsonl.gz.")],
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False, json: Json = False,
) -> None:
    """Write every answer as a line of JSON: prompt, answer, gold, metrics, error class.

    Example: reread samples scores-0123 answers.jsonl
    """
    from flows.commands.harness import export_samples_command

    export_samples_command(scores, str(file), force, json)


@app.command("harness-task")
def harness_task(
    prompts: Annotated[str, typer.Argument(metavar="PROMPTS", help="A prompts artifact; its first letters will do.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write; absent or empty.")], json: Json = False,
) -> None:
    """Write prompts as tasks of lm-evaluation-harness, so that others can ask them elsewhere.

    Example: reread harness-task prompts-0123 my-tasks
    """
    from flows.commands.harness import export_prompts_command

    export_prompts_command(prompts, str(folder), json)


@app.command("lm-eval", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lm_eval(context: typer.Context) -> None:
    """Run lm-evaluation-harness with the model `reread`; every further option is its own.

    Example: reread lm-eval --model reread --model_args checkpoint=checkpoint-0123 --tasks my_task --include_path my-tasks

    Its options: reread lm-eval -- run --help
    """
    from flows.commands.harness import run_lm_eval

    raise typer.Exit(run_lm_eval(context.args))
