"""Where text comes from, as tabs that several forms share."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from flows.forms.fields import Form, look, tabs
from flows.forms.flow_form import Text
from tasks import specs


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
