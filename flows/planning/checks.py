"""What a plan can know of models and tokenizers before anything runs: sizes, budgets, and what does not fit together."""

from __future__ import annotations

from flows.planning.plan import present
from storage.artifacts import Store
from storage.errors import SpecError
from tasks.specs import (
    ClozeSpec,
    DisjointRowsSpec,
    EvaluationPlan,
    PretrainSpec,
    QuestionRowsSpec,
    RecallRowsSpec,
    TokeniseSpec,
)

Rows = RecallRowsSpec | DisjointRowsSpec | QuestionRowsSpec


def tokenizer_source(store: Store, checkpoint: str) -> str:
    """The artifact whose tokenizer a checkpoint reads with: the shards it was trained on, which all models of a study
    share, as far as its history is still there; else the checkpoint itself, which carries a copy."""
    inputs = present(store, checkpoint, "checkpoint").inputs
    if "rows" in inputs and store.exists(inputs["rows"]):
        inputs = store.manifest(inputs["rows"]).inputs
    shards = inputs.get("shards")
    return shards if shards and store.exists(shards) else checkpoint


def tokenizer_of(rows: Rows | None, tokenise: TokeniseSpec) -> str:
    """The tokenizer of what a model is trained on."""
    return f"ids:{rows.vocabulary}" if isinstance(rows, DisjointRowsSpec) else tokenise.tokenizer


def tokenizer_name(store: Store, checkpoint: str) -> str:
    """The tokenizer that a checkpoint reads with, as far as its history tells; else `bytes`, for text."""
    inputs = store.manifest(checkpoint).inputs
    if "rows" in inputs and store.exists(inputs["rows"]):
        rows = store.manifest(inputs["rows"])
        if rows.spec.get("kind") == "disjoint":
            return f"ids:{rows.spec['vocabulary']}"
        inputs = rows.inputs
    if "shards" in inputs and store.exists(inputs["shards"]):
        return str(store.manifest(inputs["shards"]).spec.get("tokenizer", "bytes"))
    return "bytes"


def check_readable(spec: ClozeSpec, tokenizer: str) -> None:
    """SpecError before any work when prompts are made of ids that a model trained with `tokenizer` does not know, or
    of text that it cannot read."""
    from tasks import cloze
    from tasks.tokenizers import embedding_rows

    task, options, _ = cloze.resolve(spec)
    own = task.vocabulary_tokenizer(options)
    if own == tokenizer or own is None and not tokenizer.startswith("ids:"):
        return
    if own is None or not tokenizer.startswith("ids:") or embedding_rows(own) > embedding_rows(tokenizer):
        raise SpecError(f"prompts of task {spec.task!r} are written in {own or 'text'}, the models are trained on "
                        f"{tokenizer}; change rows or task_options so that they agree")


def check_vocabulary(spec: PretrainSpec, tokenizer: str) -> None:
    """SpecError before any work when the model has too few rows for a tokenizer whose size its name tells."""
    from tasks import pretrain
    from tasks.tokenizers import check_name, embedding_rows

    check_name(tokenizer)
    pretrain.check_vocabulary(pretrain.resolve_config(spec), tokenizer, embedding_rows(tokenizer) or 0)


def check_prefix(spec: PretrainSpec, evaluation: EvaluationPlan) -> None:
    """SpecError before any work when prompts are to be filled up to an M that nothing says."""
    from models.sizing import Sketch
    from tasks.pretrain import resolve_config

    if evaluation.evaluate.strategy != "left_pad_released" or evaluation.evaluate.prefix_tokens is not None:
        return
    config = resolve_config(spec)
    if config.prefix_tokens is None and Sketch(config).able.prefix:
        raise SpecError(f"evaluation {evaluation.label!r}: strategy 'left_pad_released' fills prompts up to M, and neither "
                        f"it nor {spec.model} says what M is; set evaluate.prefix_tokens (1024 in JRT)")


def parameters(spec: PretrainSpec) -> int:
    """Parameters of the model, counted without its weights."""
    from models.sizing import Sketch
    from tasks.pretrain import resolve_config

    return Sketch(resolve_config(spec)).parameters


def tokens(spec: PretrainSpec, rows: Rows | None, tokenise: TokeniseSpec) -> int:
    """Training tokens of one pretraining, as far as the specs tell."""
    if spec.train.data == "shards" or rows is None:
        return (spec.train.steps or 0) * spec.train.global_batch_rows * tokenise.row_tokens
    whole = rows.batches * rows.batch_tokens if isinstance(rows, DisjointRowsSpec) else rows.tokens
    return min(whole, spec.train.steps * rows.batch_tokens) if spec.train.steps else whole
