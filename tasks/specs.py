"""What each stage is asked to do, as typed data.

One pydantic model per stage. The same model is the Prefect form, the YAML schema, the `--set` target of the command
line and, resolved, part of the artifact's identity. No field may change meaning without the stage's version changing.
This module imports neither torch nor ray, so that `reread --help` and the plan of a study stay quick.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

Order = Literal["default", "question_first", "alternate", "twice", "repeat", "filler"]
ORDERS: tuple[Order, ...] = ("default", "question_first", "alternate", "twice", "repeat", "filler")
DisjointOrder = Literal["small_first", "large_first"]
BenchPreset = Literal["quick", "gate", "long", "decode", "models", "growth", "lavo", "table5", "full"]


class Spec(BaseModel):
    """Base: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# ---------------------------------------------------------------------------------------------------------- corpus
class CorpusSpec(Spec):
    """Which text, and how it is cleaned and split. Produces a `corpus` artifact: one Arrow row per document."""

    source: Literal["pydocs", "files", "huggingface"] = Field("pydocs", description="Where the documents come from")
    packages: tuple[str, ...] = Field((), description="pydocs: distributions to read; empty = the built-in list")
    held_out_packages: tuple[str, ...] = Field(
        ("networkx",), description="pydocs: distributions whose documents all go to the split `held_out`")
    minimum_characters: int = Field(200, ge=1, description="Shorter documents are left out and counted [characters]")
    paths: tuple[str, ...] = Field((), description="files: globs of .txt, .jsonl or .parquet files, optionally .gz")
    dataset: str | None = Field(None, description="huggingface: data set name or local folder")
    dataset_config: str | None = Field(None, description="huggingface: configuration name")
    dataset_split: str = Field("train", description="huggingface: split to read")
    text_column: str = Field("text", description="files, huggingface: column or key that holds the text")
    on_bad_record: Literal["error", "skip"] = Field(
        "error", description="A record that cannot be read stops the stage, or is left out and counted by reason")
    near_duplicate_jaccard: float = Field(
        0.8, ge=0.3, le=1.0, description="Documents at least this similar on 5-word shingles are near-duplicates")
    deduplicate: bool = Field(True, description="Remove exact (folded) and near-duplicates")
    validation_share: float = Field(0.05, ge=0, lt=0.5, description="Share of documents, by hash, in `validation`")
    test_share: float = Field(0.10, ge=0, lt=0.5, description="Share of documents, by hash, in `test`")
    maximum_documents: int | None = Field(None, ge=1, description="Keep the first n by hash; None = all")

    @model_validator(mode="after")
    def _source_has_what_it_needs(self) -> CorpusSpec:
        if self.source == "files" and not self.paths:
            raise ValueError("source 'files' needs `paths`: one or more globs, for example ['data/*.jsonl.gz']")
        if self.source == "huggingface" and not self.dataset:
            raise ValueError("source 'huggingface' needs `dataset`: a hub name or a local folder")
        return self


class TokeniseSpec(Spec):
    """Corpus to Arrow shards. Produces a `shards` artifact that also carries the tokenizer."""

    tokenizer: str = Field("gpt2", description="`gpt2`, `bpe:<vocabulary size>`, `bytes`, `ids:<n>`, or `hf:<path or name>`")
    row_tokens: int = Field(2048, ge=8, le=1 << 20, description="N; a row holds N+1 tokens [tokens]")
    shard_rows: int = Field(4096, ge=1, description="Rows per shard, the unit of restart")


