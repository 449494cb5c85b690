"""One stage of the data flow, with what its inputs need."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.cli.base import DryRun, Flow, Json, Set, app
from storage.errors import SpecError

Checkpoint = Annotated[str, typer.Option(
    metavar="ID", help="Checkpoint artifact, see reread list; or hf:<folder or hub name>.")]
Questions = Annotated[list[str] | None, typer.Option(
    metavar="PATH", help="What fda, squad, ... ask: files in their original format, or hub:<published set>. Repeatable.")]

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
        metavar="PATH", help="Show prompts over this file, or folder of questions, instead of making an artifact.")] = None,
    questions: Questions = None,
    order: Annotated[list[str] | None, typer.Option(help="Prompt order. Repeatable. Default: the task's.")] = None,
    template: Annotated[str | None, typer.Option(help="clean, or jrt-2407: the released prompts.")] = None,
    shots: Annotated[int | None, typer.Option(help="Worked examples before each question.")] = None,
    limit: Annotated[int | None, typer.Option(help="Documents per column.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Whose tokens are counted.")] = None,
    settings: Set = None, dry_run: DryRun = False, flow: Flow = False, json: Json = False,
) -> None:
    """Write the prompts of an eval task in every order.

    Example: reread cloze --task pydocs --source notes.txt --order twice --limit 3 --json

    Example: reread cloze --task squad --questions dev-v2.0.json --template jrt-2407 --order default --order twice

    Example: reread cloze --task fda --questions hub:hazyresearch/based-fda --shots 1
    """
    from flows.commands.single import preview_cloze, questions_of, run_single

    if source is not None and questions:
        raise SpecError("--source shows prompts over a file, --questions makes an artifact from files; give one of them")
    fields = {"task": task, "orders": order or None, "template": template, "shots": shots, "limit": limit}
    if source is not None:
        preview_cloze(fields, source, tokenizer, settings or [], json)
    else:
        fields |= {"tokenise": {"tokenizer": tokenizer} if tokenizer else None, "questions": questions_of(task, questions)}
        run_single("cloze", fields, settings or [], dry_run, flow, json)


@app.command()
def evaluate(
    checkpoint: Checkpoint,
    prompts: Annotated[str | None, typer.Option(metavar="ID", help="Prompts artifact; see reread list.")] = None,
    task: Annotated[str | None, typer.Option(help="Eval task whose prompts to write first.")] = None,
    questions: Questions = None,
    strategy: Annotated[str | None, typer.Option(help="How a prefix model reads: left_pad, iterate, ...")] = None,
    settings: Set = None, dry_run: DryRun = False, flow: Flow = False, json: Json = False,
) -> None:
    """Let a trained model answer prompts, and score the answers.

    Prompts are counted with the model's own tokenizer unless told otherwise.

    Example: reread evaluate --checkpoint checkpoint-0123456789abcdef --task lookup --set cloze.limit=50 --json

    Example: reread evaluate --checkpoint hf:my-model --task squad --questions dev-v2.0.json --set cloze.orders=[default,twice]
    """
    from flows.commands.single import questions_of, run_single

    if questions and not task:
        raise SpecError("--questions needs --task, which says in what format they are and how they are asked")
    asked = {"task": task, "questions": questions_of(task, questions)} if task else None
    fields = {"checkpoint": checkpoint, "prompts": prompts, "strategy": strategy, "cloze": asked}
    run_single("evaluate", fields, settings or [], dry_run, flow, json)


@app.command()
def perplexity(
    checkpoint: Checkpoint, settings: Set = None, dry_run: DryRun = False, flow: Flow = False, json: Json = False,
) -> None:
    """Let a trained model read text: its loss on what was seen earlier in the document, and on the rest.

    Example: reread perplexity --checkpoint checkpoint-0123456789abcdef --set sequences=200 --json
    """
    from flows.commands.single import run_single

    run_single("perplexity", {"checkpoint": checkpoint}, settings or [], dry_run, flow, json)


@app.command()
def extrapolate(
    checkpoint: Checkpoint,
    books: Annotated[list[str] | None, typer.Option(
        metavar="GLOB", help="Text files (.txt, .gz), a book each. Default: the corpus pydocs.")] = None,
    settings: Set = None, dry_run: DryRun = False, flow: Flow = False, json: Json = False,
) -> None:
    """Let a trained model read whole books, at lengths beyond its training.

    Example: reread extrapolate --checkpoint checkpoint-0123456789abcdef --books 'books/*.txt.gz' --set lengths=[512,4096]
    """
    from flows.commands.single import run_single

    run_single("extrapolation", {"checkpoint": checkpoint, "paths": books}, settings or [], dry_run, flow, json)


@app.command()
def deploy(
    checkpoint: Checkpoint, settings: Set = None, dry_run: DryRun = False, flow: Flow = False, json: Json = False,
) -> None:
    """Time a trained model as it would be served: first token, tokens a second and state, by input length.

    Example: reread deploy --checkpoint checkpoint-0123456789abcdef --set lengths=[512,2048] --json
    """
    from flows.commands.single import run_single

    run_single("deploy", {"checkpoint": checkpoint}, settings or [], dry_run, flow, json)


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
