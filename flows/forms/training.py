"""The forms of the flows that make a model: `tokenise` and `pretrain`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from flows.forms import requests
from flows.forms.choices import Select, model_presets, question_tasks
from flows.forms.fields import At, Fold, Form, tabs
from flows.forms.flow_form import ADVANCED, FlowForm, Text, rest
from flows.forms.mapping import paths
from flows.forms.questions import QUESTIONS, asked
from flows.forms.rest import group, the_rest
from flows.forms.text import CORPUS, Corpus, Pydocs
from storage.errors import SpecError
from tasks import specs

STEPS = "Stop after so many optimiser steps; empty = read all of the data once"


# ------------------------------------------------------------------------------------------------------- tokenise
TokeniseAdvanced = rest("Tokenise", requests.TokeniseRequest, *CORPUS, "tokenizer", "row_tokens")


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
