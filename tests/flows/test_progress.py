"""Progress on the pages, without a server."""

from __future__ import annotations

import sys
import time

import pytest
from prefect import artifacts

from flows.showing import progress
from flows.showing.notes import noting
from storage import progress as lines

LINE = "pretrain jrt, seed 0: 1,200/4,800 steps (25 %), 310/s, 0:11 left, loss 2.1"


@pytest.fixture
def page(monkeypatch):
    """What the artifacts would show: [(share, text or key)]."""
    shown = []
    monkeypatch.setattr(artifacts, "create_progress_artifact",
                        lambda share, key, description: shown.append((share, key, description)) or "id")
    monkeypatch.setattr(artifacts, "update_progress_artifact",
                        lambda artifact, share, description: shown.append((share, artifact, description)))
    return shown


def test_lines_of_progress_are_understood_and_others_are_not():
    assert progress.percent(LINE) == 25
    bar = lines.Progress(200, "evaluate", "items")
    bar.done = 50
    assert progress.percent(bar.line()) == 25, "the line that our own bar writes"
    unknown = lines.Progress(None, "cloze", "items")
    for other in (unknown.line(), "saved 3/4", "", "step 7", "rows: 0/0 tokens", "reread: see a/b files"):
        assert progress.percent(other) is None, other


def test_one_artifact_moves_and_ends_full(page):
    shown = progress.Shown("Pretrain jrt, seed 0")
    shown.look()
    assert page == [], "a short stage shows none"
    for line in (LINE, "a line of the log"):
        shown.hear(line)
    shown.look()
    shown.look()
    shown.hear(LINE.replace("1,200", "2,400"))
    shown.look()
    shown.finish()
    assert [one[0] for one in page] == [25, 50, 100]
    assert page[0][1] == "progress-pretrain-jrt-seed-0" and {one[1] for one in page[1:]} == {"id"}
    assert LINE in page[0][2]


def test_what_a_stage_writes_reaches_its_page(page, monkeypatch):
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.02)
    with progress.progress_page("a stage") as hear, noting(None, hear):
        sys.stderr.write(LINE + "\n")
        deadline = time.monotonic() + 10
        while not page and time.monotonic() < deadline:
            time.sleep(0.01)
    assert [one[0] for one in page] == [25, 100]


def test_a_failed_stage_is_not_shown_as_done(page, monkeypatch):
    monkeypatch.setattr(progress, "EVERY_SECONDS", 60)
    with pytest.raises(ValueError), progress.progress_page("a stage") as hear:
        hear(LINE)
        raise ValueError
    assert page == []


def test_a_server_that_does_not_answer_costs_no_work(monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError

    monkeypatch.setattr(artifacts, "create_progress_artifact", refuse)
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.01)
    with progress.progress_page("a stage") as hear:
        hear(LINE)
        time.sleep(0.1)
