from __future__ import annotations

import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import psutil

from flows.services.processes import (
    ProcessId,
    Record,
    answers,
    descendants,
    free_port,
    launch,
    port_free,
    session_of,
    stop,
    tail,
)

TREE = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
print(child.pid, flush=True)
time.sleep(120)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(120)
"""


def test_a_process_is_known_by_pid_and_start_time(sleeper):
    process = sleeper()
    real = ProcessId.of(psutil.Process(process.pid))
    impostor = ProcessId(process.pid, real.started - 60)
    assert real.alive and not impostor.alive
    assert stop([impostor]) == [] and process.poll() is None
    assert stop([real]) == [process.pid]
    process.wait(10)
    assert not real.alive


def test_a_zombie_has_ended(sleeper):
    process = sleeper("pass")
    identity = ProcessId.of(psutil.Process(process.pid))
    deadline = time.time() + 20
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE and time.time() < deadline:
        time.sleep(0.05)
    assert not identity.alive


def test_stop_ends_the_whole_tree(sleeper):
    process = sleeper(TREE, stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    identity = ProcessId.of(psutil.Process(child))
    began = time.monotonic()
    assert set(stop([ProcessId.of(psutil.Process(process.pid))], grace=60)) == {process.pid, child}
    assert time.monotonic() - began < 30, "children were asked too, not only waited for"
    process.wait(10)
    assert not identity.alive


def test_stop_kills_what_ignores_a_request(sleeper):
    process = sleeper(STUBBORN, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "deaf\n"
    identity = ProcessId.of(psutil.Process(process.pid))
    assert stop([identity], grace=0.3) == [process.pid]
    assert not identity.alive


def test_stop_does_not_wait_for_a_zombie_that_nobody_reaps(tmp_path):
    """An orphan whose new parent does not look after it, as the first process of many containers."""
    code = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
print(child.pid, flush=True)
time.sleep(120)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        child = psutil.Process(int(parent.stdout.readline()))
        began = time.monotonic()
        assert stop([ProcessId.of(child)], grace=20) == [child.pid]
        assert time.monotonic() - began < 10 and child.status() == psutil.STATUS_ZOMBIE
    finally:
        parent.kill()
        parent.wait(10)


def test_what_a_dead_service_has_begun_is_found_by_its_session(tmp_path):
    leader = launch([sys.executable, "-c", TREE], tmp_path / "x.log")
    identity = ProcessId.of(psutil.Process(leader.pid))
    while not (children := psutil.Process(leader.pid).children()):
        time.sleep(0.05)
    assert {member.pid for member in session_of(identity)} == {leader.pid, children[0].pid}
    leader.kill()
    leader.wait(10)
    assert [member.pid for member in session_of(identity)] == [children[0].pid]
    assert session_of(ProcessId(leader.pid, time.time() + 100)) == [], "a later session of that number began after these"
    assert stop(session_of(identity)) == [children[0].pid] and session_of(identity) == []
    assert session_of(ProcessId(psutil.Process().pid, 1.0)) == []


def test_stop_never_ends_its_own_process():
    assert stop([ProcessId.of(psutil.Process())], grace=0.1) == []


def test_records_survive_a_round_trip_and_nonsense_counts_as_none(tmp_path):
    record = Record("prefect", ProcessId(1, 2.5), "run", "http://127.0.0.1:1", "x.log", {"a": 1})
    record.save(tmp_path)
    assert Record.load(tmp_path, "prefect") == record
    (tmp_path / "mlflow.json").write_text('{"name": "mlf')
    (tmp_path / "deployments.json").write_text('{"name": "x", "process": {"pid": 1}}')
    assert Record.load(tmp_path, "mlflow") is None and Record.load(tmp_path, "deployments") is None
    record.forget(tmp_path)
    record.forget(tmp_path)
    assert Record.load(tmp_path, "prefect") is None


def test_descendants_are_found(sleeper):
    process = sleeper()
    assert process.pid in {identity.pid for identity in descendants()}


def test_orphans_are_adopted_and_found(tmp_path):
    code = f"""
import subprocess, sys, time
from flows.services.processes import adopt_orphans, descendants, stop
adopt_orphans()
middle = subprocess.Popen([sys.executable, "-c", {TREE!r}], stdout=subprocess.PIPE, text=True)
orphan = int(middle.stdout.readline())
middle.kill()
middle.wait()
found = descendants()
print([p.pid for p in found] == [orphan], stop(found) == [orphan])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True True\n", done.stderr


def test_launch_writes_to_the_log_and_ignores_our_terminal(tmp_path):
    log = tmp_path / "deep" / "x.log"
    process = launch([sys.executable, "-c", "import os; print(os.getsid(0) == os.getpid(), os.environ['EXTRA'])"], log,
                     {"EXTRA": "yes"})
    assert process.wait(20) == 0
    assert tail(log) == "True yes"


def test_a_long_log_is_put_aside(tmp_path, monkeypatch):
    monkeypatch.setattr("flows.services.processes.LOG_BYTES", 10)
    log = tmp_path / "x.log"
    for word in ("the first words", "the second"):
        assert launch([sys.executable, "-c", f"print({word!r})"], log).wait(20) == 0
    assert tail(log) == "the second" and (tmp_path / "x.old.log").read_text() == "the first words\n"


def test_answers_and_ports():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/good" else 500)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_port
    try:
        assert answers(f"http://127.0.0.1:{port}/good") and not answers(f"http://127.0.0.1:{port}/bad")
        assert not port_free(port)
        other = free_port(port)
        assert other != port and port_free(other)
    finally:
        server.shutdown()
        server.server_close()
    assert not answers(f"http://127.0.0.1:{port}/good")
