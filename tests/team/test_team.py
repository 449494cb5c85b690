"""A team's installation does what a team asks of it. One set of processes serves all tests of this file, in their order."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import typing
from pathlib import Path

import httpx
import pytest

from tests.team.topology import BUCKET, INFRA, PASSWORD, PERSON, ROOT, Team, missing
from tests.team.write_metrics import value

pytestmark = [pytest.mark.team, pytest.mark.timeout(900),
              pytest.mark.skipif(missing() is not None, reason=missing() or "")]

RUNS, WRITERS, POINTS = 8, 8, 2500


@pytest.fixture(scope="module")
def team():
    began = time.monotonic()
    members = Team()
    try:
        members.start()
        tell(f"all processes answer after {time.monotonic() - began:.0f} s")
        yield members
    finally:
        members.close()


@pytest.fixture(autouse=True)
def member(team, monkeypatch):
    """This process as one of the team, with a cache of its own, who comes in through the proxy."""
    for name, content in team.environment("reader").items():
        monkeypatch.setenv(name, content)
    monkeypatch.setenv("PREFECT_API_URL", f"{team.sites['PREFECT_SITE']}/api")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", team.sites["MLFLOW_SITE"])
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", PERSON)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(team.certificate))
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_SSL_CERT_FILE,
        PREFECT_API_URL,
        PREFECT_HOME,
        temporary_settings,
    )

    with temporary_settings({PREFECT_API_URL: os.environ["PREFECT_API_URL"], PREFECT_HOME: team.folder / "reader",
                             PREFECT_API_AUTH_STRING: f"{PERSON}:{PASSWORD}",
                             PREFECT_API_SSL_CERT_FILE: str(team.certificate)}):
        yield


def tell(text: str) -> None:
    print(f"\n[team] {text}", flush=True)


def prefect_client():
    from prefect.client.orchestration import get_client

    return get_client(sync_client=True)


def mlflow_client():
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=os.environ["MLFLOW_TRACKING_URI"])


# ---------------------------------------------------------------------------------------------------------- flow runs
def requests():
    """Eight small pieces of work, no two alike; some share what they are made from."""
    from flows.forms.requests import ClozeRequest, PretrainRequest, TokeniseRequest

    corpus = {"packages": ["networkx"], "held_out_packages": ["joblib"]}
    sets = {"kind": "disjoint", "vocabulary": 64, "sizes": [[4, 8]], "batches": 20, "batch_tokens": 512}
    few = {"steps": 6, "checkpoint_every": 3, "validate_every": 3, "validation_batches": 2, "log_every": 2}
    pretrain = [PretrainRequest.model_validate({"model": model, "seed": seed, "rows": sets, "train": few, "experiment": "team"})
                for model in ("based-mini", "jrt-mini") for seed in (0, 1)]
    disjoint = {"task": "disjoint", "limit": 8, "tokenizer": "ids:64"}
    cloze = [ClozeRequest.model_validate(
        {**disjoint, "orders": [order], "task_options": {"vocabulary": 64, "sizes": [[4, 8]]}})
        for order in ("small_first", "large_first")]
    tokenise = [TokeniseRequest.model_validate({"corpus": corpus, "tokenizer": name, "row_tokens": 128})
                for name in ("bytes", "bpe:512")]
    return [("pretrain", one) for one in pretrain] + [("cloze", one) for one in cloze] + [("tokenise", one) for one in tokenise]


def parameters(flow: str, request) -> dict:
    """What the flow's form takes for this request."""
    from flows import single

    form = typing.get_type_hints(getattr(single, flow).fn)["request"]
    filled = request if isinstance(request, form) else form.of(request)
    return {"request": filled.model_dump(mode="json", exclude_unset=True)}


