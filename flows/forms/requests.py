"""What each flow is asked, as typed data: the form in the Prefect UI, and the `--set` target of the command line.

Free of Prefect, so that the command line can read and change a request without starting anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from flows.forms import titles
from flows.forms.checkpoints import resolve, whole
from flows.planning.builder import Builder
from flows.planning.checks import check_readable, tokenizer_name, tokenizer_source, tokens
from flows.planning.plan import Plan, present
from flows.studies import shipped
from storage.artifacts import Store
from tasks.external import is_external, label
from tasks.specs import (
    BenchSpec,
    BigramsSpec,
    ClozeSpec,
    CorpusSpec,
    DeploySpec,
    DisjointRowsSpec,
    EvaluateSpec,
    EvaluationPlan,
    ExtrapolationSpec,
    PerplexityPlan,
    PerplexitySpec,
    PretrainSpec,
    QuestionRowsSpec,
    QuestionsSpec,
    RecallRowsSpec,
    Spec,
    TokeniseSpec,
)

CHECKPOINT = ("Id of a checkpoint artifact or its first letters, `models:/NAME/3` or `models:/NAME@alias` of a registered "
              "model, or `hf:<folder or hub name>` of a model of transformers")


class StudyRequest(Spec):
    """Which study to run, and what to change in it."""

    study: Literal[tuple(shipped())] = Field("quick", description="Shipped study to run")     # type: ignore[valid-type]
    file: str | None = Field(None, description="Path of a .yaml study on the machine that runs it; replaces `study`")
    settings: tuple[str, ...] = Field((), description="Changes, one NAME=VALUE each, for example train.steps=100")

    def title(self, store: Store) -> str:
        changes = titles.count(len(self.settings), "change") if self.settings else None
        return titles.joined(f"study {Path(self.file).stem if self.file else self.study}", changes)


class TokeniseRequest(TokeniseSpec):
    """A corpus to read and the tokenizer to cut it with."""

    corpus: CorpusSpec = Field(CorpusSpec(), description="Which text")

    def plan(self, store: Store) -> Plan:
        builder = Builder("tokenise", store)
        made = builder.data("corpus", self.corpus, narrowed(self, TokeniseSpec), None)
        return goal(builder, made["shards"])

    def title(self, store: Store) -> str:
        return f"tokenise {titles.text(self.corpus)} with {self.tokenizer}"


class PretrainRequest(PretrainSpec):
    """One model, and the data to train it on: recall rows made from a corpus, disjoint rows, or plain text."""

    architecture: str = Field("", description="Label in reports; empty = the preset's first word")
    experiment: str = Field("pretrain", description="Experiment in MLflow")
    corpus: CorpusSpec | None = Field(None, description="Which text; empty with recall rows or plain text = pydocs")
    tokenise: TokeniseSpec = Field(TokeniseSpec(tokenizer="bpe:1024"), description="How the text is cut")
    questions: QuestionsSpec | None = Field(None, description="What rows of kind 'questions' are drawn from")
    rows: RecallRowsSpec | DisjointRowsSpec | QuestionRowsSpec | None = Field(
        None, description="Training rows; empty = recall rows, unless train.data is 'shards'", discriminator="kind")

    @model_validator(mode="after")
    def _rows_fit_the_data(self) -> PretrainRequest:
        if self.train.data == "shards" and self.rows is not None:
            raise ValueError("train.data 'shards' trains on plain text; leave `rows` empty")
        return self

    def plan(self, store: Store) -> Plan:
        builder = Builder(self.experiment, store)
        rows = self.rows or (RecallRowsSpec() if self.train.data == "rows" else None)
        text = None if isinstance(rows, DisjointRowsSpec) else self.corpus or CorpusSpec()
        made = builder.data("data", text, self.tokenise, rows, self.questions)
        spec = narrowed(self, PretrainSpec, architecture=self.architecture or self.model.split("-")[0])
        return goal(builder, builder.pretrain("data", spec, made, rows, self.tokenise))

    def title(self, store: Store) -> str:
        rows = self.rows or (RecallRowsSpec() if self.train.data == "rows" else None)
        data = titles.text(self.corpus)
        if isinstance(rows, DisjointRowsSpec):
            data = "set intersection"
        elif isinstance(rows, QuestionRowsSpec):
            data = f"{self.questions.task if self.questions else 'unnamed'} questions"
        seen = titles.count(tokens(narrowed(self, PretrainSpec, architecture="", model=self.model), rows, self.tokenise), "token")
        return titles.joined(f"pretrain {self.model} on {data}", seen, f"seed {self.seed}" if self.seed else None)


class ClozeRequest(ClozeSpec):
    """An eval task, and the corpus or the questions it asks about."""

    corpus: CorpusSpec | None = Field(None, description="Which text; empty = pydocs, where the task needs text")
    questions: QuestionsSpec | None = Field(None, description="Which documents and questions, where the task needs them")
    tokenise: TokeniseSpec | None = Field(
        None, description="Whose tokens are counted; empty = the model's, or bpe:1024 of the corpus, or gpt2")

    @model_validator(mode="after")
    def _one_task(self) -> ClozeRequest:
        if self.questions is not None and self.questions.task != self.task:
            raise ValueError(f"questions.task is {self.questions.task!r} and task {self.task!r}; they must be the same")
        return self

    def plan(self, store: Store) -> Plan:
        builder = Builder("cloze", store)
        return goal(builder, self.prompts(builder))

    def title(self, store: Store) -> str:
        return titles.joined(f"cloze {self.task}", titles.count(len(self.asked_orders()), "order"))

    def asked_orders(self) -> tuple[str, ...]:
        """The prompt orders, those of the task where none are said."""
        from tasks.cloze import resolve as resolved

        return resolved(narrowed(self, ClozeSpec))[2].orders

    def prompts(self, builder: Builder, checkpoint: str | None = None, tokenizer: str | None = None) -> str:
        """The id of the prompts, their stages added to `builder`. checkpoint: who will answer, so whose tokens count;
        tokenizer: of a model that brings none."""
        from tasks.evals.base import get_task

        spec, task = narrowed(self, ClozeSpec), get_task(self.task)
        named = self.tokenizer or (self.tokenise.tokenizer if self.tokenise else None)
        asked_for = None if named else checkpoint
        text = self.corpus or (CorpusSpec() if task.needs_corpus else None)
        made = {}
        if text is not None:
            tokenise = self.tokenise or TokeniseSpec(tokenizer=named or "bpe:1024")
            made = builder.data("data", text, None if asked_for else tokenise, None)
        elif not asked_for:
            spec = spec.model_copy(update={"tokenizer": named or "gpt2"})
        plan = EvaluationPlan(questions=self.questions, cloze=spec, evaluate=EvaluateSpec(tokenizer=tokenizer))
        return builder.prompts("data", plan, made, asked_for)


class EvaluateRequest(EvaluateSpec):
    """A trained model and prompts: those of an artifact, or of a task to write first."""

    checkpoint: str = Field(description=CHECKPOINT)
    prompts: str | None = Field(None, description="Id of a prompts artifact; empty = write them as `cloze` says")
    cloze: ClozeRequest | None = Field(None, description="Prompts that are written where none kept from before are named")
    experiment: str = Field("evaluate", description="Experiment in MLflow")

    @model_validator(mode="after")
    def _has_prompts(self) -> EvaluateRequest:
        if (self.prompts is None) == (self.cloze is None):
            raise ValueError("give either `prompts`, the id of an artifact, or `cloze`, what to write")
        return self

    def plan(self, store: Store) -> Plan:
        builder, checkpoint = Builder(self.experiment, store), resolve(store, self.checkpoint)
        architecture, seed = model_label(store, checkpoint).rsplit("/", 1)
        if self.cloze is not None and not is_external(checkpoint):
            check_readable(narrowed(self.cloze, ClozeSpec), tokenizer_name(store, checkpoint))
        prompts = (whole(store, self.prompts, "prompts") if self.prompts
                   else self.cloze.prompts(builder, checkpoint, self.tokenizer))
        task = store.manifest(prompts).spec["task"] if self.prompts else self.cloze.task
        return goal(builder, builder.evaluate("data", architecture, int(seed), task, narrowed(self, EvaluateSpec),
                                              checkpoint, prompts))

    def title(self, store: Store) -> str:
        if self.prompts:
            kept = store.manifest(whole(store, self.prompts, "prompts")).spec
            task, orders = kept["task"], kept["orders"]
        else:
            task, orders = self.cloze.task, self.cloze.asked_orders()
        return f"evaluate {titles.model(store, self.checkpoint)} on {task}, {titles.count(len(orders), 'order')}"


class PerplexityRequest(PerplexitySpec):
    """A trained model, and the text it reads: its own shards, or documents."""

    checkpoint: str = Field(description=CHECKPOINT)
    corpus: CorpusSpec | None = Field(
        None, description="Documents to read; empty = the shards a checkpoint was trained from, or pydocs for hf:")
    bigrams: BigramsSpec | None = Field(BigramsSpec(), description="Slice by how often training saw a pair; empty = do not")
    experiment: str = Field("perplexity", description="Experiment in MLflow")

    def plan(self, store: Store) -> Plan:
        builder, checkpoint = Builder(self.experiment, store), resolve(store, self.checkpoint)
        model, made = model_label(store, checkpoint), {}
        own = None if is_external(checkpoint) else tokenizer_source(store, checkpoint)
        if self.corpus is not None or own in (None, checkpoint):
            made["corpus"] = builder.data("data", self.corpus or CorpusSpec(), None, None)["corpus"]
        else:
            made["shards"] = own
        plan = PerplexityPlan(perplexity=narrowed(self, PerplexitySpec), bigrams=self.bigrams)
        return goal(builder, builder.perplexity("data", "text", model, plan, made, checkpoint))

    def title(self, store: Store) -> str:
        sequences = titles.count(self.sequences, "sequence") if self.sequences else None
        return titles.joined(f"perplexity of {titles.model(store, self.checkpoint)} on "
                             f"{titles.text(self.corpus, 'its training text')}", sequences)


class ExtrapolationRequest(ExtrapolationSpec):
    """A trained model, and books to read at lengths beyond its training."""

    checkpoint: str = Field(description=CHECKPOINT)
    corpus: CorpusSpec | None = Field(None, description="Documents to read, where `paths` is empty; empty = pydocs")
    experiment: str = Field("extrapolation", description="Experiment in MLflow")

    def plan(self, store: Store) -> Plan:
        builder, checkpoint = Builder(self.experiment, store), resolve(store, self.checkpoint)
        made = {} if self.paths else builder.data("data", self.corpus or CorpusSpec(), None, None)
        return goal(builder, builder.extrapolation("data", "text", model_label(store, checkpoint),
                                                   narrowed(self, ExtrapolationSpec), made, checkpoint))

    def title(self, store: Store) -> str:
        books = titles.places(self.paths) if self.paths else titles.text(self.corpus)
        return (f"extrapolation of {titles.model(store, self.checkpoint)} on {books}, up to "
                f"{titles.count(self.lengths[-1], 'token')}")


class DeployRequest(DeploySpec):
    """A trained model, and input lengths at which it is timed."""

    checkpoint: str = Field(description=CHECKPOINT)
    experiment: str = Field("deploy", description="Experiment in MLflow")

    def plan(self, store: Store) -> Plan:
        builder, checkpoint = Builder(self.experiment, store), resolve(store, self.checkpoint)
        return goal(builder, builder.deploy("data", "lengths", model_label(store, checkpoint),
                                            narrowed(self, DeploySpec), checkpoint))

    def title(self, store: Store) -> str:
        return (f"deploy {titles.model(store, self.checkpoint)} on {self.device}, {len(self.lengths)} "
                f"{'length' if len(self.lengths) == 1 else 'lengths'} to {titles.count(max(self.lengths), 'token')}")


class BenchRequest(BenchSpec):
    """What to time, and where."""

    experiment: str = Field("bench", description="Experiment in MLflow")

    def plan(self, store: Store) -> Plan:
        builder = Builder(self.experiment, store)
        return goal(builder, builder.bench(narrowed(self, BenchSpec)))

    def title(self, store: Store) -> str:
        return f"bench {self.preset} on {self.device}"


def narrowed(request: Spec, spec: type[Spec], **changes):
    """The part of a request that is a stage's own spec; what was left to its default stays so."""
    given = {name: getattr(request, name) for name in spec.model_fields if name in request.model_fields_set}
    return spec(**{**given, **changes})


def model_label(store: Store, checkpoint: str) -> str:
    """`architecture/seed` of a checkpoint artifact; the last part of a folder's or hub name, seed 0."""
    if is_external(checkpoint):
        return f"{label(checkpoint)}/0"
    counts = present(store, checkpoint, "checkpoint").counts
    return f"{counts['architecture']}/{counts['seed']}"


def goal(builder: Builder, artifact: str) -> Plan:
    """The plan that ends with `artifact`."""
    return Plan(builder.name, builder.stages, builder.stages[builder.makers[artifact]])
