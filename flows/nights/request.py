"""What a night is asked: the form of the flow `nightly-evaluation`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from flows import suites
from tasks.specs import Spec


class NightlyRequest(Spec):
    """Which suite, and when a night counts as failed."""

    suite: Literal[tuple(suites.shipped())] = Field(        # type: ignore[valid-type]
        "nightly", description="Shipped suite of evaluations")
    file: str | None = Field(None, description="Path of a .yaml suite on the machine that runs it; replaces `suite`")
    fail_on_regression: bool = Field(
        False, description="End as Failed when a model got significantly worse or could not be evaluated")
    only_if_due: bool = Field(
        False, description="Do nothing when the last due night has been done: what the schedule asks, so that nights "
                           "which piled up are caught up once")

    @property
    def where(self) -> str:
        """Name or path, as `suites.load` takes it."""
        return self.file or self.suite
