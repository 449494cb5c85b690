"""The attached `up`: what it shows, whom it starts again, and how it ends. Services are small processes."""

from __future__ import annotations

import io
import os
import shutil
import signal
import threading
import time

import psutil
import pytest

from flows.services import fleet, local, supervisor
from flows.services.processes import Record
from storage.errors import ServiceError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Watched:
    """`watch` in a thread of its own, since it stays."""

    def __init__(self, out: io.StringIO) -> None:
        self.out, self.interrupts, self.result = out, supervisor.Interrupts(), None
        self.up = fleet.up()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = supervisor.watch(self.up, self.interrupts, self.out)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.result = error

    def until(self, words: str, times: int = 1) -> None:
        deadline = time.time() + 60
        while self.out.getvalue().count(words) < times:
            assert time.time() < deadline and self.thread.is_alive(), (words, self.out.getvalue(), self.result)
            time.sleep(0.05)

    def end(self):
        self.thread.join(60)
        assert not self.thread.is_alive(), self.out.getvalue()
        return self.result

    def kill(self, name: str) -> Record:
        record = Record.load(local.folder(), name)
        psutil.Process(record.process.pid).kill()
        return record


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(supervisor, "SHOW_SECONDS", 0.2)


def test_one_that_is_killed_is_told_with_the_end_of_its_log_and_started_again(small_servers, quick):
    watched = Watched(io.StringIO())
    for number, name in enumerate(local.ORDER, 1):
        before = watched.kill(name)
        watched.until("started again: ", number)
        after = local.running(name)
        assert after.process != before.process and after.url == before.url
    text = watched.out.getvalue()
    assert text.count("died (1 of 4)") == 3 and "small server" in text and "small deployments" in text
    watched.interrupts._asked.set()
    assert [record.name for record in watched.end()] == ["deployments", "mlflow", "prefect"]
    assert not any(start.record.process.alive for start in small_servers)


def test_one_that_dies_again_and_again_ends_all(small_servers, quick):
    watched = Watched(io.StringIO())
    for number in range(1, supervisor.RESTARTS + 1):
        watched.kill("mlflow")
        watched.until("started again: mlflow", number)
    watched.kill("mlflow")
    error = watched.end()
    assert isinstance(error, ServiceError) and "mlflow died 4 times" in str(error)
    assert not any(start.record.process.alive for start in small_servers)


def test_deaths_of_another_hour_are_forgotten(small_servers, quick, monkeypatch):
    monkeypatch.setattr(supervisor, "HOUR", 0.0)
    monkeypatch.setattr(supervisor, "RESTARTS", 1)
    watched = Watched(io.StringIO())
    for number in (1, 2, 3):
        watched.kill("mlflow")
        watched.until("started again: mlflow", number)
    watched.interrupts._asked.set()
    assert len(watched.end()) == 3 and "(2 of" not in watched.out.getvalue()


def test_down_from_elsewhere_ends_the_watch(small_servers, quick):
    watched = Watched(io.StringIO())
    fleet.down()
    assert watched.end() == [] and "stopped by `reread down`" in watched.out.getvalue()
    assert len(small_servers) == 3


def test_what_ran_before_stays_when_the_watch_ends(small_servers, quick):
    first = fleet.up().records
    psutil.Process(first["mlflow"].process.pid).kill()
    watched = Watched(io.StringIO())
    watched.interrupts._asked.set()
    assert [record.name for record in watched.end()] == ["mlflow"]
    assert first["prefect"].process.alive and first["deployments"].process.alive


def test_a_terminal_has_one_line_that_is_written_over(small_servers, quick):
    watched = Watched(Terminal())
    watched.until("prefect ok | mlflow ok | deployments ok", 3)
    watched.interrupts._asked.set()
    watched.end()
    text = watched.out.getvalue()
    assert text.startswith("\r\x1b[2Kprefect ok") and "\n" not in text and text.endswith("\r\x1b[2K")
    assert " free" in text and "memory " in text


def test_elsewhere_a_line_is_written_only_when_something_changes(small_servers, quick):
    watched = Watched(io.StringIO())
    watched.until("prefect ok | mlflow ok")
    time.sleep(1)
    assert watched.out.getvalue().count("\n") == 1
    os.kill(local.running("mlflow").process.pid, signal.SIGSTOP)
    watched.until("mlflow silent")
    watched.interrupts._asked.set()
    watched.end()
    assert not any(start.record.process.alive for start in small_servers), "also the one that was stopped"


class Closed(Terminal):
    """A terminal whose window was closed: to write is an input/output error."""

    closed_ = False

    def write(self, text: str) -> int:
        if self.closed_:
            raise OSError(5, "Input/output error")
        return super().write(text)


def test_a_closed_terminal_keeps_nobody_from_stopping_what_runs(small_servers, quick):
    watched = Watched(Closed())
    watched.until("prefect ok")
    watched.out.closed_ = True
    watched.interrupts._asked.set()
    assert [record.name for record in watched.end()] == ["deployments", "mlflow", "prefect"]
    assert not any(start.record.process.alive for start in small_servers)


def test_a_fault_of_ours_leaves_nothing_running(small_servers, quick, monkeypatch):
    watched = Watched(io.StringIO())
    monkeypatch.setattr(supervisor, "_state", lambda records: 1 / 0)
    assert isinstance(watched.end(), ZeroDivisionError)
    assert not any(start.record.process.alive for start in small_servers)


def test_who_removes_the_folder_of_records_stops_what_runs(small_servers, quick):
    watched = Watched(io.StringIO())
    watched.until("prefect ok")
    shutil.rmtree(local.folder())
    psutil.Process(watched.up.records["mlflow"].process.pid).kill()
    assert watched.end() == []
    assert not any(start.record.process.alive for start in small_servers)


def test_what_somebody_else_has_started_again_is_theirs(small_servers, quick, monkeypatch):
    up = fleet.up()
    psutil.Process(up.records["mlflow"].process.pid).kill()
    theirs = fleet.up().records["mlflow"]
    interrupts, out = supervisor.Interrupts(), io.StringIO()
    monkeypatch.setattr(supervisor, "_state", lambda records: interrupts._asked.set() or "")
    assert [record.name for record in supervisor.watch(up, interrupts, out)] == ["deployments", "prefect"]
    assert theirs.process.alive and "mlflow died" in out.getvalue() and "started again" not in out.getvalue()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_ask_and_are_put_back(number):
    before = signal.getsignal(number)
    with supervisor.Interrupts().heeded() as interrupts:
        assert not interrupts.asked()
        os.kill(os.getpid(), number)
        assert interrupts.wait(5) and interrupts.asked()
        os.kill(os.getpid(), number)                     # a second one changes nothing
    assert signal.getsignal(number) == before


def test_a_closed_terminal_does_not_matter_to_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with supervisor.Interrupts().heeded() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupts.wait(0.2)
    finally:
        signal.signal(signal.SIGHUP, before)
