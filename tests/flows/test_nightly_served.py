"""The nightly deployment on a real Prefect server: its schedule, a night that was triggered, and a message about a regression."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from zoneinfo import ZoneInfo

import httpx
import pytest

from tests.conftest import ROOT
from tests.servers import prefect_server

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

ZONE = "Europe/Zurich"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """(address of the API, home): a Prefect server, and the process that serves the deployments with nights at 04:30."""
    home = tmp_path_factory.mktemp("served") / "home"
    with prefect_server(home, REREAD_NIGHTLY_CRON="30 4 * * *", REREAD_NIGHTLY_TIMEZONE=ZONE) as api:
        process = subprocess.Popen([sys.executable, "-m", "flows.deployments", str(home / "ready")], cwd=ROOT)
        try:
            wait(lambda: (home / "ready").exists())
            yield api, home
        finally:
            process.terminate()
            process.wait(60)


def wait(condition, seconds: float = 300):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return found


def deployment(api: str) -> dict:
    return httpx.get(f"{api}/deployments/name/nightly-evaluation/nightly-evaluation").raise_for_status().json()


def runs(api: str, **wanted) -> list[dict]:
    body = {"flow_runs": {"deployment_id": {"any_": [deployment(api)["id"]]}, **wanted}}
    return httpx.post(f"{api}/flow_runs/filter", json=body).raise_for_status().json()


def night(api: str, **request) -> dict:
    """Trigger a night as the page does, and wait for its end."""
    def create() -> httpx.Response:
        return httpx.post(f"{api}/deployments/{deployment(api)['id']}/create_flow_run", json={
            "parameters": {"request": request}, "state": {"type": "SCHEDULED"}})

    # SQLite locked for a moment: a status that Prefect's own client answers with another try
    made = wait(lambda: (answer := create()).status_code != 503 and answer, 30).raise_for_status().json()
    ended = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    return wait(lambda: next((run for run in runs(api, id={"any_": [made["id"]]}) if run["state_type"] in ended), None))


def test_three_nights_are_scheduled_where_the_clock_hangs(served):
    api, _ = served
    planned = wait(lambda: (found := runs(api, state={"type": {"any_": ["SCHEDULED"]}})) and len(found) >= 3 and found)
    times = sorted(datetime.fromisoformat(run["expected_start_time"]) for run in planned)
    assert all((at.astimezone(ZoneInfo(ZONE)).hour, at.minute) == (4, 30) for at in times)
    assert times[0] > datetime.now(UTC) and len({at.date() for at in times[:3]}) == 3
    assert all(run["parameters"] == {"request": {"only_if_due": True}} for run in planned)


def test_a_night_without_work_ends_and_is_not_done_twice(served):
    api, home = served
    first = night(api)
    assert first["state_type"] == "COMPLETED" and "nothing to do" in first["state"]["message"]
    assert first["name"].startswith("night of 20") and not list((home / "services").glob("session-*"))       # no Ray
    again = night(api, only_if_due=True)
    assert again["state_type"] == "COMPLETED" and "has been done" in again["state"]["message"]
    wrong = night(api, file="none.yaml")
    assert wrong["state_type"] == "FAILED" and "there is no suite file none.yaml" in wrong["state"]["message"]


def trained(steps: int) -> None:
    """A new version of the model `sets`: the more steps, the more of the pairs it finds."""
    from flows import cli

    assert cli.run(["pretrain", "--model", "jrt-mini", "--set", "experiment=sets", "--set", f"train.steps={steps}",
                    "--set", f"train.validate_every={steps}", "--set",
                    "rows={kind: disjoint, vocabulary: 32, batches: 80, batch_tokens: 512, sizes: [[1, 2]]}"]) == 0


def found(api: str, run: dict) -> tuple[str, list[str]]:
    """(text of a run's report, names of the events it sent)."""
    [report] = httpx.post(f"{api}/artifacts/filter", json={"artifacts": {
        "flow_run_id": {"any_": [run["id"]]}, "key": {"any_": ["night-sets"]}}}).raise_for_status().json()

    def events() -> list[str]:
        told = httpx.post(f"{api}/events/filter", json={"filter": {"event": {"prefix": ["reread."]}}, "limit": 50})
        return sorted(event["event"] for event in told.raise_for_status().json()["events"]
                      if f"prefect.flow-run.{run['id']}" in [each["prefect.resource.id"] for each in event["related"]])
    return report["data"], wait(lambda: "reread.nightly.finished" in (names := events()) and names, 60)


@pytest.mark.long
def test_a_night_with_work_through_prefect_and_ray(served):
    """A version that reads and one that does not, of one model; then a night that finds nothing to do."""
    from mlflow import MlflowClient

    from flows.nights.ledger import Ledger
    from storage.tracking.registry import Registry

    api, home = served
    registry, ledger, suite = Registry(), Ledger(), home / "sets.yaml"
    suite.write_text(
        "name: sets\nmodels: [sets]\nevaluations:\n- name: pairs\n  cloze: {task: disjoint, orders: [small_first], limit: 40, "
        "task_options: {vocabulary: 32, sizes: [[1, 2]]}}\n  evaluate: {metric: exact, bootstrap: 200}\n")
    trained(80)
    trained(2)
    work = night(api, file=str(suite))
    headline = "2 evaluated, best-mini is now sets version 1, worse than before: sets version 2"
    assert (work["state_type"], work["state"]["name"], work["state"]["message"]) == ("COMPLETED", "Regression", headline)
    text, events = found(api, work)
    assert "| sets | 1 | jrt | mini | new |" in text and "* **sets version 2** (jrt mini seed 0) on the whole suite" in text
    assert events == ["reread.nightly.finished", "reread.nightly.regression"]
    good, bad = (registry.version(f"models:/sets/{number}").tags for number in (1, 2))
    assert float(good["suite.sets.value"].split()[0]) > 0.3 > float(bad["suite.sets.value"].split()[0])
    assert good["pairs/1_2/small_first"] == good["suite.sets.value"] and registry.aliases("sets") == {"best-mini": "1"}
    [past] = ledger.nights("sets")
    assert past.finished and past.summary["headline"] == headline
    client = MlflowClient(ledger.tracking.uri)
    assert [file.path for file in client.list_artifacts(past.run, "trend")] == ["trend/sets.pairs.png"]

    rest = night(api, file=str(suite))
    assert rest["state"]["message"] == "nothing to do: 2 versions had their scores"
    assert rest["total_run_time"] < work["total_run_time"] and len(ledger.nights("sets")) == 2
    print(f"the night with work ran {work['total_run_time']:.0f} s, the one without {rest['total_run_time']:.0f} s")


def test_the_automation_of_the_manual_posts_a_regression(served):
    api, _ = served
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from flows.nightly import tell
    from flows.nights.night import Report
    from flows.nights.outcome import Outcome, Verdict

    received: list[dict] = []

    class Listener(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    listener = HTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    manual = Path(ROOT, "docs", "nightly.md").read_text(encoding="utf-8")
    text = re.search(r"```json\n(.*?)```", manual, re.DOTALL)[1]
    now = datetime.now(UTC)
    worse = Outcome("quick-pydocs", "2", verdicts=[Verdict("previous", "suite", "version 1", "worse", (-0.3, -0.4, -0.2))])
    with temporary_settings({PREFECT_API_URL: api}):
        block = CustomWebhookNotificationBlock(
            name="listener", url=f"http://127.0.0.1:{listener.server_port}/", allow_private_urls=True,
            json_data={"subject": "{{subject}}", "body": "{{body}}"}).save("listener")
        httpx.post(f"{api}/automations/", json=json.loads(text.replace("BLOCK", str(block)))).raise_for_status()
        time.sleep(3)                                        # the server's triggers are read again every few seconds
        tell(Report("nightly", "01234567", now, now, [worse]))
        wait(lambda: received, 120)
    listener.shutdown()
    [message] = received
    assert message["subject"] == "reread: 1 evaluated, worse than before: quick-pydocs version 2"
    assert "quick-pydocs version 2 on suite against version 1: -0.300 [-0.400, -0.200]" in message["body"]
