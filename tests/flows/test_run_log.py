"""The log of a run, without a server."""

from __future__ import annotations

import logging

from flows.showing.run_log import hush, run_log, without_chatter
from storage import logs


def record(text: str, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("prefect.flow_runs", level, "", 0, text, (), None)


def test_what_the_page_shows_anyway_is_left_out():
    for noise in ("Beginning flow run 'pretrain' for flow 'pretrain'", "Finished in state Completed()",
                  "Created task run 'x' for task 'y'", "Engine execution exited with unexpected exception"):
        assert not without_chatter(record(noise)), noise
    for word in ("corpus in 3.1 s: corpus-1", "Task run failed with exception: OSError - Retry 1/3 will start 2 s from now",
                 "Flow run was cancelled."):
        assert without_chatter(record(word)), word


def test_whoever_asks_for_everything_gets_it(monkeypatch):
    monkeypatch.setattr(logging.getLogger("prefect"), "level", logging.DEBUG)
    assert without_chatter(record("Finished in state Completed()"))


def test_the_filter_is_set_once_and_works():
    hush()
    hush()
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        assert logger.filters.count(without_chatter) == 1
        assert not logger.filter(record("Finished in state Completed()"))


def test_our_lines_go_to_the_run_and_all_are_sent(monkeypatch):
    from prefect.logging.handlers import APILogWorker

    drained, heard = [], []
    monkeypatch.setattr(APILogWorker, "drain_all", classmethod(lambda cls, timeout: drained.append(list(heard))))
    target = logging.Logger("run", logging.DEBUG)
    target.addHandler(handler := logging.Handler())
    handler.emit = lambda line: heard.append((line.levelno, line.getMessage()))
    with run_log(target):
        logs.get("tasks.x").info("saved %d", 3)
        logs.get("tasks.x").warning("careful")
    logs.get("tasks.x").info("afterwards")
    assert heard == [(logging.INFO, "saved 3"), (logging.WARNING, "careful")]
    assert drained == [heard], "sent when all was said"
