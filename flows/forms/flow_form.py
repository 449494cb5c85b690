"""The base of the forms, one per flow: what matters first, everything else in the group `advanced`.

Each form stands for a request (flows/forms/requests.py): `to_request()` and `of(request)` lead there and back, and
flows/forms/mapping.py says how. The pages show descriptions as they are written, without Markdown.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import StringConstraints, ValidationError

from flows import overrides
from flows.forms.fields import Form
from flows.forms.mapping import default_at, filled, labels, nested, read, written
from flows.forms.rest import the_rest
from storage.errors import SpecError
from tasks import specs

CHECKPOINT = ("Which trained model: the id of a checkpoint or its first letters, a registered model version as MLflow "
              "shows it, or hf: and the folder or hub name of a transformers model. "
              "Examples: checkpoint-0123, models:/quick-pydocs/3, models:/quick-pydocs@best-tiny, hf:gpt2")
ADVANCED = "What is rarely changed. Press Change to see it; a field keeps its usual value until you change it"
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
