"""What a person fills in the Prefect UI: one form per flow, what matters first, everything else in the group `advanced`.

Each form stands for a request (flows/forms/requests.py): `to_request()` and `of(request)` lead there and back, and
flows/forms/fields.py says how. The pages show descriptions as they are written, without Markdown.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field, StringConstraints, ValidationError

from flows import overrides
from flows.forms import requests
from flows.forms.choices import Select, eval_tasks, model_presets, prompt_orders, question_tasks
from flows.forms.fields import (
    At,
    Fold,
    Form,
    default_at,
    filled,
    group,
    join,
    labels,
    look,
    nested,
    paths,
    read,
    tabs,
    the_rest,
    written,
)
from storage.errors import SpecError
from tasks import specs

CHECKPOINT = ("Which trained model: the id of a checkpoint or its first letters, a registered model version as MLflow "
              "shows it, or hf: and the folder or hub name of a transformers model. "
              "Examples: checkpoint-0123, models:/quick-pydocs/3, models:/quick-pydocs@best-tiny, hf:gpt2")
ADVANCED = "What is rarely changed. Press Change to see it; a field keeps its usual value until you change it"
STEPS = "Stop after so many optimiser steps; empty = read all of the data once"
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class FlowForm(Form):
    """Base of the forms: a form for one request class."""

    request: ClassVar[type[specs.Spec]]

    def to_request(self) -> Any:
        """What this form asks for.

        :raises SpecError: what does not fit together, one sentence each
        """
        data = nested(self.completed(written(self, lambda path: default_at(self.request, path))))
        try:
            return self.request.model_validate(filled(self.request, data))
        except ValidationError as error:
            text = overrides.explain(error, "the form", data)
            for path, label in sorted(labels(self).items(), key=lambda item: -len(item[0])):
                text = text.replace(f" {path}: ", f" {label}: ")
            raise SpecError(text) from error

    def completed(self, found: dict[str, Any]) -> dict[str, Any]:
        """Path -> value, with what follows from the rest of the form. SpecError for what contradicts it."""
        return found

    @classmethod
    def of(cls, request: specs.Spec) -> Self:
        """The form that asks for `request`."""
        return cls(**read(cls, request))


def rest(name: str, request: type[specs.Spec], *taken: str, **own: Any) -> type[Form]:
    """The group `advanced` of a form."""
    return the_rest(f"{name}Advanced", request, taken, **own)


def like(spec: type[specs.Spec], name: str) -> Any:
    """The type of a field of a spec."""
    return spec.model_fields[name].annotation


# ---------------------------------------------------------------------------------------------------------- text
class Usual(Form):
    """Nothing is said."""

    @classmethod
    def fits(cls, request: specs.Spec, path: str) -> bool:
        return look(request, path) is None


class TaskText(Usual):
    model_config = ConfigDict(title="As the task needs")


class TrainingText(Usual):
    model_config = ConfigDict(title="As in training")


class Pydocs(Form):
    """The documentation of installed Python packages."""

    model_config = ConfigDict(title="Python documentation")
    constants = {"source": "pydocs"}
    packages: tuple[Text, ...] = Field((), title="Packages", description=(
        "Installed packages whose documentation is read; none = a built-in list. Example: numpy"))


class Files(Form):
    """Files that the machine which runs this can read."""

    model_config = ConfigDict(title="Files")
    constants = {"source": "files"}
    paths: tuple[Text, ...] = Field(min_length=1, title="Files", description=(
        "Paths or patterns of .txt, .jsonl or .parquet files, also .gz, on the machine that runs this. "
        "Example: /data/articles/*.jsonl.gz"))


class Hub(Form):
    """A data set of the Hugging Face hub."""

    model_config = ConfigDict(title="Hugging Face")
    constants = {"source": "huggingface"}
    dataset: Text = Field(title="Data set", description="Name on the hub, or a folder. Example: wikitext")
    dataset_config: str | None = Field(None, title="Configuration", description="Of the data set; empty = its only one")
    dataset_split: str = Field("train", title="Split", description="Of the data set")


Corpus = tabs(Pydocs, Files, Hub)
TaskCorpus = tabs(TaskText, Pydocs, Files, Hub)
TrainingCorpus = tabs(TrainingText, Pydocs, Files, Hub)
CORPUS = tuple(f"corpus.{name}" for model in (Pydocs, Files, Hub) for name in ("source", *model.model_fields))


# ------------------------------------------------------------------------------------------------- study, tokenise
StudyAdvanced = rest("Study", requests.StudyRequest, "study", "settings")
TokeniseAdvanced = rest("Tokenise", requests.TokeniseRequest, *CORPUS, "tokenizer", "row_tokens")


class StudyForm(FlowForm):
    """Which study, and what to change in it."""

    request = requests.StudyRequest
    study: Annotated[str, Select(requests.shipped)] = Field(
        "quick", title="Study", description="What to run; the page of this deployment says what each one asks")
    settings: tuple[Text, ...] = Field((), title="Changes", description=(
        "What to change in it, one NAME=VALUE each. Examples: train.steps=100, architectures=jrt"))
    advanced: Annotated[StudyAdvanced, At(""), Fold()] = Field(StudyAdvanced(), title="Advanced", description=ADVANCED)


class TokeniseForm(FlowForm):
    """Which text, and how it is cut into tokens."""

    request = requests.TokeniseRequest
    corpus: Corpus = Field(Pydocs(), title="Text", description="Where the documents come from")
    tokenizer: str = Field("gpt2", title="Tokenizer", description=(
        "gpt2, bytes, bpe: and the size of a vocabulary that is made from the text, or hf: and a name. Example: bpe:4096"))
    row_tokens: int = Field(2048, ge=8, le=1 << 20, title="Row length", description="Of the rows that models read [tokens]")
    advanced: Annotated[TokeniseAdvanced, At(""), Fold()] = Field(
        TokeniseAdvanced(), title="Advanced", description=ADVANCED)


# ------------------------------------------------------------------------------------------------------- pretrain
class RecallRows(Form):
    """Documents, and lines that ask for what stands in them."""

    model_config = ConfigDict(title="Recall rows")
    part_of = specs.RecallRowsSpec
    tokens: int = Field(3_900_000, ge=1000, title="Training tokens", description="In all, padding not counted [tokens]")
    steps: Annotated[int | None, At("/train.steps")] = Field(None, ge=1, title="Steps", description=STEPS)

    @classmethod
    def fits(cls, request: specs.Spec, path: str) -> bool:
        return super().fits(request, path) or request.rows is None and request.train.data == "rows"


class SetRows(Form):
    """JRT's set intersection: the element that two sets share. Needs no text."""

    model_config = ConfigDict(title="Set intersection")
    part_of, constants = specs.DisjointRowsSpec, {"kind": "disjoint"}
    batches: int = Field(1500, ge=1, title="Batches", description="Training batches in all")
    vocabulary: int = Field(256, ge=32, title="Vocabulary", description="How many different elements [token ids]")
    steps: Annotated[int | None, At("/train.steps")] = Field(None, ge=1, title="Steps", description=STEPS)


