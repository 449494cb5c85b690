"""When Ray starts and ends with a flow, without Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from prefect_ray import RayTaskRunner

from flows.running import ray_runner
from flows.running.lazy_ray import LazyRay
from storage.errors import ServiceError
from tests.conftest import ROOT


@pytest.fixture
def events(monkeypatch):
    found = []
    running = []
    monkeypatch.setattr(ray_runner, "start", lambda: found.append("start") or running.append(True))
    monkeypatch.setattr(ray_runner, "shut_down", lambda: found.append("end") or running.clear())
    monkeypatch.setattr(ray_runner, "is_running", lambda: bool(running))
    monkeypatch.setattr(RayTaskRunner, "__enter__", lambda self: found.append("prefect_ray's own start") or self)
    monkeypatch.setattr(RayTaskRunner, "submit", lambda self, *_: found.append("submit"))
    return found


def test_ray_starts_with_the_first_stage_and_ends_with_the_flow(events):
    with LazyRay() as runner:
        assert events == [], "nothing yet: the plan may be wrong or finished"
        runner.submit(None, {})
    assert events == ["start", "submit", "end"]


def test_ray_that_was_there_stays(events):
    ray_runner.start()
    with LazyRay() as runner:
        runner.submit(None, {})
    assert "end" not in events


def test_a_copy_for_the_next_run_is_of_the_same_kind():
    runner = LazyRay()
    assert type(runner.duplicate()) is LazyRay and runner.duplicate() == runner


def test_flows_are_imported_and_begun_without_ray():
    """Importing Ray alone takes a second, its start several."""
    code = ("import sys; from flows.single import pretrain; r = pretrain.task_runner\n"
            "with r: pass\n"
            "import inspect; inspect.getmodule(sys._getframe())\n"      # looks at every module there is
            "print('ray._raylet' in sys.modules)")
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PREFECT_LOGGING_LEVEL": "ERROR"})
    assert said.stdout.split()[-1] == "False", said.stderr


def test_the_task_runner_finds_ray_once_it_is_needed():
    code = ("import sys; from flows.running import lazy_ray; from prefect_ray import task_runners\n"
            "print(task_runners.ray.is_initialized(), 'ray._raylet' in sys.modules)")
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert said.stdout.split() == ["False", "True"], said.stderr


def test_prefects_own_signal_handler_stays_where_prefect_looks_after_the_process(monkeypatch):
    kept = signal.getsignal(signal.SIGTERM)
    try:
        monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "x")
        ray_runner.interruptible()
        assert signal.getsignal(signal.SIGTERM) is kept
        monkeypatch.delenv("PREFECT__FLOW_RUN_ID")
        ray_runner.interruptible()
        with pytest.raises(KeyboardInterrupt):
            signal.getsignal(signal.SIGTERM)(15, None)
    finally:
        signal.signal(signal.SIGTERM, kept)


def test_ray_begins_beside_the_main_thread_so_the_signal_handler_stays_and_works(home, monkeypatch):
    import ray

    def init(*_, **__):
        where.append(threading.current_thread() is threading.main_thread())
        time.sleep(waits.pop(0))

    def interrupt(number, frame):
        raise KeyboardInterrupt

    where, waits = [], [0, 20]
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    kept = signal.signal(signal.SIGTERM, interrupt)
    try:
        ray_runner.start()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            ray_runner.start()
        assert time.monotonic() - began < 15 and where == [False, False]
    finally:
        signal.signal(signal.SIGTERM, kept)
        ray_runner.session().end()


def test_the_thread_that_began_ray_lives_as_long_as_ray(home, monkeypatch):
    """The kernel ends Ray's processes when the thread ends that started them."""
    import ray

    threads = []
    monkeypatch.setattr(ray, "init", lambda *_, **__: threads.append(threading.current_thread()))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    ray_runner.start()
    threads[0].join(0.3)
    assert threads[0].is_alive()
    ray_runner.shut_down()
    threads[0].join(10)
    assert not threads[0].is_alive()
    ray_runner.session().end()


def test_what_ray_says_when_it_does_not_start_is_told(home, monkeypatch):
    import ray

    def init(*_, **__):
        raise ConnectionError("no cluster there")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "nowhere:1")
    with pytest.raises(ServiceError, match="Ray at nowhere:1 .*no cluster there"):
        ray_runner.start()
    ray_runner.session().end()