# ------------------------------------------------------------------------------------------------------------ rows
class RecallRowsSpec(Spec):
    """Training rows with attribute lines appended. Produces a `rows` artifact, the same for every architecture."""

    kind: Literal["recall"] = "recall"
    tokens: int = Field(3_900_000, ge=1000, description="Training tokens in all, padding not counted [tokens]")
    validation_tokens: int = Field(40_000, ge=0, description="Tokens of validation rows [tokens]")
    batch_tokens: int = Field(1024, ge=64, description="Tokens of a batch, rows bucketed by length [tokens]")
    maximum_document_tokens: int = Field(120, ge=16, description="Documents are cut at the last full line within this")
    maximum_questions: int = Field(6, ge=1, description="Attribute lines appended to a row")
    maximum_row_tokens: int = Field(512, ge=32, description="Longer rows are left out and counted")
    order_shares: dict[Order, float] = Field(
        default_factory=lambda: {"default": 0.6, "question_first": 0.2, "twice": 0.2},
        description="Share of rows drawn in each prompt order, by (seed, row)")
    swap_share: float = Field(0.5, ge=0, le=1, description="Share of document rows whose values are replaced by others")
    list_share_first: float = Field(1.0, ge=0, le=1, description="Share of synthetic list rows at the first row")
    list_share_last: float = Field(0.2, ge=0, le=1, description="Share of synthetic list rows at the last row")
    list_lines: tuple[int, int] = Field((4, 8), description="Fewest and most lines of a synthetic list")
    seed: int = Field(0, ge=0, description="Draws everything; never the training seed")


class QuestionRowsSpec(Spec):
    """Training rows of questions about passages of documents, in the form they are asked. Produces a `rows` artifact."""

    kind: Literal["questions"] = "questions"
    tokens: int = Field(3_000_000, ge=1000, description="Training tokens in all, padding not counted [tokens]")
    validation_tokens: int = Field(40_000, ge=0, description="Tokens of validation rows [tokens]")
    validation_share: float = Field(0.05, gt=0, lt=0.5, description="Share of documents, by hash, in validation rows")
    batch_tokens: int = Field(1024, ge=64, description="Tokens of a batch, rows bucketed by length [tokens]")
    passage_tokens: tuple[int, int] = Field((60, 120), description="Fewest and most tokens of a passage [tokens]")
    maximum_questions: int = Field(4, ge=1, description="Questions of one passage in a row")
    maximum_row_tokens: int = Field(512, ge=32, description="Longer rows are left out and counted")
    order_shares: dict[Order, float] = Field(
        default_factory=lambda: {"default": 0.6, "question_first": 0.2, "twice": 0.2},
        description="Share of rows drawn in each prompt order, by (seed, row)")
    swap_share: float = Field(
        0.5, ge=0, le=1, description="Share of passage rows whose answers are replaced by other documents' to the same question")
    list_share_first: float = Field(1.0, ge=0, le=1, description="Share of synthetic list rows at the first row")
    list_share_last: float = Field(0.2, ge=0, le=1, description="Share of synthetic list rows at the last row")
    list_lines: tuple[int, int] = Field((4, 8), description="Fewest and most lines of a synthetic list")
    seed: int = Field(0, ge=0, description="Draws everything; never the training seed")


class DisjointRowsSpec(Spec):
    """Training rows of JRT's set intersection. Produces a `rows` artifact of token ids."""

    kind: Literal["disjoint"] = "disjoint"
    vocabulary: int = Field(256, ge=32, description="Ids 0..3 are special, the rest is content")
    sizes: tuple[tuple[int, int], ...] = Field(
        ((4, 16), (4, 32), (4, 64)), description="(small, large) set sizes; both orders of each are drawn")
    batches: int = Field(1500, ge=1, description="Training batches; every batch has one size pair and order")
    batch_tokens: int = Field(1536, ge=32, description="Tokens of a batch [tokens]")
    curriculum: float = Field(2 / 3, ge=0, le=1, description="Sizes are added one by one until this share of training")
    seed: int = Field(0, ge=0, description="Draws everything")


# ------------------------------------------------------------------------------------------------------------ train
class ObjectiveSpec(Spec):
    """What is predicted. The terms are means over their own targets, then weighted."""

    kind: Literal["auto", "next_token", "prefix_lm", "answers"] = Field(
        "auto", description="auto: `answers` on rows; on shards `prefix_lm` for prefix models, else `next_token`")
    mask_share: float = Field(0.15, ge=0, le=1, description="Share of prefix positions masked (JRT 5: 0.15)")
    mask_weight: float = Field(0.25, ge=0, description="Weight of the masked term (JRT 5: 0.25)")
    prefix_share: float = Field(0.5, gt=0, lt=1, description="shards: prefix length as a share of N (JRT: 1024/2048)")
    normalisation: Literal["paper", "released"] = Field(
        "paper", description="paper divides the sum by the sum of weights (JRT Eq. 5); the released code does not")
    boundary: Literal["released", "predict"] = Field(
        "released", description="Whether slot m-1 predicts token m; the released code never does")
    document_share: float = Field(
        0.10, ge=0, le=1, description="answers: share of document tokens that causal models also predict")
    document_weight: float = Field(1.0, ge=0, description="answers: weight of that term")
    document_boundaries: bool = Field(
        True, description="shards: documents of a row do not see each other (the released code lets them)")


