"""What a person fills in the Prefect UI, by flow."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flows.forms import requests
from flows.forms.choices import Select
from flows.forms.fields import At, Fold
from flows.forms.flow_form import ADVANCED, FlowForm, Text, rest
from flows.forms.measuring import BenchForm, DeployForm, ExtrapolationForm, PerplexityForm
from flows.forms.questions import ClozeForm, EvaluateForm
from flows.forms.training import PretrainForm, TokeniseForm

StudyAdvanced = rest("Study", requests.StudyRequest, "study", "settings")


class StudyForm(FlowForm):
    """Which study, and what to change in it."""

    request = requests.StudyRequest
    study: Annotated[str, Select(requests.shipped)] = Field(
        "quick", title="Study", description="What to run; the page of this deployment says what each one asks")
    settings: tuple[Text, ...] = Field((), title="Changes", description=(
        "What to change in it, one NAME=VALUE each. Examples: train.steps=100, architectures=jrt"))
    advanced: Annotated[StudyAdvanced, At(""), Fold()] = Field(StudyAdvanced(), title="Advanced", description=ADVANCED)


FORMS: dict[str, type[FlowForm]] = {
    "study": StudyForm, "tokenise": TokeniseForm, "pretrain": PretrainForm, "cloze": ClozeForm, "evaluate": EvaluateForm,
    "perplexity": PerplexityForm, "extrapolation": ExtrapolationForm, "deploy": DeployForm, "bench": BenchForm}
