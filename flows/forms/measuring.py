"""The forms of the flows that measure a model or the kernels: `perplexity`, `extrapolation`, `deploy` and `bench`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flows.forms import requests
from flows.forms.fields import At, Fold
from flows.forms.flow_form import ADVANCED, CHECKPOINT, FlowForm, Text, like, rest
from flows.forms.text import CORPUS, TaskCorpus, TaskText, TrainingCorpus, TrainingText
from tasks import specs

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