class OptimiserSpec(Spec):
    """AdamW, or Muon for matrices with AdamW for the rest. Weight decay spares biases, norms and embeddings."""

    kind: Literal["adamw", "muon"] = Field("adamw", description="muon: for matrices, AdamW for the rest")
    learning_rate: float = Field(8e-4, gt=0, description="AdamW's peak rate (with muon: embedding, norms, convolutions)")
    matrix_learning_rate: float = Field(0.02, gt=0, description="Muon's peak rate for matrices")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW's running averages")
    weight_decay: float = Field(0.1, ge=0, description="Decoupled; times the rate at each step")
    momentum: float = Field(0.95, ge=0, lt=1, description="Muon's momentum")
    schedule: Literal["cosine", "linear"] = Field("cosine", description="How the rate falls after the warm-up")
    warmup_steps: int = Field(600, ge=0, description="The rate rises linearly over these [steps]")
    final_share: float = Field(0.1, ge=0, le=1, description="Rate at the last step as a share of the peak")
    clip: float = Field(1.0, gt=0, description="Gradient norm is clipped at this")


class SweepSpec(Spec):
    """One field of the training, tried at several values before the training proper. Validation rows choose."""

    field: str = Field("optimiser.matrix_learning_rate", description="Dotted name of a number in the training spec")
    values: tuple[Annotated[float, Field(allow_inf_nan=False)], ...] = Field(description="What is tried; two or more")
    share: float = Field(0.12, gt=0, le=1, description="Each trial takes this share of the steps, with its own schedule")
    metric: Literal["validation"] = Field(
        "validation", description="The lowest loss per target of the validation rows wins, the smaller value if equal")

    @field_validator("values")
    @classmethod
    def _different(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(values)) < 2 or len(set(values)) < len(values):
            raise ValueError("give two or more different values to choose from")
        return tuple(sorted(values))