class QuestionRows(Form):
    """Passages of documents and questions about them."""

    model_config = ConfigDict(title="Questions of a data set")
    part_of, constants = specs.QuestionRowsSpec, {"kind": "questions"}
    task: Annotated[str, Select(question_tasks), At("/questions.task")] = Field(
        "fda", title="Data set", description="In whose format the questions are")
    question_files: Annotated[tuple[Text, ...], At("/questions.paths")] = Field(
        (), title="Question files", description="Files, folders or patterns on the machine that runs this. Example: /data/fda")
    question_set: Annotated[str | None, At("/questions.dataset")] = Field(
        None, title="Published set", description="Hub name of a published set, instead of files. "
                                                 "Example: hazyresearch/based-fda")
    tokens: int = Field(3_000_000, ge=1000, title="Training tokens", description="In all, padding not counted [tokens]")
    steps: Annotated[int | None, At("/train.steps")] = Field(None, ge=1, title="Steps", description=STEPS)


class PlainText(Form):
    """The text itself, in rows of equal length."""

    model_config = ConfigDict(title="Plain text")
    constants = {"/train.data": "shards"}
    text_steps: Annotated[int, At("/train.steps")] = Field(
        1000, ge=1, title="Steps", description="Optimiser steps, each over one global batch of rows")


