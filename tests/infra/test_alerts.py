"""Every automation of infra/alerts.json fires on a real Prefect server, and its message says what a person needs."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.conftest import ROOT
from tests.servers import prefect_server

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

# The server's own services look every few seconds, and a run is late after one: a real server waits 15 s, and a worker is
# gone after three heartbeats of 30 s.
SOON = {"PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "1", "PREFECT_SERVER_SERVICES_LATE_RUNS_AFTER_SECONDS": "1",
        "PREFECT_SERVER_SERVICES_FOREMAN_LOOP_SECONDS": "1", "PREFECT_SERVER_EVENTS_PROACTIVE_GRANULARITY": "PT1S"}
SHORTEST = timedelta(seconds=10)        # that Prefect lets a proactive trigger wait


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A Prefect server, which this process talks to."""
    with prefect_server(tmp_path_factory.mktemp("alerts") / "home", **SOON) as api:
        from prefect.settings import PREFECT_API_URL, temporary_settings

        with temporary_settings({PREFECT_API_URL: api}):
            yield api


@pytest.fixture(scope="module")
def heard():
    """(address, texts that arrived there)."""
    texts: list[str] = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self):
            texts.append(json.loads(self.rfile.read(int(self.headers["content-length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Chat) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listener.server_port}/hook", texts
        listener.shutdown()


@pytest.fixture(scope="module")
def client(server, heard):
    """Prefect's, after the alerts were declared; `a night was left out` waits as short as Prefect lets it."""
    from prefect.automations import Automation
    from prefect.client.orchestration import get_client

    from infra.alerts import declare

    assert declare(heard[0]) == [entry["name"] for entry in json.loads((ROOT / "infra" / "alerts.json").read_text())]
    patient = Automation.read(name="reread: a night was left out")
    assert patient.trigger.within == timedelta(hours=26)
    patient.trigger.within = SHORTEST
    patient.update()
    time.sleep(3)                            # the server reads changed automations into memory every few seconds
    with get_client(sync_client=True) as client:
        yield client


def message(heard, *words: str, seconds: float = 60) -> str:
    """The text with all these words, once it has arrived."""
    deadline = time.monotonic() + seconds
    while not (found := [text for text in heard[1] if all(word in text for word in words)]):
        assert time.monotonic() < deadline, f"nothing said {words}; heard were {heard[1]}"
        time.sleep(0.2)
    assert len(found) == 1, found
    return found[0]


def submitted(client, name: str, tags: list[str]):
    """A run of a deployment that nothing serves."""
    deployment = client.create_deployment(client.create_flow_from_name(name), name, tags=tags)
    return client.create_flow_run_from_deployment(deployment, name=f"{name} of tonight")


def night(*verdicts, name: str = "sets"):
    from flows.nights.night import Report
    from flows.nights.outcome import Outcome

    now = datetime.now(UTC)
    return Report(name, "01234567", now, now, [Outcome("zoo", "2", verdicts=list(verdicts))], link="/#/experiments/3/runs/abc")


def test_runs_that_failed_are_told_and_those_of_others_are_not(client, heard):
    from prefect.states import Completed, Crashed, Failed

    ends = {"study": Failed(message="the disk is full"), "pretrain": Crashed(message="killed by signal 9"),
            "bench": Failed(name="TimedOut", message="it took more than 3 hours"),
            "nightly-evaluation": Completed(name="SomeFailed", message="1 evaluated, 1 failed")}
    stranger = submitted(client, "stranger", ["other"])
    client.set_flow_run_state(stranger.id, Failed(message="not ours"), force=True)
    for name, state in ends.items():
        run = submitted(client, name, ["reread"])
        client.set_flow_run_state(run.id, state, force=True)
        text = message(heard, f"{name} ({name} of tonight): ")
        assert state.name in text and state.message in text
        assert text.endswith(f"/runs/flow-run/{run.id}") and " http://127.0.0.1:" in text
    assert not [text for text in heard[1] if "stranger" in text]


def test_a_run_that_nobody_takes_is_told(client, heard):
    run = submitted(client, "tokenise", ["reread"])
    assert message(heard, "tokenise (tokenise of tonight) is late", str(run.id))


def test_the_last_worker_that_goes_is_told(client, heard):
    from prefect.client.schemas.actions import WorkPoolCreate

    client.create_work_pool(WorkPoolCreate(name="reread", type="process"))
    assert message(heard, "pool reread has no worker")          # a new one has none yet
    heard[1].clear()
    client.send_worker_heartbeat("reread", "the only one", heartbeat_interval_seconds=1)
    assert message(heard, "pool reread has no worker").endswith("/work-pools/work-pool/reread")


def test_a_regression_is_told_in_words(server, client, heard):
    from flows.nightly import tell
    from flows.nights.outcome import Verdict

    tell(night(Verdict("previous", "suite", "version 1", "worse", (-0.3, -0.4, -0.2)),
               Verdict("previous", "pairs", "version 1", "worse", (-0.5, -0.6, -0.4))))
    # Prefect's client sends what was not confirmed by an earlier server of this process to the next one, so not any message
    lines = message(heard, "Nightly evaluation: ", "zoo").splitlines()
    assert lines[0] == "Nightly evaluation: 1 evaluated, worse than before: zoo version 2."
    assert lines[1:3] == ["zoo version 2 on suite against version 1: -0.300 [-0.400, -0.200]",
                          "zoo version 2 on pairs against version 1: -0.500 [-0.600, -0.400]"]
    assert lines[3].startswith("http://") and lines[3].endswith("/#/experiments/3/runs/abc")


def test_a_night_that_was_left_out_is_told_with_its_suite(client, heard):
    from flows.nightly import tell

    tell(night(name="rare"))
    assert "26 hours" in message(heard, "(reread.nightly.rare)")


def test_declared_again_there_are_no_more_and_a_paused_one_stays_paused(client, heard):
    from prefect.automations import Automation

    from infra.alerts import declare

    Automation.read(name="reread: no worker").disable()
    names = declare(heard[0])
    assert [len(client.read_automations_by_name(name)) for name in names] == [1] * len(names)
    assert [name for name in names if not Automation.read(name=name).enabled] == ["reread: no worker"]