def test_eight_flow_runs_at_once_all_complete_and_their_artifacts_are_whole(team):
    from storage.artifacts import Store

    began = time.monotonic()
    with prefect_client() as client:
        ids = {}
        for flow, request in requests():
            deployment = client.read_deployment_by_name(f"{flow}/{flow}")
            run = client.create_flow_run_from_deployment(deployment.id, parameters=parameters(flow, request))
            ids[run.id] = flow
        assert len(ids) == RUNS
        runs, at_once = watched(client, ids)
    seconds = time.monotonic() - began
    problems = {run.name: (run.state.name, run.state.message) for run in runs if run.state.name != "Completed"}
    assert not problems, f"{problems}\n{team.log('worker').read_text()[-3000:]}"

    store = Store()
    made = store.list()
    for manifest in made:
        store.verify(manifest.id)
    kinds = [manifest.kind for manifest in made]
    assert kinds.count("checkpoint") == 4 and kinds.count("prompts") == 2 and kinds.count("shards") >= 2, kinds
    assert at_once >= 4
    tell(f"{RUNS} flow runs in {seconds:.0f} s, at most {at_once} at once, 0 failed; {len(made)} artifacts verified")


def watched(client, ids) -> tuple[list, int]:
    """The runs when all have ended, and how many ran at the same time."""
    at_once, deadline = 0, time.monotonic() + 600
    while True:
        runs = [client.read_flow_run(one) for one in ids]
        at_once = max(at_once, sum(run.state.name == "Running" for run in runs))
        if all(run.state.is_final() for run in runs) or time.monotonic() > deadline:
            return runs, at_once
        time.sleep(1)


def test_no_disk_is_shared_between_driver_and_ray(team):
    """Stages ran where Ray is; what drove them kept nothing but what it read from the bucket, and left no notes."""
    by_ray = {path.name for path in team.cache("ray").glob("*/artifacts/*")}
    by_driver = {path.name for path in team.cache("worker").glob("*/artifacts/*")}
    assert len(by_ray) >= 8 and not by_driver - by_ray
    assert not list(team.cache("worker").glob("*/work/*")) and not list(team.cache("ray").glob("*/work/*"))


def test_training_runs_are_in_mlflow(team):
    client = mlflow_client()
    experiment = client.get_experiment_by_name("team")
    runs = client.search_runs([experiment.experiment_id], "attributes.status = 'FINISHED'")
    assert len(runs) == 4 and all(run.data.metrics for run in runs)
    assert experiment.artifact_location.startswith("mlflow-artifacts:")


# ------------------------------------------------------------------------------------------------------------ metrics
def test_twenty_thousand_metrics_survive_a_restart_of_mlflow(team, tmp_path):
    pause, began = tmp_path / "go", time.monotonic()
    names = [f"writer-{number}" for number in range(WRITERS)]
    writers = [subprocess.Popen([sys.executable, "-m", "tests.team.write_metrics", name, str(POINTS), str(pause)], cwd=ROOT,
                                env=team.environment("writer"), stderr=open(tmp_path / f"{name}.log", "w"))
               for name in names]
    try:
        while len(list(tmp_path.glob("go.*"))) < WRITERS:
            assert all(writer.poll() is None for writer in writers), logs(tmp_path)
            time.sleep(0.1)
        team.stop("mlflow")
        pause.touch()                        # they write on while nothing answers
        time.sleep(3)
        team.start_mlflow()
        team.wait("mlflow")
        assert [writer.wait(300) for writer in writers] == [0] * WRITERS, logs(tmp_path)
    finally:
        for writer in writers:
            if writer.poll() is None:
                writer.kill()
    replayed = subprocess.run([sys.executable, "-c", "from storage.tracking import Tracking; print(Tracking().replay())"],
                              cwd=ROOT, env=team.environment("writer"), check=True, capture_output=True, text=True).stdout
    seconds = time.monotonic() - began

    client = mlflow_client()
    experiment = client.get_experiment_by_name("metrics")
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(run.info.run_name for run in runs) == names
    assert {run.info.status for run in runs} == {"FINISHED"}
    for run in runs:
        history = client.get_metric_history(run.info.run_id, "loss")
        assert [point.step for point in sorted(history, key=lambda point: point.step)] == list(range(POINTS))
        assert all(point.value == value(point.step) for point in history)
        table = json.loads(mlflow_text(client, run.info.run_id, "scores.json"))
        assert table["data"] == [[step, value(step)] for step in range(3)]
    stored = team.s3().list_objects_v2(Bucket=BUCKET, Prefix="mlflow/")["Contents"]
    assert sum(entry["Key"].endswith("/scores.json") for entry in stored) == WRITERS
    errors = logs(tmp_path).count("Traceback")
    assert errors == 0 and not list(team.cache("writer").glob("*/spool/*/*.jsonl"))
    tell(f"{WRITERS * POINTS:,} metrics by {WRITERS} processes in {seconds:.0f} s with a restart of MLflow "
         f"({WRITERS * POINTS / seconds:.0f}/s); none lost, none double, {int(replayed)} operations replayed afterwards, "
         f"{errors} errors")