def row_details(model: type[Form], name: str) -> Any:
    """What the tab of training rows leaves out."""
    inner = the_rest(f"Pretrain{model.__name__}", model.part_of, paths(model, "rows"), "rows", alone=True)
    return group(inner, name, f"Only with training data '{model.model_config['title']}'", "rows")


QUESTIONS = ("questions.task", "questions.paths", "questions.dataset")
PretrainAdvanced = rest(
    "Pretrain", requests.PretrainRequest, *CORPUS, *QUESTIONS, "model", "seed", "train.data", "train.steps",
    recall_rows=row_details(RecallRows, "Recall rows"), set_rows=row_details(SetRows, "Set intersection"),
    question_rows=row_details(QuestionRows, "Questions of a data set"))
DETAILS = {RecallRows: "recall_rows", SetRows: "set_rows", QuestionRows: "question_rows"}


class PretrainForm(FlowForm):
    """One model, and what it learns from."""

    request = requests.PretrainRequest
    model: Annotated[str, Select(model_presets)] = Field(
        "jrt-tiny", title="Model", description="Architecture and size; type to search. Those called tiny or mini learn on a "
                                              "CPU in minutes, 360m and larger need GPUs")
    data: Annotated[tabs(RecallRows, SetRows, QuestionRows, PlainText), At("rows")] = Field(
        RecallRows(), title="Training data", description="What the model learns from")
    corpus: Corpus = Field(Pydocs(), title="Text", description=(
        "Where rows are written from, and what a tokenizer is made from; a set intersection needs none"))
    seed: int = Field(0, ge=0, lt=1 << 53, title="Seed", description="Draws the first weights and the masks")
    advanced: Annotated[PretrainAdvanced, At(""), Fold()] = Field(
        PretrainAdvanced(), title="Advanced", description=ADVANCED)

    def completed(self, found: dict[str, Any]) -> dict[str, Any]:
        """Rows know their kind; details of another kind of rows would be lost in silence."""
        for kind, name in DETAILS.items():
            details = getattr(self.advanced, name)
            if not isinstance(self.data, kind) and details != type(details)():
                raise SpecError(f"the form: Advanced > {kind.model_config['title']} is changed, but the training data is "
                                f"'{self.data.model_config['title']}'; choose that training data, or set these to usual")
        if isinstance(self.data, QuestionRows):
            asked(found, self.data.task)
        if isinstance(self.data, RecallRows) and any(path.startswith("rows.") for path in found):
            found["rows.kind"] = "recall"
        return found


# ------------------------------------------------------------------------------------------------- cloze, evaluate
class Asked(Form):
    """What is asked."""

    task: Annotated[str, Select(eval_tasks)] = Field("pydocs", title="Task", description=(
        "pydocs and lookup ask about documentation, phonebook and disjoint make their own data; fda, swde, squad, nq, "
        "triviaqa and drop need question files or a published set"))
    orders: Annotated[tuple[str, ...], Select(prompt_orders), At(explicit=True, if_said=True)] = Field(
        (), title="Prompt orders", description=(
            "In which order document and question stand: default = document first, question_first, twice = both twice. "
            "None chosen = those of the task"))
    limit: Annotated[int, At(nothing=0)] = Field(300, ge=0, title="Documents", description=(
        "How many are asked about, per column of the task; 0 = all [documents]"))
    question_files: Annotated[tuple[Text, ...], At("questions.paths")] = Field(
        (), title="Question files", description="Files, folders or patterns on the machine that runs this, in the data set's "
                                                "original format. Example: /data/squad/dev-v2.0.json")
    question_set: Annotated[str | None, At("questions.dataset")] = Field(
        None, title="Published set", description="Hub name of a published set of questions, instead of files. "
                                                 "Example: hazyresearch/based-fda")


