"""What a model is asked: the forms of the flows `cloze` and `evaluate`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from flows.forms import requests
from flows.forms.choices import Select, eval_tasks, prompt_orders, question_tasks
from flows.forms.fields import At, Fold, Form, join, look, tabs
from flows.forms.flow_form import ADVANCED, CHECKPOINT, FlowForm, Text, like, rest
from flows.forms.text import CORPUS, TaskCorpus, TaskText
from storage.errors import SpecError
from tasks import specs

QUESTIONS = ("questions.task", "questions.paths", "questions.dataset")
ASKED = (*QUESTIONS, "task", "orders", "limit")


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