class TrainSpec(Spec):
    """How a model is trained, the same for every architecture of a study unless overridden there."""

    data: Literal["rows", "shards"] = Field("rows", description="Recall rows, or natural text from the shards")
    steps: int | None = Field(None, ge=1, description="Optimiser steps; None = all batches of the rows once")
    objective: ObjectiveSpec = ObjectiveSpec()
    optimiser: OptimiserSpec = OptimiserSpec()
    trainer: Literal["in_process", "deepspeed"] = Field(
        "in_process", description="in_process: a plain loop for small models; deepspeed: Ray Train workers")
    workers: int = Field(1, ge=1, description="deepspeed: training workers")
    gpus_per_worker: int = Field(0, ge=0, le=1, description="0: train on CPUs")
    zero_stage: Literal[0, 1, 2, 3] = Field(
        0, description="deepspeed: shard optimiser (1), gradients too (2), weights too (3)")
    precision: Literal["float32", "bfloat16"] = Field("float32", description="Of the forward and backward pass")
    global_batch_rows: int = Field(256, ge=1, description="shards: rows of one optimiser step, over all workers")
    micro_batch_rows: int = Field(8, ge=1, description="shards: rows of one forward pass on one worker")
    threads: int = Field(1, ge=1, description="CPU threads of a training process")
    checkpoint_every: int = Field(500, ge=1, description="Steps between resumable checkpoints")
    validate_every: int = Field(500, ge=1, description="Steps between validations")
    validation_batches: int = Field(16, ge=1, description="Batches of one validation")
    log_every: int = Field(25, ge=1, description="Steps between points of the curves")
    maximum_restarts: int = Field(2, ge=0, description="deepspeed: worker failures survived")
    trial: float | None = Field(
        None, gt=0, le=1, description="Train on this share of the steps, spread over all the data, for the losses alone")
    sweep: SweepSpec | None = Field(None, description="Choose a value on short trials first; None = as written here")

    @model_validator(mode="after")
    def _fits_together(self) -> TrainSpec:
        if self.trainer == "in_process" and (self.workers != 1 or self.zero_stage != 0):
            raise ValueError("trainer 'in_process' has one worker and no ZeRO; use trainer 'deepspeed'")
        if self.optimiser.kind == "muon" and self.zero_stage > 0:
            raise ValueError("optimiser 'muon' needs whole matrices: zero_stage must be 0, or use 'adamw'")
        if self.data == "shards":
            if self.steps is None:
                raise ValueError("data 'shards' needs `steps`")
            if self.global_batch_rows % (self.micro_batch_rows * self.workers):
                raise ValueError(
                    f"global_batch_rows {self.global_batch_rows} is not a multiple of micro_batch_rows x workers = "
                    f"{self.micro_batch_rows * self.workers}; row order would depend on the number of workers")
        return self

    @model_validator(mode="after")
    def _sweep_fits(self) -> TrainSpec:
        if self.sweep is not None:
            if self.trial is not None:
                raise ValueError("a trial sweeps nothing: leave out `trial` or `sweep`")
            for value in self.sweep.values:
                self.at(value)
        return self

    def at(self, value: float, trial: float | None = None) -> TrainSpec:
        """This training with the swept field at `value` and nothing left to sweep; as a trial of that share if given.

        Raises ValueError where the field does not exist or refuses the value.
        """
        data = self.model_dump() | {"sweep": None, "trial": trial}
        *path, last = self.sweep.field.split(".")
        inner: Any = data
        for part in path:
            inner = inner.get(part) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or not isinstance(inner.get(last), (int, float)) or isinstance(inner[last], bool):
            raise ValueError(f"sweep.field {self.sweep.field!r} names no number of the training spec that has a value; "
                             "for example optimiser.matrix_learning_rate")
        inner[last] = value
        try:
            return TrainSpec.model_validate(data)
        except ValidationError as error:
            raise ValueError(f"sweep.values: {self.sweep.field} refuses {value:g}: {error.errors()[0]['msg']}") from error


class PretrainSpec(Spec):
    """One model trained once. Produces a `checkpoint` artifact."""

    architecture: str = Field(description="Label in reports, for example jrt")
    model: str = Field(description="Preset name; `reread models` lists them")
    model_overrides: dict[str, Any] = Field(default_factory=dict, description="Fields of the model config to change")
    seed: int = Field(0, ge=0, description="Initial weights and masks")
    train: TrainSpec = TrainSpec()


# ------------------------------------------------------------------------------------------------- cloze, evaluation
class RewriterSpec(Spec):
    """Who turns a question and its answer into a statement that ends in the answer."""

    kind: Literal["rules", "endpoint"] = Field(
        "rules", description="rules: by grammar, always the same; endpoint: a language model behind an OpenAI-style API")
    url: str = Field("http://127.0.0.1:8000/v1", description="endpoint: base address, up to and including /v1")
    model: str = Field("", description="endpoint: the model's name there (JRT: Llama-3-70B)")
    key_variable: str = Field("OPENAI_API_KEY", description="endpoint: environment variable that holds the key, if any")
    prompt: str = Field("v1", description="endpoint: version of the instruction")
    temperature: float = Field(0.0, ge=0, description="endpoint: 0 = the likeliest text")
    maximum_tokens: int = Field(96, ge=1, description="endpoint: longest reply [tokens]")
    concurrency: int = Field(8, ge=1, description="endpoint: requests at once, over all workers")
    timeout: float = Field(60.0, gt=0, description="endpoint: of one request [seconds]")
    tries: int = Field(5, ge=1, description="endpoint: of one question; between them it waits longer and longer")
    price_in: float = Field(0.0, ge=0, description="endpoint: of a million prompt tokens, for the bill that is shown")
    price_out: float = Field(0.0, ge=0, description="endpoint: of a million reply tokens")


