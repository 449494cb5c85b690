"""What each check says, asked of small servers that answer, refuse or are silent."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import namedtuple
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest

from flows.services import health, pages
from flows.services.processes import ProcessId, Record, free_port
from storage.errors import ServiceError


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


class Api:
    """A Prefect with so many runs and deployments; keeps what it was asked."""

    def __init__(self) -> None:
        self.running = self.pending = self.late = self.scheduled = 0
        self.waited, self.deployments, self.status, self.headers, self.tags = 0.0, [], 200, {}, []

    def answer(self, path: str, asked: dict):
        state = asked.get("flow_runs", {}).get("state", {})
        if path.endswith("/flow_runs/count"):
            wanted = (state.get("type") or state.get("name"))["any_"][0]
            return {"RUNNING": self.running, "PENDING": self.pending, "SCHEDULED": self.scheduled + self.late, "Late": self.late}.get(wanted, 0)
        if path.endswith("/flow_runs/filter"):
            late = state["name"]["any_"] == ["Late"]
            found = self.late if late else self.scheduled
            return [{"name": "nightly", "expected_start_time": ago(self.waited if late else -3600)}] if found else []
        if path.endswith("/deployments/filter"):
            return self.deployments
        if "/experiments/search" in path:
            return {"experiments": [{"experiment_id": "7", "tags": self.tags}]} if "creation_time+DESC" in path else {}
        return "3.9.1"


@contextmanager
def serve(api: Api):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked = self.rfile.read(int(self.headers.get("content-length") or 0))
            api.headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(api.status)
            self.end_headers()
            self.wfile.write(json.dumps(api.answer(self.path, json.loads(asked or b"{}"))).encode())

        do_POST = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def api():
    api = Api()
    with serve(api) as url:
        api.url = url
        yield api


@pytest.fixture
def nowhere() -> str:
    return f"http://127.0.0.1:{free_port(0)}"


# ------------------------------------------------------------------------------------------------------------------ disk
@pytest.mark.parametrize("free, ok, words, warns", [
    (20_000_000, False, "the disk is full: 20.0 MB free", True), (1_000_000_000, True, "1.0 GB free", True),
    (500_000_000_000, True, "500 GB free", False)])
def test_a_full_disk_is_bad_and_a_scarce_one_is_a_warning(tmp_path, monkeypatch, free, ok, words, warns):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(health.shutil, "disk_usage", lambda place: usage(10**12, 0, free))
    finding = health.disk(tmp_path / "not" / "there" / "yet")
    assert finding.ok is ok and words in finding.message and bool(finding.remedy) is warns


# -------------------------------------------------------------------------------------------------------------- services
@pytest.mark.parametrize("name", ["prefect", "mlflow"])
def test_a_service_answers_is_silent_or_has_died(api, nowhere, sleeper, tmp_path, name):
    log = tmp_path / "x.log"
    log.write_text("a line\nthe last words\n")
    process = sleeper()
    record = Record(name, ProcessId.of(psutil.Process(process.pid)), "up", api.url, str(log))
    assert health.service(record).ok
    silent = health.service(replace(record, url=nowhere))
    assert not silent.ok and "does not answer" in silent.message and "refused" in silent.message and str(log) in silent.remedy
    api.status = 500
    assert not health.service(record).ok
    process.kill()
    process.wait(10)
    dead = health.service(record)
    assert not dead.ok and "died" in dead.message and "the last words" in dead.message and "reread up" in dead.remedy


def test_one_that_takes_the_connection_and_says_nothing_is_silent(monkeypatch):
    import socket

    monkeypatch.setattr(pages.Page.__init__, "__defaults__", (0.3,))
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        finding = health.elsewhere("mlflow", f"http://127.0.0.1:{mute.getsockname()[1]}")
    assert not finding.ok and "timed out" in finding.message and "MLFLOW_TRACKING_URI" in finding.remedy


def test_servers_elsewhere_are_asked_with_what_proves_who_asks(api, nowhere, monkeypatch):
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "me:secret")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "abc")
    assert health.elsewhere("prefect", api.url + "/api").ok
    assert api.headers["authorization"] == "Basic bWU6c2VjcmV0"
    assert health.elsewhere("mlflow", api.url).ok and api.headers["authorization"] == "Bearer abc"
    finding = health.elsewhere("prefect", nowhere)
    assert not finding.ok and "PREFECT_API_URL" in finding.remedy and "secret" not in finding.message


@pytest.mark.parametrize("name, variable, end", [("prefect", "PREFECT_API_URL", "/api"), ("mlflow", "MLFLOW_TRACKING_URI", "")])
def test_a_name_and_password_in_the_address_are_told_to_that_server_alone(api, monkeypatch, name, variable, end):
    given = api.url.replace("//", "//me:se%20cret@") + end
    assert health.elsewhere(name, given).ok and api.headers["authorization"] == "Basic bWU6c2UgY3JldA=="
    monkeypatch.setenv(variable, given)
    assert health.elsewhere(name, api.url + end).ok and api.headers["authorization"] == "Basic bWU6c2UgY3JldA=="
    monkeypatch.setenv(variable, given.replace("127.0.0.1", "localhost"))
    assert health.elsewhere(name, api.url + end).ok and "authorization" not in api.headers
    api.status = 401
    assert "cret" not in health.elsewhere(name, given).message


def test_a_proxy_is_not_asked_for_this_machine(api, nowhere, monkeypatch):
    monkeypatch.setenv("http_proxy", nowhere)
    monkeypatch.delenv("no_proxy", raising=False)
    assert health.elsewhere("mlflow", api.url).ok


def test_a_nonsensical_address_is_a_finding_too():
    assert not health.elsewhere("mlflow", "http://[").ok and not health.elsewhere("prefect", "http://127.0.0.1:nine/api").ok


# ------------------------------------------------------------------------------------------------------------------ runs
@pytest.mark.parametrize("polled, ok, words", [
    (None, False, "has no deployments"), ([None, None], False, "nobody has asked for the runs of the 2 deployments yet"),
    ([4000, 3000], False, "for 3000 s"), ([4000, 5], True, "2 deployments, runs asked for 5 s ago")])
def test_somebody_must_serve_the_deployments(api, polled, ok, words):
    api.deployments = [{"name": "study", "status": "READY", "last_polled": ago(one) if one else None} for one in polled or []]
    finding = health.served(pages.Prefect(api.url))
    assert finding.ok is ok and words in finding.message


@pytest.mark.parametrize("polled", [None, 4000])
def test_who_has_just_begun_to_serve_need_not_have_asked(api, polled):
    api.deployments = [{"name": "study", "status": "READY", "last_polled": ago(polled) if polled else None}]
    assert health.served(pages.Prefect(api.url), begun=True).ok
    assert not health.served(pages.Prefect(api.url)).ok


@pytest.mark.parametrize("late, waited, running, ok", [
    (0, 0, 0, True), (2, 60, 0, True), (2, 3600, 1, True), (2, 3600, 0, False)])
def test_late_runs_queue_behind_another_or_are_stuck(api, late, waited, running, ok):
    api.late, api.waited, api.running = late, waited, running
    finding = health.late_runs(pages.Prefect(api.url))
    assert finding.ok is ok and bool(finding.remedy) is bool(late)
    assert not late or f"2 runs are late, the first by {waited // 60} minutes" in finding.message


def test_late_runs_behind_one_that_is_about_to_begin_are_not_stuck(api):
    api.late, api.waited, api.pending = 2, 3600, 1
    assert health.late_runs(pages.Prefect(api.url)).ok


def test_checks_of_a_prefect_that_went_away_say_so(nowhere):
    for check in (health.late_runs, health.served):
        finding = check(pages.Prefect(nowhere))
        assert not finding.ok and "does not answer" in finding.message


def test_another_server_on_the_port_is_told_from_the_real_one(api):
    api.answer = lambda path, asked: "hello"
    for check in (health.late_runs, health.served):
        finding = check(pages.Prefect(api.url))
        assert not finding.ok and "is not Prefect" in finding.message
    with pytest.raises(ServiceError, match="is not MLflow"):
        pages.MLflow(api.url).runs_page()


def test_queue_and_links_are_read_from_the_servers(api, nowhere):
    api.running, api.late, api.scheduled, api.waited = 1, 2, 3, 10
    queue = pages.Prefect(api.url).queue()
    assert {**queue, "next": queue["next"]["name"]} == {
        "running": 1, "pending": 0, "late": 2, "scheduled": 5, "next": "nightly"}
    page = f"{api.url}/#/experiments/7/runs?workflowType=machine_learning"
    assert pages.MLflow(api.url).runs_page() == page
    api.tags = [{"key": "mlflow.sharedViewState.recall", "value": "{}"}]
    assert pages.MLflow(api.url).runs_page() == page + "&viewStateShareKey=recall"
    with pytest.raises(ServiceError, match=f"MLflow does not answer at {nowhere}"):
        pages.MLflow(nowhere).runs_page()


# ------------------------------------------------------------------------------------------------------------------- Ray
def node(number: int, alive: bool = True, **more) -> dict:
    return {"NodeID": f"{number:056x}", "Alive": alive, "NodeManagerAddress": f"10.0.0.{number}", "NodeName": f"host{number}",
            **more}


@pytest.mark.parametrize("nodes, expected, ok, words", [
    ([node(1), node(2)], 0, True, "2 Ray nodes alive"),
    ([node(1), node(2, False)], 0, False, "without heartbeats: host2"),
    ([node(1), node(2, False), node(2)], 0, True, "2 Ray nodes alive"),                     # it came back
    ([node(1), node(2, False, DeathReason=1)], 0, True, "1 Ray nodes alive"),               # ray stop
    ([node(1), node(2, False, DeathReason=2)], 0, False, "host2"),
    ([node(1)], 3, False, "3 expected"),
    ([], 1, False, "0 Ray nodes alive, 1 expected")])
def test_a_node_without_heartbeats_is_noticed(nodes, expected, ok, words):
    finding = health.nodes(nodes, expected)
    assert finding.ok is ok and words in finding.message and bool(finding.remedy) is not ok


def test_a_cluster_that_is_away_is_noticed_at_once(nowhere, monkeypatch):
    finding = health.cluster(nowhere.removeprefix("http://"))
    assert not finding.ok and "nothing listens at RAY_ADDRESS" in finding.message
    monkeypatch.setenv("REREAD_RAY_NODES", "3")
    assert health.expected_nodes() == 3


@pytest.mark.services
@pytest.mark.timeout(300)
def test_a_killed_node_of_a_real_cluster_is_noticed(monkeypatch):
    """Two Ray nodes on this machine; the second one's daemon is killed."""
    code = """
import json, os, sys, time
from ray.cluster_utils import Cluster
from flows.services import health
cluster = Cluster()

def node(**more):                                    # a node must be up within 30 s, which a busy machine misses
    for left in (2, 1, 0):
        try:
            return cluster.add_node(num_cpus=1, object_store_memory=80 << 20, include_dashboard=False, **more)
        except Exception:
            if not left:
                raise

try:
    node()
    second = node(node_name="second")                 # both have the address of this machine
    both = health.cluster(cluster.address)
    second.kill_raylet()
    deadline = time.time() + 90
    while (one := health.cluster(cluster.address)).ok and time.time() < deadline:
        time.sleep(1)
    print(json.dumps([both.ok, both.message, one.ok, one.message]))
finally:
    cluster.shutdown()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280)
    both_ok, both, one_ok, one = json.loads(done.stdout.splitlines()[-1]) if done.stdout else pytest.fail(done.stderr)
    assert both_ok and both == "2 Ray nodes alive", both
    assert not one_ok and "without heartbeats" in one and "1 Ray nodes alive" in one
