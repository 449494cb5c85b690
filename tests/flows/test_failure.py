"""What a failed run says, without a server."""

from __future__ import annotations

import inspect
import logging

import prefect
import pytest
from prefect import artifacts
from prefect.utilities.callables import parameter_schema

from flows.forms.forms import BenchForm
from flows.showing import failure
from storage.errors import ArtifactError, NightFailed, ServiceError, SpecError, StageFailed, StudyFailed, TrackingError

SENTENCE = "train.steps: 0 is below 1; give at least one step"


@pytest.fixture
def page(monkeypatch):
    shown = {}
    monkeypatch.setattr(prefect, "get_run_logger", lambda: logging.getLogger("page"))
    monkeypatch.setattr(artifacts, "create_markdown_artifact",
                        lambda markdown, key, description: shown.update({key: markdown, "description": description}))
    return shown


def body(error: Exception):
    @failure.clear_failures
    def flow(request: BenchForm = BenchForm()) -> dict:
        raise error
    return flow


def test_the_state_begins_with_the_sentence(page, caplog):
    state = body(SpecError(SENTENCE))()
    assert state.is_failed() and state.message == SENTENCE
    assert SENTENCE in page["failure"] and "What to do" in page["failure"] and page["description"] == SENTENCE
    assert caplog.text.count(SENTENCE) == 1 and "Traceback" not in caplog.text


def test_the_log_is_sent_before_the_run_ends(page, monkeypatch):
    """A page that shows a terminal state asks for no further lines."""
    from prefect.logging.handlers import APILogWorker

    sent = []
    monkeypatch.setattr(APILogWorker, "drain_all", lambda timeout: sent.append(dict(page)))
    assert body(SpecError(SENTENCE))().is_failed()
    assert len(sent) == 1 and "failure" in sent[0]


def test_whoever_calls_the_flow_still_gets_the_error(page):
    mistake = SpecError(SENTENCE)
    assert body(mistake)().data is mistake


def test_a_failed_stage_its_cause_and_what_was_done_are_shown(page):
    error = StageFailed("pretrain jrt failed: OSError: disk. Run the same again")
    error.stages = {"corpus": "was there", "rows": "done", "pretrain jrt": "failed", "evaluate jrt": "not started"}
    error.__cause__ = OSError(5, "Input/output error")
    body(error)()
    text = page["failure"]
    assert text.startswith("# pretrain jrt failed\n") and "OSError: [Errno 5]" in text
    assert "| evaluate jrt | not started |" in text and "goes on" in text


@pytest.mark.parametrize(("kind", "words"), [
    (SpecError, "Copy"), (StageFailed, "Retry"), (StudyFailed, "report is made"), (NightFailed, "report stands"),
    (TrackingError, "MLflow answers"), (ServiceError, "reread status"), (ArtifactError, "sentence names"),
    (KeyError, "fault of the program")])
def test_every_failure_has_a_remedy(page, kind, words):
    body(kind("x"))()
    assert words in page["failure"]


def test_a_fault_of_the_program_leaves_its_place_in_the_log(page, caplog):
    state = body(KeyError("lost"))()
    assert state.message.startswith("unexpected KeyError") and "Traceback" in caplog.text


def test_a_form_that_cannot_be_read_is_told_in_the_same_way(page):
    state = body(ValueError("never reached"))({"preset": "quick", "nonsense": 3})
    assert "nonsense: there is no such field" in state.message and page["failure"]
    assert "never reached" in body(ValueError("never reached"))({"preset": "quick"}).message


def test_a_page_that_cannot_be_made_hides_no_failure(page, monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError

    monkeypatch.setattr(artifacts, "create_markdown_artifact", refuse)
    assert body(SpecError(SENTENCE))().message == SENTENCE


def test_no_password_is_shown(page, caplog):
    """A database says its whole address when it refuses."""
    error = TrackingError("tracking store postgresql://mlflow:se/cret@db/mlflow refuses: x")
    error.__cause__ = OSError("http://me:secret@host/x")
    text = body(error)().message + page["failure"] + page["description"]
    text += body(KeyError("postgresql://mlflow:secret@db/mlflow"))().message + page["failure"] + caplog.text
    assert "cret" not in text and "mlflow:***@db" in text and "me:***@host" in text


def test_prefect_still_sees_the_form():
    flow = body(SpecError("x"))
    assert list(inspect.signature(flow).parameters) == ["request"]
    assert "BenchForm" in parameter_schema(flow).definitions