class QuestionsSpec(Spec):
    """Documents, questions and answers in their original format. Produces a `questions` artifact with a cloze each."""

    task: str = Field(description="Eval task whose format is read: fda, swde, squad, nq, triviaqa, drop")
    paths: tuple[str, ...] = Field((), description="Files, folders or globs of the original or the published format")
    dataset: str | None = Field(None, description="Hub name or local folder of a published cloze set, instead of paths")
    dataset_config: str | None = Field(None, description="Its configuration; empty = the published one")
    dataset_split: str = Field("validation", description="Its split; the published sets have only this one")
    format: str = Field("auto", description="One of the task's formats; auto = told from the files")
    rewriter: RewriterSpec = RewriterSpec()
    on_bad_record: Literal["error", "skip"] = Field(
        "skip", description="skip: what cannot be used is kept with its reason; error: the first one stops the stage")
    limit: int | None = Field(None, ge=1, description="Documents to read, in the order of the files; None = all")

    @model_validator(mode="after")
    def _has_a_source(self) -> QuestionsSpec:
        if bool(self.paths) == bool(self.dataset):
            raise ValueError("give either `paths`, files in the original format, or `dataset`, a published set")
        return self


class ClozeSpec(Spec):
    """Prompts of one eval task in every order. Produces a `prompts` artifact."""

    task: str = Field(description="Eval task, one file under tasks/evals: pydocs, lookup, disjoint, fda, squad, ...")
    task_options: dict[str, Any] = Field(default_factory=dict, description="Fields of that task's own options")
    orders: tuple[str, ...] = Field(("default", "question_first", "twice"), description="Prompt orders to write")
    template: Literal["clean", "jrt-2407"] = Field(
        "clean", description="Template version; jrt-2407: the released prompts byte for byte (default and twice)")
    shots: int = Field(0, ge=0, le=8, description="Worked examples before the question, each with its own document")
    tokenizer: str | None = Field(
        None, description="`gpt2`, `bytes` or `hf:<name>`, for a task without a corpus; None = the shards'")
    budget: Literal["document", "total", "released"] = Field(
        "document", description="document: the same cut in every order, prompts may grow; total: the longest order fits; "
                                "released: document_tokens around the answer as the released code cuts")
    document_tokens: int = Field(120, ge=8, description="budgets `document`, `released`: document length limit [tokens]")
    total_tokens: int = Field(2048, ge=32, description="Prompt and generation together never exceed this [tokens]")
    generation_tokens: int = Field(48, ge=1, description="Room kept for the answer [tokens]")
    split: Literal["validation", "test"] = Field("test", description="Whose documents; settings are chosen on validation")
    limit: int | None = Field(300, ge=1, description="Documents per column; None = all")
    seed: int = Field(0, ge=0, description="Draws documents, questions and replaced values")


class EvaluateSpec(Spec):
    """A checkpoint answers prompts. Produces a `scores` artifact with every prediction."""

    strategy: Literal["left_pad", "left_pad_released", "iterate", "reread"] = Field(
        "left_pad", description="How a prefix model reads the prompt, others ignore it; reread: every model "
                                "reads the prompt twice")
    keep_out: Literal["question", "one", "none"] = Field(
        "question", description="Prompt tail left out of the prefix: the cloze line, one token, or nothing")
    prefix_tokens: int | None = Field(None, ge=0, description="M; None = the model's own")
    batch_rows: int = Field(32, ge=1, description="Prompts answered together; changes speed, not answers")
    generation_tokens: int = Field(48, ge=1, description="An answer ends here or at a newline [tokens]")
    metric: Literal["contains", "exact", "squad_exact", "f1", "rouge_l"] = Field(
        "contains", description="contains: the answer occurs in what is said; the others stand beside it in every table")
    tokenizer: str | None = Field(
        None, description="Of a model of transformers that brings none: `bytes`, `gpt2` or `hf:<name>`; None = its own")
    likelihood: bool = Field(False, description="Also the log-likelihood of each answer after its prompt [nats]")
    actors: int = Field(1, ge=1, description="Ray actors that share the prompts, each with a copy of the model")
    gpus_per_actor: float = Field(0, ge=0, le=1, description="0: on the CPU, or on the GPU of the process if there is one")
    dtype: Literal["float32", "float64", "bfloat16"] = Field("float32", description="Of the weights and the state")
    bootstrap: int = Field(2000, ge=100, description="Bootstrap resamples of documents")
    threads: int = Field(1, ge=1, description="CPU threads")
    seed: int = Field(0, ge=0, description="Of the bootstrap")


