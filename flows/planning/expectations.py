"""A study's own expectations of its result: a run that ends with a table of zeros has failed."""

from __future__ import annotations

from typing import Any

from flows.planning.plan import Plan
from storage.artifacts import Store
from storage.errors import StudyFailed


class Unmet(StudyFailed):
    """Raised after the report is written; `done` is what the flow would have returned."""

    def __init__(self, message: str, done: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.done = done


def check(planned: Plan, store: Store, done: dict[str, Any]) -> None:
    """Nothing if the scores are what the study expects.

    :raises Unmet: naming each expectation that is not satisfied
    """
    from tasks.report import unmet

    failures = unmet(planned.study, store, planned.results)
    if failures:
        raise Unmet(f"study {planned.name} ran to its end, but its result is not what it must be: {'; '.join(failures)}. "
                    "Look at the loss curves: the models were trained too little, or something is broken", done)
