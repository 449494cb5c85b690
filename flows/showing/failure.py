"""What a failed run shows at the top: one sentence as its state, and an artifact with cause and remedy."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, ValidationError

from flows import overrides
from storage.errors import NightFailed, RereadError, ServiceError, SpecError, StageFailed, StudyFailed, TrackingError
from storage.masked import masked

# what a person does next, by what went wrong; the first that fits
REMEDIES: tuple[tuple[type[BaseException], str], ...] = (
    (StudyFailed, "The report is made and stands among the artifacts of this run; its figures are what is doubted."),
    (NightFailed, "The night is done and its report stands among the artifacts of this run. A version that got worse stays as "
                  "it is: look at it in MLflow. One that could not be evaluated is tried again the next night."),
    (StageFailed, "**Retry** on this page, or the same run once more: finished stages are kept, and a training goes on "
                  "from its last checkpoint."),
    (TrackingError, "See whether MLflow answers (`reread status`), then run the same again: finished stages are kept."),
    (ServiceError, "See what runs (`reread status`), then run the same again."),
    (SpecError, "Change what the sentence names: *Copy to new run* opens the form as it was filled."),
    (RereadError, "Change what the sentence names, then run again."),
)
UNEXPECTED = ("Nothing that was asked is known to be wrong, so this may be a fault of the program: the log has the place. "
              "Running the same again goes on from what is done.")


def clear_failures(function: Callable[..., Any]) -> Callable[..., Any]:
    """For the body of a flow: an error becomes a `Failed` state that begins with its sentence, after an artifact
    `failure` that tells more. A caller of the flow still sees the error itself raised.

    With `validate_parameters=False` in the flow, the form is read here, so that a form that cannot be read is told in
    the same way.
    """
    form = get_type_hints(function).get("request")

    @functools.wraps(function)
    def body(request: Any = inspect.Parameter.empty) -> Any:
        try:
            if request is inspect.Parameter.empty:
                return function()
            return function(read(form, request) if isinstance(request, Mapping) else request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run must say it
            return failed(error)
    body.__signature__ = inspect.signature(function, eval_str=True)        # Prefect cannot look up names in its module
    return body


def read(form: type[BaseModel], data: Mapping[str, Any]) -> BaseModel:
    """The form as it came from the page.

    :raises SpecError: one sentence for each field that cannot be read
    """
    try:
        return form.model_validate(data)
    except ValidationError as error:
        raise SpecError(overrides.explain(error, "the form", dict(data))) from None


def failed(error: Exception) -> Any:
    """Tell it in the log and as an artifact; returns the state for the flow to end in."""
    from prefect import get_run_logger
    from prefect.artifacts import create_markdown_artifact
    from prefect.logging.handlers import APILogWorker
    from prefect.states import Failed

    sentence, logger = sentence_of(error), get_run_logger()
    logger.error(sentence)
    if not isinstance(error, RereadError):
        logger.error("%s", masked("".join(traceback.format_exception(error))))
    try:
        create_markdown_artifact(page(error, getattr(error, "stages", {})), key="failure", description=sentence[:500])
    except Exception as trouble:  # noqa: BLE001 - the failure itself is what must be told
        logger.debug("no artifact for the failure: %s", trouble)
    APILogWorker.drain_all(timeout=5)           # a page that shows the end of a run asks for no further lines
    return Failed(message=sentence, data=error)


def sentence_of(error: BaseException) -> str:
    """The error in one sentence, without names of classes where its author wrote one, and without passwords."""
    if isinstance(error, RereadError):
        return masked(str(error))
    return masked(f"unexpected {type(error).__name__}: {error}")


def page(error: BaseException, stages: Mapping[str, str]) -> str:
    """Cause, remedy, and how far the run had come. stages: title -> done, failed, stopped, not started."""
    remedy = next((text for kind, text in REMEDIES if isinstance(error, kind)), UNEXPECTED)
    broken = [title for title, state in stages.items() if state == "failed"]
    parts = [f"# {'; '.join(broken) or 'The run'} failed", sentence_of(error), f"**What to do:** {remedy}"]
    cause = error.__cause__
    if cause is not None:
        parts.append(f"**Cause:** {type(cause).__name__}: {masked(str(cause))}")
    if stages:
        parts.append("\n".join(["| stage | state |", "| --- | --- |",
                                *(f"| {title} | {state} |" for title, state in stages.items())]))
    return "\n\n".join(parts) + "\n"