class BenchSpec(Spec):
    """Correctness-gated timings. Produces a `timings` artifact."""

    preset: BenchPreset = Field("quick", description="What to time; `reread bench --list` describes each")
    device: Literal["cpu", "cuda"] = Field("cpu", description="Where; cuda takes one GPU, which Ray finds with --flow")
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="Of the inputs; empty = float32 on a CPU, bfloat16 on a GPU")
    threads: int = Field(1, ge=1, description="CPU threads")
    seed: int = Field(0, ge=0, lt=2**31, description="Draws the inputs")
    operations: tuple[str, ...] = Field((), description="Only these operations of the preset; empty = all")
    lengths: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (), description="Only these lengths of the preset; empty = all [tokens]")
    machine: str | None = Field(None, description="Whose figures these are; empty = this machine's processor or GPU")

    @field_validator("operations", "lengths", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        """`taylor`, `taylor,sdpa`, 512 and lists alike; nothing is empty."""
        if value is None:
            return ()
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return (value,) if isinstance(value, int) else value


# ----------------------------------------------------------------------------------------------------------- deploy
class DeploySpec(Spec):
    """Speed and memory of one checkpoint by input length. Produces a `deploy` artifact."""

    lengths: tuple[Annotated[int, Field(ge=2)], ...] = Field(
        (512, 1024, 2048, 4096), min_length=1, description="Input lengths to measure [tokens]")
    batch_rows: int = Field(1, ge=1, description="Prompts served together")
    generation_tokens: int = Field(32, ge=2, description="Tokens of the timed decode, after the first [tokens]")
    repeats: int = Field(5, ge=1, description="Timed prefills and decodes of each length; the median counts")
    warm_up: int = Field(1, ge=0, description="Of these before, which are not timed")
    check_tokens: int = Field(256, ge=2, description="First tokens of each length on which the gate runs [tokens]")
    prefix_tokens: int | None = Field(None, ge=0, description="M; None = the model's own")
    device: Literal["cpu", "cuda"] = Field("cpu", description="Where")
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="Of the weights and the state; empty = float32 on a CPU, bfloat16 on a GPU")
    threads: int = Field(1, ge=1, description="CPU threads")
    seed: int = Field(0, ge=0, lt=2**31, description="Draws the inputs")
    machine: str | None = Field(None, description="Whose figures these are; empty = this machine's processor or GPU")

    @field_validator("lengths", mode="before")
    @classmethod
    def _one_or_several_lengths(cls, value: Any) -> Any:
        """`512`, `512,1024` and lists alike."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return (value,) if isinstance(value, int) else value


# ------------------------------------------------------------------------------------------------------- perplexity
Edges = tuple[Annotated[int, Field(ge=0)], ...]


class BigramsSpec(Spec):
    """How often each pair of neighbouring tokens occurs in training text. Produces a `bigrams` artifact."""

    split: Literal["train", "validation", "test", "held_out"] = Field("train", description="Whose tokens are counted")
    documents: int | None = Field(
        None, ge=1, description="Count over the first n documents; None = all (JRT App. B.4: 10,000,000 of the Pile)")
    cross_documents: bool = Field(
        False, description="Also count the pair of a document's last token and the end-of-text id before the next one")


class PerplexitySpec(Spec):
    """A checkpoint reads text, and its loss is sliced by recall, rarity and distance. Produces a `perplexity` artifact."""

    split: Literal["train", "validation", "test", "held_out"] = Field("test", description="Whose text is read")
    sequences: int | None = Field(3200, ge=1, description="Rows or documents, in their order; None = all (JRT: 3,200)")
    sequence_tokens: int = Field(
        2048, ge=8, description="documents: longer ones are cut there [tokens] (JRT: 2,048); rows are as long as they are")
    minimum_tokens: int = Field(64, ge=4, description="documents: shorter ones are left out and counted [tokens]")
    prefix_share: float = Field(
        0.5, ge=0, lt=1, description="Share of a sequence that is not scored, and that prefix models read both ways")
    read_prefix: bool = Field(True, description="False: prefix models read all of it causally, as the others do")
    documents_apart: bool = Field(
        True, description="rows: documents of a row do not see each other, and repeats across them do not count")
    minimum_distance: int = Field(
        1024, ge=1, description="By training frequency: recall tokens repeat at least this far back [tokens] (JRT: 1,024)")
    maximum_count: int = Field(
        1000, ge=1, description="By distance: only pairs seen fewer times than this in training (JRT: 1,000)")
    frequency_edges: Edges = Field(
        (0, 1, 10, 100, 1_000, 10_000, 100_000, 1_000_000),
        description="Lower ends of the buckets of training counts; the last is open (not published)")
    distance_edges: Edges = Field(
        (1, 4, 16, 64, 256, 1024), description="Lower ends of the buckets of distances; the last is open (not published)")
    batch_rows: int = Field(8, ge=1, description="Sequences read together")
    dtype: Literal["float32", "float64", "bfloat16"] = Field("float32", description="Of the weights")
    bootstrap: int = Field(2000, ge=100, description="Bootstrap resamples of sequences")
    threads: int = Field(1, ge=1, description="CPU threads")
    seed: int = Field(0, ge=0, description="Of the bootstrap")

    @field_validator("frequency_edges", "distance_edges")
    @classmethod
    def _rise(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or any(a >= b for a, b in zip(value, value[1:])):
            raise ValueError("edges must rise, for example 0, 1, 10, 100")
        return value


class ExtrapolationSpec(Spec):
    """A checkpoint reads whole books, at lengths beyond its training. Produces an `extrapolation` artifact."""

    paths: tuple[str, ...] = Field((), description="Globs of .txt files, optionally .gz, one book each; empty = a corpus")
    split: Literal["train", "validation", "test", "held_out"] = Field("test", description="corpus: whose documents")
    protocols: tuple[Literal["blocks", "positions"], ...] = Field(
        ("blocks", "positions"), description="blocks: all text cut into blocks of each length, each read from nothing "
                                             "(LAVO Table 2, Figure 4); positions: each book once, loss by position")
    lengths: tuple[Annotated[int, Field(ge=8)], ...] = Field(
        tuple(512 << k for k in range(9)), description="Tested lengths [tokens] (LAVO: 8192, 12288, 16384; 2k to 128k). "
                                                        "blocks: all are cut from the same text, in stretches of their "
                                                        "least common multiple")
    windows: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (), description="Also with every window of the model set to these [tokens]; the weights stay (LAVO Figure 4: w)")
    tokens: int | None = Field(None, ge=8, description="blocks: read this much text at most [tokens]; None = all")
    books: int | None = Field(None, ge=1, description="The first n books, in the order of their names; None = all")
    piece_tokens: int = Field(1024, ge=1, description="Read in pieces of at most this, over all rows [tokens]")
    batch_rows: int = Field(8, ge=1, description="Blocks read side by side")
    growing_limit: int | None = Field(
        16_384, ge=8, description="Longest length for models whose state grows with it [tokens]; None = no limit")
    dtype: Literal["float32", "float64", "bfloat16"] = Field("float32", description="Of the weights and the state")
    bootstrap: int = Field(2000, ge=100, description="Bootstrap resamples of stretches of text, or of books")
    threads: int = Field(1, ge=1, description="CPU threads")
    seed: int = Field(0, ge=0, description="Of the bootstrap")

    @field_validator("lengths")
    @classmethod
    def _rise(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or any(a >= b for a, b in zip(value, value[1:])):
            raise ValueError("lengths must rise, for example 2048, 4096, 8192")
        return value


# ------------------------------------------------------------------------------------------------------------ study
class EvaluationPlan(Spec):
    """One set of prompts and how it is answered."""

    name: str = Field("", pattern=r"^[A-Za-z0-9_.|+ -]*$", description="Label in reports; empty = the task's name")
    questions: QuestionsSpec | None = Field(None, description="What a task of questions and documents reads")
    cloze: ClozeSpec
    evaluate: EvaluateSpec = EvaluateSpec()

    @property
    def label(self) -> str:
        """The name that its scores go by."""
        return self.name or self.cloze.task

    @model_validator(mode="after")
    def _one_task(self) -> EvaluationPlan:
        if self.questions is not None and self.questions.task != self.cloze.task:
            raise ValueError(f"questions.task is {self.questions.task!r} and cloze.task {self.cloze.task!r}; "
                             "they must be the same")
        return self


class ArchitecturePlan(Spec):
    """One architecture of a workload: a preset to train, or a model that is trained already."""

    model: str = Field("", description="Preset name; `reread models` lists them")
    checkpoint: str | None = Field(
        None, description="Instead of a preset: the id of a checkpoint artifact, or `hf:<folder or hub name>`")
    model_overrides: dict[str, Any] = Field(default_factory=dict)
    train_overrides: dict[str, Any] = Field(default_factory=dict, description="Dotted names, e.g. optimiser.learning_rate")

    @model_validator(mode="after")
    def _preset_or_checkpoint(self) -> ArchitecturePlan:
        if bool(self.model) == bool(self.checkpoint):
            raise ValueError("give either `model`, a preset to train, or `checkpoint`, a model that is trained already")
        if self.checkpoint and (self.model_overrides or self.train_overrides):
            raise ValueError("a checkpoint is taken as it is; leave out model_overrides and train_overrides")
        return self


class PerplexityPlan(Spec):
    """One reading of the workload's text. Models trained here read rows of their shards, others documents."""

    perplexity: PerplexitySpec = PerplexitySpec()
    bigrams: BigramsSpec | None = Field(BigramsSpec(), description="Slice by how often training saw a pair; None = do not")


