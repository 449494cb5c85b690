"""What a night is asked: the form of the flow `nightly-evaluation`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from flows import suites
from flows.forms.choices import Select
from tasks.specs import Spec


class NightlyRequest(Spec):
    """Which suite, and when a night counts as failed."""

    suite: Annotated[str, Select(suites.shipped)] = Field("nightly", description="Shipped suite of evaluations")
    file: str = Field("", title="Suite file", description=(
        "Path of a .yaml suite on the machine that runs it, instead of a shipped one; empty = none. Example: /srv/reread/mine.yaml"))
    fail_on_regression: bool = Field(False, title="Fail on regression", description=(
        "End as Failed when a model got significantly worse or could not be evaluated"))
    only_if_due: bool = Field(False, title="Only if due", description=(
        "Do nothing when the last due night has been done: what the schedule asks, so that nights which piled up are caught "
        "up once"))

    @field_validator("file", mode="before")
    @classmethod
    def _none_is_empty(cls, value: object) -> object:
        return "" if value is None else value

    @property
    def where(self) -> str:
        """Name or path, as `suites.load` takes it."""
        return self.file or self.suite
