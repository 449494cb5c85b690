"""Suites as YAML files: what every registered model version is asked at night. Shipped ones by name, any by path."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator, model_validator

from flows import overrides
from flows.studies import locate, read
from tasks.specs import CorpusSpec, EvaluationPlan, Spec

FOLDER = Path(__file__).parent
WHOLE = "suite"             # where results name evaluations: all of them together


class Suite(Spec):
    """Evaluations, and the registered models that take them."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,39}$", description="Names its scores on a model version")
    about: str = Field("", description="One line for people")
    models: tuple[str, ...] = Field(
        ("*",), min_length=1, description="Which registered models, by name: * stands for any characters")
    corpus: CorpusSpec | None = Field(
        None, description="Documents that are asked about; empty = those of the corpus that a model was trained on")
    evaluations: tuple[EvaluationPlan, ...] = Field(min_length=1, description="As in a study's workload")
    order: str = Field("default", description="Order whose scores are compared; an evaluation without it: its first")
    alias: str = Field("best", pattern=r"^([a-z][a-z0-9-]{0,29})?$",
                       description="The best version of a size gets the alias `<this>-<size>`; empty = none does")

    @field_validator("models", mode="before")
    @classmethod
    def _one_or_several(cls, value):
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Suite:
        labels = [evaluation.label for evaluation in self.evaluations]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"evaluations: {twice[0]!r} appears twice; give the second a `name` of its own")
        if WHOLE in labels:
            raise ValueError(f"evaluations: {WHOLE!r} stands for all of them together; give this one another `name`")
        for evaluation in self.evaluations:
            wanted, room = evaluation.evaluate.generation_tokens, evaluation.cloze.generation_tokens
            if wanted > room:
                raise ValueError(f"evaluation {evaluation.label!r} generates {wanted} tokens, but its cloze leaves room "
                                 f"for {room}; make the two generation_tokens agree")
        return self


def shipped() -> dict[str, Path]:
    """The suites that come with the package, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def load(name: str) -> Suite:
    """The suite called `name`, or in the YAML file at that path.

    :raises SpecError: no such suite, unreadable YAML, or a value that a field refuses
    """
    from tasks import cloze

    path = find(name)
    suite = overrides.validate(Suite, read(path), str(path))
    for evaluation in suite.evaluations:
        cloze.resolve(evaluation.cloze)
    return suite


def find(name: str) -> Path:
    """The file of a shipped suite, or the one at that path.

    :raises SpecError: neither
    """
    return locate(name, shipped(), "suite", "suites")