class Workload(Spec):
    """Models trained on the same rows in the same order, and what they are asked afterwards."""

    corpus: CorpusSpec | None = Field(None, description="None: the task makes its own data (disjoint)")
    training_questions: QuestionsSpec | None = Field(
        None, description="Where rows of kind `questions` are drawn from: other documents than are asked about later")
    tokenise: TokeniseSpec = TokeniseSpec()
    rows: RecallRowsSpec | DisjointRowsSpec | QuestionRowsSpec | None = Field(None, discriminator="kind")
    train: TrainSpec = TrainSpec()
    architectures: dict[str, ArchitecturePlan]
    seeds: tuple[int, ...] = (0,)
    evaluations: tuple[EvaluationPlan, ...] = ()
    perplexities: dict[str, PerplexityPlan] = Field(default_factory=dict, description="Label to how text is read")
    extrapolations: dict[str, ExtrapolationSpec] = Field(default_factory=dict, description="Label to lengths and books")
    deploys: dict[str, DeploySpec] = Field(default_factory=dict, description="Label to input lengths that are timed")


class Expectation(Spec):
    """What must hold, or the study exits with an error: the architecture beats both controls, interval above zero."""

    workload: str
    task: str = Field(description="Label of the evaluation: its name, or the task's")
    column: str = "natural"
    order: str = "default"
    architecture: str


class StudySpec(Spec):
    """A whole study: every workload from corpus to scores, one benchmark, one report."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")
    about: str
    question: str = Field("", description="The question the report opens with")
    estimated_minutes: float = Field(description="On two cores, from nothing [minutes]")
    workloads: dict[str, Workload]
    data: str = Field("data", description="Folder that {data} stands for in paths and checkpoints")
    bench: BenchSpec | None = BenchSpec()
    claims: dict[str, str] = Field(
        default_factory=dict, description="Cell of a table, `workload/architecture/label/column/order`, to the claim beside it")
    reference: str | None = Field(
        None, description="The report takes differences against this architecture alone; None = all pairs, if few")
    expectations: tuple[Expectation, ...] = ()