ASKED = (*QUESTIONS, "task", "orders", "limit")


def asked(found: dict[str, Any], task: str, base: str = "") -> dict[str, Any]:
    """Questions are of the task that asks them; one that needs them gets none from nowhere, and no other asks any."""
    own = join(base, "questions.")
    if any(path.startswith(own) for path in found):
        found[f"{own}task"] = task
    places = [place for place in (f"{own}paths", f"{own}dataset") if place in found]
    if task in question_tasks() and not places:
        raise SpecError(f"task {task} asks the questions of a data set: fill in Question files, their place on the machine "
                        "that runs this, or Published set, a name on the hub")
    if task not in question_tasks() and places:
        raise SpecError(f"task {task} asks no questions of a data set: leave Question files and Published set empty, or choose "
                        f"another task, {', '.join(question_tasks())}")
    return found


ClozeAdvanced = rest("Cloze", requests.ClozeRequest, *ASKED, *CORPUS)


class ClozeForm(Asked, FlowForm):
    """Which task, in which prompt orders."""

    request = requests.ClozeRequest
    corpus: TaskCorpus = Field(TaskText(), title="Text", description="Whose documents are asked about")
    advanced: Annotated[ClozeAdvanced, At(""), Fold()] = Field(ClozeAdvanced(), title="Advanced", description=ADVANCED)

    def completed(self, found: dict[str, Any]) -> dict[str, Any]:
        return asked(found, self.task)


class WritePrompts(Asked):
    """Prompts of a task, written first where they do not exist."""

    model_config = ConfigDict(title="Ask a task")

    @classmethod
    def fits(cls, request: specs.Spec, path: str) -> bool:
        return look(request, path) is not None


class KeptPrompts(Form):
    """Prompts that were written before."""

    model_config = ConfigDict(title="Prompts kept from before")
    prompts: Annotated[Text, At("/prompts")] = Field(title="Prompts", description=(
        "Id of a prompts artifact or its first letters. Example: prompts-0123"))


EvaluateAdvanced = rest("Evaluate", requests.EvaluateRequest, "checkpoint", "prompts", "strategy", "metric",
                        *(f"cloze.{path}" for path in (*ASKED, *CORPUS)))


class EvaluateForm(FlowForm):
    """Which trained model, and what it is asked."""

    request = requests.EvaluateRequest
    checkpoint: Text = Field(title="Checkpoint", description=CHECKPOINT)
    prompts: Annotated[tabs(WritePrompts, KeptPrompts), At("cloze")] = Field(
        WritePrompts(), title="Questions", description="What the model is asked")
    corpus: Annotated[TaskCorpus, At("cloze.corpus")] = Field(
        TaskText(), title="Text", description="Whose documents a task such as pydocs asks about")
    strategy: like(specs.EvaluateSpec, "strategy") = Field("left_pad", title="Reading", description=(
        "How a prefix model reads the prompt; others ignore it, but for reread, with which every model reads it twice"))
    metric: like(specs.EvaluateSpec, "metric") = Field("contains", title="Metric", description=(
        "contains: the answer occurs in what is said; the others stand beside it in every table"))
    advanced: Annotated[EvaluateAdvanced, At(""), Fold()] = Field(
        EvaluateAdvanced(), title="Advanced", description=ADVANCED)

    def completed(self, found: dict[str, Any]) -> dict[str, Any]:
        if isinstance(self.prompts, WritePrompts):
            return asked(found, self.prompts.task, "cloze")
        if any(path.startswith("cloze.") for path in found):
            raise SpecError("the form: Text or Advanced > Prompts is changed, but these prompts are written already; choose "
                            "'Ask a task', or set them to usual")
        return found


# ------------------------------------------------------------------------------- perplexity, extrapolation, deploy, bench
PerplexityAdvanced = rest("Perplexity", requests.PerplexityRequest, *CORPUS, "checkpoint", "split", "sequences")
ExtrapolationAdvanced = rest("Extrapolation", requests.ExtrapolationRequest, *CORPUS, "checkpoint", "paths", "lengths",
                             "protocols")