def mlflow_text(client, run: str, path: str) -> str:
    """A file of a run, fetched through the server."""
    with tempfile.TemporaryDirectory() as folder:
        return Path(client.download_artifacts(run, path, folder)).read_text(encoding="utf-8")


def logs(folder) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))


# -------------------------------------------------------------------------------------------------------------- pages
def test_both_pages_answer_those_who_may_enter(team):
    with httpx.Client(verify=ssl_context(team)) as stranger:
        assert stranger.post(f"{team.sites['PREFECT_SITE']}/api/flows/filter", json={}).status_code == 401
        for site, health in ((team.sites["PREFECT_SITE"], "/api/health"), (team.sites["MLFLOW_SITE"], "/health")):
            assert stranger.get(site).status_code == 401
            assert stranger.get(f"{site}{health}").status_code == 200
            assert stranger.get(site, auth=(PERSON, "a guess")).status_code == 401
    with httpx.Client(verify=ssl_context(team), auth=(PERSON, PASSWORD), follow_redirects=True) as person:
        for site in team.sites.values():
            page = person.get(site, headers={"Accept": "text/html"})
            assert page.status_code == 200 and "<div id=" in page.text
        settings = person.get(f"{team.sites['PREFECT_SITE']}/ui-settings").json()
        assert settings["api_url"] == f"{team.sites['PREFECT_SITE']}/api" and settings["csrf_enabled"]


def ssl_context(team):
    import ssl

    return ssl.create_default_context(cafile=str(team.certificate))


def test_mlflow_refuses_names_it_does_not_go_by(team):
    assert httpx.get(f"{team.mlflow}/api/2.0/mlflow/experiments/search", headers={"Host": "evil.example"}).status_code == 403


def test_ray_refuses_a_driver_without_the_token(team):
    driver = "import ray; ray.init('{}', logging_level='ERROR'); print(ray.cluster_resources()['CPU'])"
    command = [sys.executable, "-c", driver.format(team.four["RAY_ADDRESS"])]
    environment = {**team.environment("stranger"), "RAY_AUTH_TOKEN": "a-guess"}
    assert subprocess.run(command, env=environment, capture_output=True, timeout=120).returncode != 0


def test_reread_reads_what_the_team_made(team):
    listed = json.loads(team.command(sys.executable, "-m", "flows.cli", "list", "--kind", "checkpoint", "--json", cwd=ROOT))
    assert len(listed) == 4


