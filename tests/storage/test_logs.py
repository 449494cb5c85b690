"""Logging: one set-up, stderr only, text or JSON lines."""

import json
import logging

import pytest

from storage.logs import configure_logging, get


@pytest.fixture(autouse=True)
def restored():
    logger = logging.getLogger("reread")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_lines_go_to_stderr_once_however_often_it_is_set_up(capsys):
    for _ in range(3):
        configure_logging("INFO")
    get("tasks.tokenise").info("read %d files", 3)
    get("tasks.tokenise").debug("not shown")
    out, errors = capsys.readouterr()
    assert out == "" and errors.count("\n") == 1
    assert errors.endswith(" I reread.tasks.tokenise: read 3 files\n")


def test_json_lines(capsys):
    configure_logging("debug", json_to_stderr=True)
    try:
        raise ValueError("x")
    except ValueError:
        get("a").exception("failed: %s", "ü")
    line = json.loads(capsys.readouterr().err)
    assert line["level"] == "ERROR" and line["logger"] == "reread.a" and line["message"] == "failed: ü"
    assert line["time"].endswith("Z") and "ValueError: x" in line["exception"]


def test_the_level_comes_from_the_environment(monkeypatch, capsys):
    monkeypatch.setenv("REREAD_LOG_LEVEL", "warning")
    configure_logging()
    get("a").info("no")
    get("a").warning("yes")
    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == ["yes"]
    assert logging.getLogger("mlflow").level == logging.WARNING


def test_names_are_below_reread():
    assert get("a.b").name == "reread.a.b" and get().name == "reread"