DeployAdvanced = rest("Deploy", requests.DeployRequest, "checkpoint", "lengths", "batch_rows", "device")
BenchAdvanced = rest("Bench", requests.BenchRequest, "preset", "device")


class PerplexityForm(FlowForm):
    """Which trained model, and which text it reads."""

    request = requests.PerplexityRequest
    checkpoint: Text = Field(title="Checkpoint", description=CHECKPOINT)
    corpus: TrainingCorpus = Field(TrainingText(), title="Text", description=(
        "What is read; as in training = the text that the checkpoint was trained from, for hf: models Python documentation"))
    split: like(specs.PerplexitySpec, "split") = Field("test", title="Split", description="Which documents of the text")
    sequences: Annotated[int, At(nothing=0)] = Field(3200, ge=0, title="Sequences", description=(
        "How many rows or documents are read, in their order; 0 = all"))
    by_frequency: Annotated[bool, At("bigrams", nothing=False)] = Field(True, title="By frequency", description=(
        "Slice the loss also by how often training saw a pair of tokens; counting reads the training text once"))
    advanced: Annotated[PerplexityAdvanced, At(""), Fold()] = Field(
        PerplexityAdvanced(), title="Advanced", description=ADVANCED)


class ExtrapolationForm(FlowForm):
    """Which trained model, which books, which lengths."""

    request = requests.ExtrapolationRequest
    checkpoint: Text = Field(title="Checkpoint", description=CHECKPOINT)
    paths: tuple[Text, ...] = Field((), title="Books", description=(
        "Paths or patterns of .txt files, also .gz, one book each, on the machine that runs this; none = the text below. "
        "Example: /data/pg19/*.txt.gz"))
    corpus: TaskCorpus = Field(TaskText(), title="Text", description=(
        "Whose documents are read where no books are given; as the task needs = Python documentation"))
    lengths: like(specs.ExtrapolationSpec, "lengths") = Field(
        tuple(512 << k for k in range(9)), min_length=1, title="Lengths", description="Rising [tokens]. Example: 512, 4096")
    protocols: like(specs.ExtrapolationSpec, "protocols") = Field(("blocks", "positions"), title="Protocols", description=(
        "blocks: the text cut into blocks of each length, each read from nothing; positions: each book once, loss by "
        "position"))
    advanced: Annotated[ExtrapolationAdvanced, At(""), Fold()] = Field(
        ExtrapolationAdvanced(), title="Advanced", description=ADVANCED)


class DeployForm(FlowForm):
    """Which trained model, and the input lengths at which it is timed."""

    request = requests.DeployRequest
    checkpoint: Text = Field(title="Checkpoint", description=CHECKPOINT)
    lengths: like(specs.DeploySpec, "lengths") = Field(
        (512, 1024, 2048, 4096), min_length=1, title="Input lengths", description="What is timed [tokens]")
    batch_rows: int = Field(1, ge=1, title="Batch", description="Prompts served together")
    device: like(specs.DeploySpec, "device") = Field("cpu", title="Device", description="cpu, or cuda for one GPU")
    advanced: Annotated[DeployAdvanced, At(""), Fold()] = Field(DeployAdvanced(), title="Advanced", description=ADVANCED)


class BenchForm(FlowForm):
    """What to time, and where."""

    request = requests.BenchRequest
    preset: specs.BenchPreset = Field("quick", title="Preset", description=(
        "What is timed; quick takes seconds, gate a minute, full ten minutes, table5 needs a large GPU"))
    device: like(specs.BenchSpec, "device") = Field("cpu", title="Device", description="cpu, or cuda for one GPU")
    advanced: Annotated[BenchAdvanced, At(""), Fold()] = Field(BenchAdvanced(), title="Advanced", description=ADVANCED)


FORMS: dict[str, type[FlowForm]] = {
    "study": StudyForm, "tokenise": TokeniseForm, "pretrain": PretrainForm, "cloze": ClozeForm, "evaluate": EvaluateForm,
    "perplexity": PerplexityForm, "extrapolation": ExtrapolationForm, "deploy": DeployForm, "bench": BenchForm}
