"""`reread ask`: one question about one document, the answer as it comes."""

from __future__ import annotations

import difflib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import typer

from flows.commands.look import check_ours, whole
from flows.commands.output import document as json_document
from flows.commands.output import say, size
from flows.forms.requests import present
from storage.artifacts import Store
from storage.errors import ConfigError, SpecError, TokenizerError

STDIN = "-"


def run_ask(checkpoint: str, source: str, question: str, cloze: str | None, order: str, strategy: str, max_tokens: int,
            tokenizer_name: str | None, json: bool) -> None:
    """Check everything that is cheap, load the model, stream the answer, then say what it cost."""
    from tasks.asking import ORDERS
    from tasks.specs import EvaluateSpec

    _known("order", order, ORDERS)
    _known("strategy", strategy, get_args(EvaluateSpec.model_fields["strategy"].annotation))
    if max_tokens < 1:
        raise SpecError(f"--max-tokens: got {max_tokens}, expected 1 or more")
    place = find(checkpoint)
    tokenizer = tokenizer_for(checkpoint, place, tokenizer_name)
    text = read(source)
    if not text.strip():
        raise SpecError(f"--document {source}: it is empty; give a text to ask about")

    from tasks.asking import ask, write

    began = time.perf_counter()
    model = load(checkpoint, place)
    _fits(tokenizer, model)
    asked = write(text, question, question if cloze is None else cloze, order, tokenizer,
                  _room(model.able.max_length, strategy, max_tokens), max_tokens)
    loading = time.perf_counter() - began
    if asked.truncated:
        sys.stderr.write(f"the document was cut from {asked.document_tokens:,} to {asked.shown_tokens:,} tokens: prompt "
                         f"and answer may hold {model.able.max_length:,}\n")
    reply = _streamed(lambda emit: ask(asked, model, tokenizer, EvaluateSpec(strategy=strategy), max_tokens, emit), json)
    told = {
        "answer": reply.text.strip(), "checkpoint": checkpoint if place is None else place.name, "order": order,
        "strategy": strategy, "prompt_tokens": len(asked.prompt.ids), "generated_tokens": len(reply.ids),
        "document_tokens": asked.document_tokens, "shown_tokens": asked.shown_tokens, "truncated": asked.truncated,
        "state_bytes": reply.state_bytes,
        "seconds": {"load": round(loading, 3), "prefill": round(reply.prefill_seconds, 4),
                    "decode": round(reply.decode_seconds, 4)},
        "tokens_per_second": {"prefill": _rate(len(asked.prompt.ids), reply.prefill_seconds),
                              "decode": _rate(reply.steps, reply.decode_seconds)}}
    if json:
        json_document(told)
        return
    if not reply.ids:
        sys.stderr.write("the model ends its answer before the first token\n")
    rates = told["tokens_per_second"]
    decode = "no further step" if rates["decode"] is None else f"{rates['decode']:,.1f} tokens/s decode"
    sys.stderr.write(f"{len(asked.prompt.ids):,} prompt tokens, state {size(reply.state_bytes)}, "
                     f"{rates['prefill']:,.1f} tokens/s prefill, {decode}\n")


def _room(limit: int | None, strategy: str, maximum_new: int) -> int | None:
    """Tokens of prompt and answer together; a prompt that is read twice leaves its answer as much, and itself half."""
    return limit if limit is None or strategy != "reread" else (limit + maximum_new) // 2


def find(checkpoint: str) -> Path | None:
    """The folder of a checkpoint of ours; None for a model of transformers.

    :raises ConfigError: a folder that holds something else
    :raises ArtifactError: no such artifact, or one of another kind
    """
    from tasks.external import is_external, place

    if is_external(checkpoint):
        place(checkpoint)
        return None
    folder = Path(checkpoint).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{folder}: no config.json there; give a folder written by save_model, the id of a "
                              "checkpoint (reread list --kind checkpoint), or hf:<folder or hub name>")
        check_ours(folder, f"ask it as hf:{checkpoint}")
        return folder
    store = Store()
    identifier = whole(store, checkpoint)
    present(store, identifier, "checkpoint")
    return store.path(identifier)


def tokenizer_for(checkpoint: str, place: Path | None, name: str | None) -> Any:
    """The tokenizer that was named, else the one beside the weights.

    :raises TokenizerError: there is none
    """
    from tasks import external
    from tasks.tokenizers import DESCRIPTION, load_tokenizer

    if place is None:
        folder, *_ = external.place(checkpoint)
        if name is None:
            try:
                return external.tokenizer_of(checkpoint)
            except TokenizerError as error:
                raise TokenizerError(f"{error}; or name it, for example --tokenizer bytes") from error
        return load_tokenizer(name) if folder is None else external.fitted(load_tokenizer(name), folder)
    if name is not None:
        return load_tokenizer(name)
    if not (place / "tokenizer" / DESCRIPTION).is_file():
        raise TokenizerError(f"{place}: no tokenizer/{DESCRIPTION} there, so its text cannot be read; give the tokenizer "
                             "it was trained with, for example --tokenizer gpt2")
    return load_tokenizer(place / "tokenizer")


def load(checkpoint: str, place: Path | None) -> Any:
    """The model, on the GPU if there is one."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if place is None:
        from tasks.external import load_external

        return load_external(checkpoint, device=device)
    from models import load_model

    return load_model(place, device=device)


def read(source: str) -> str:
    """The text of a file, or of stdin for `-`.

    :raises SpecError: it is not there, or not UTF-8 text
    """
    try:
        raw = sys.stdin.buffer.read() if source == STDIN else Path(source).expanduser().read_bytes()
    except FileNotFoundError as error:
        raise SpecError(f"--document {source}: there is no such file; give a text file, or - for stdin") from error
    except OSError as error:
        raise SpecError(f"--document {source}: cannot be read ({error.strerror}); give a text file, or - for stdin"
                        ) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"--document {source}: not UTF-8 text (byte {raw[error.start]:#x} at {error.start}); convert it "
                        "first") from error


def _fits(tokenizer: Any, model: Any) -> None:
    """Special ids may lie above the table, since text never holds them; the one before every document may not."""
    highest = max(int(tokenizer.byte_lengths.nonzero()[0].max()), tokenizer.end_of_text)
    if highest >= model.config.table_rows:
        raise TokenizerError(f"tokenizer {tokenizer.name} gives ids up to {highest}, the model's table has "
                             f"{model.config.table_rows} rows; name the tokenizer that it was trained with (--tokenizer)")


def _streamed(run: Any, json: bool) -> Any:
    """The reply of `run`, its pieces written as they come, without the blank before the first word."""
    begun = False

    def emit(piece: str) -> None:
        nonlocal begun
        piece = piece if begun else piece.lstrip()
        if piece:
            begun = True
            sys.stdout.write(piece)
            sys.stdout.flush()

    try:
        reply = run((lambda piece: None) if json else emit)
    except KeyboardInterrupt:
        if begun:
            say()
        raise
    except BrokenPipeError:              # `| head`: who reads has gone, and Python would complain once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    if begun:
        say()
    return reply


def _known(name: str, given: str, choices: Sequence[str]) -> None:
    if given not in choices:
        near = difflib.get_close_matches(given, choices, n=3, cutoff=0.5)
        raise SpecError(f"--{name}: got {given!r}, expected one of {', '.join(choices)}"
                        + (f"; did you mean {' or '.join(near)}?" if near else ""))


def _rate(tokens: int, seconds: float) -> float | None:
    return round(tokens / seconds, 1) if tokens and seconds > 0 else None