# ------------------------------------------------------------------------------------------------------------- alerts
def test_a_failed_run_sends_a_message(team):
    heard: list[dict] = []

    class Chat(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Chat) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        from infra.alerts import declare

        names = declare(f"http://127.0.0.1:{server.server_port}/hook")
        assert declare(f"http://127.0.0.1:{server.server_port}/hook") == names
        with prefect_client() as client:
            assert sorted(one.name for one in client.read_automations()) == sorted(names)
            time.sleep(5)                    # the server reads new automations into memory every few seconds
            deployment = client.read_deployment_by_name("evaluate/evaluate")
            run = client.create_flow_run_from_deployment(
                deployment.id, parameters={"request": {"checkpoint": "checkpoint-0000000000000000"}})
            deadline = time.monotonic() + 180
            while not heard and time.monotonic() < deadline:
                time.sleep(0.5)
            assert client.read_flow_run(run.id).state.name in ("Failed", "Crashed")
        server.shutdown()
    assert len(heard) == 1 and "Failed" in heard[0]["text"] and str(run.id) in heard[0]["text"], heard
    tell(f"alert heard: {heard[0]['text'][:200]}")


# ------------------------------------------------------------------------------------------------ upgrades and back-up
def test_upgrades_of_databases_that_are_up_to_date_change_nothing(team):
    def revisions():
        return [team.psql("select version_num from alembic_version", name) for name in ("prefect", "mlflow")]

    before = revisions()
    began = time.monotonic()
    team.prefect_command("server", "database", "upgrade", "-y",
                         PREFECT_API_DATABASE_CONNECTION_URL=team.driver("PREFECT_DATABASE", "asyncpg"))
    team.command(sys.executable, "-m", "mlflow", "db", "upgrade", team.driver("MLFLOW_DATABASE", "psycopg2"))
    assert revisions() == before and all(before)
    tell(f"both upgrades in {time.monotonic() - began:.0f} s: nothing to change")


def test_back_up_loss_and_restore(team, tmp_path, monkeypatch):
    monkeypatch.setenv("REREAD_CACHE", str(tmp_path / "before"))
    known, began = census(team), time.monotonic()
    folder = team.folder / "backup"
    keep = {**team.databases, "BUCKET": BUCKET}
    team.command("sh", INFRA / "backup.sh", folder, cwd=ROOT, **keep)
    saved = time.monotonic() - began
    team.stop("worker", "prefect", "mlflow")
    for name in ("prefect", "mlflow"):
        team.psql(f"drop database {name} with (force)")
        team.psql(f"create database {name}")
    keys = [entry["Key"] for page in team.s3().get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
            for entry in page.get("Contents", [])]
    for key in keys:
        team.s3().delete_object(Bucket=BUCKET, Key=key)

    began = time.monotonic()
    team.command("sh", INFRA / "restore.sh", folder, cwd=ROOT, **keep)
    restored = time.monotonic() - began
    team.command("sh", INFRA / "backup.sh", folder, cwd=ROOT, **keep)      # what was restored can be saved again,
    team.command("sh", INFRA / "restore.sh", folder, cwd=ROOT, **keep)     # and restored over what is there
    team.start_mlflow()
    team.start_prefect()
    team.wait("mlflow", "prefect")
    monkeypatch.setenv("REREAD_CACHE", str(tmp_path / "after"))           # read from the bucket, not from a cache
    assert census(team) == known
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    tell(f"back-up in {saved:.0f} s ({size / 1e6:.1f} MB, {len(keys)} objects), restored in {restored:.0f} s; all runs are there")


def census(team) -> dict:
    """What the pages show and the bucket holds: flow runs and states, runs and counts of their points, artifacts."""
    from storage.artifacts import Store

    with prefect_client() as client:
        flows = {str(run.id): (run.name, run.state.name) for run in client.read_flow_runs()}
        automations = sorted(one.name for one in client.read_automations())
    client = mlflow_client()
    runs = {run.info.run_id: (run.info.run_name, run.info.status, run.data.metrics)
            for experiment in client.search_experiments() for run in client.search_runs([experiment.experiment_id])}
    points = team.psql("select run_uuid, count(*) from metrics group by 1 order by 1", "mlflow")
    store = Store()
    artifacts = [manifest.id for manifest in store.list()]
    for artifact in artifacts:
        store.verify(artifact)
    assert len(flows) >= RUNS and len(runs) >= WRITERS and artifacts
    return {"flows": flows, "automations": automations, "runs": runs, "points": points, "artifacts": artifacts}
