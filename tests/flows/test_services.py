"""Which server a command uses, adopts or ends: with a real small HTTP server in the place of Prefect's."""

from __future__ import annotations

import fcntl
import json
import os

import psutil
import pytest

from flows.running import ray_runner
from flows.services import fleet, local
from flows.services.processes import ProcessId, Record, answers
from storage.errors import ServiceError


def test_a_command_starts_a_server_and_ends_it(small_servers):
    began = []
    with local.prefect_api(meanwhile=lambda: began.append(1)) as api:
        assert answers(api.removesuffix("/api") + "/") and os.environ["PREFECT_API_URL"] == api
        assert local.running("prefect").owner == "run"
    assert began == [1]
    assert "PREFECT_API_URL" not in os.environ
    assert not small_servers[0].record.process.alive and local.running("prefect") is None


def test_an_error_inside_ends_it_too(small_servers):
    with pytest.raises(RuntimeError), local.prefect_api():
        raise RuntimeError
    assert not small_servers[0].record.process.alive


def test_the_server_of_a_killed_command_is_adopted_and_ended(small_servers):
    left = local.start_prefect("run")
    with local.prefect_api() as api:
        assert api == f"{left.url}/api"
    assert len(small_servers) == 1 and not left.process.alive


def test_a_stale_record_is_replaced(small_servers, sleeper):
    process = sleeper()
    Record("prefect", ProcessId(process.pid, 1.0), "run", "http://127.0.0.1:9").save(local.folder())
    with local.prefect_api() as api:
        assert api != "http://127.0.0.1:9/api"
    assert process.poll() is None                    # another process that happens to have that pid


def test_a_recorded_server_that_no_longer_answers_is_ended_and_replaced(small_servers, sleeper):
    process = sleeper()
    deaf = Record("prefect", ProcessId.of(psutil.Process(process.pid)), "run", "http://127.0.0.1:9")
    deaf.save(local.folder())
    with local.prefect_api() as api:
        assert api != "http://127.0.0.1:9/api"
    assert not deaf.process.alive


def test_a_server_that_is_up_stays(small_servers):
    kept = local.start_prefect("up")
    with local.prefect_api() as api:
        assert api == f"{kept.url}/api"
    assert kept.process.alive


def test_the_last_of_two_commands_ends_the_server(small_servers):
    """The other command's lock is held by another open file, as another process would."""
    with local.prefect_api():
        other = open(local.folder() / ".prefect.users", "a")
        fcntl.flock(other, fcntl.LOCK_SH)
    assert small_servers[0].record.process.alive
    other.close()
    with local.prefect_api():
        pass
    assert len(small_servers) == 1 and not small_servers[0].record.process.alive


def test_an_external_api_is_used_or_missed(small_servers, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    with pytest.raises(ServiceError, match="PREFECT_API_URL is http://127.0.0.1:9/api but nothing answers"):
        with local.prefect_api():
            pass
    server = local.start_prefect("up")
    monkeypatch.setenv("PREFECT_API_URL", f"{server.url}/api")
    with local.prefect_api() as api:
        assert api == f"{server.url}/api"
    assert server.process.alive and os.environ["PREFECT_API_URL"] == api


def test_down_leaves_the_server_of_a_study_under_way(small_servers):
    with local.prefect_api():
        assert fleet.down() == []
        assert local.running("prefect") is not None
    left = local.start_prefect("run")                         # of a command that was killed
    assert fleet.down() == [left]


def test_what_a_killed_driver_left_is_ended_by_pid_and_start_time(home, sleeper, tmp_path):
    left, bystander = sleeper(), sleeper()
    dead = sleeper("pass")
    dead.wait(20)
    ray_folder = tmp_path / "session_x"
    ray_folder.mkdir()
    path = local.folder() / f"session-{dead.pid}.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"driver": [dead.pid, 1.0], "ray": str(ray_folder), "processes": [
        [left.pid, psutil.Process(left.pid).create_time()], [bystander.pid, 1.0]]}))
    assert ray_runner.clean_up() == [left.pid]
    assert bystander.poll() is None and not path.exists() and not ray_folder.exists()


def test_the_session_of_a_living_driver_is_left_alone(home, sleeper):
    driver, worker = sleeper(), sleeper()
    path = local.folder() / f"session-{driver.pid}.json"
    path.parent.mkdir(parents=True)
    identities = [[p.pid, psutil.Process(p.pid).create_time()] for p in (driver, worker)]
    path.write_text(json.dumps({"driver": identities[0], "ray": None, "processes": identities[1:]}))
    assert ray_runner.clean_up() == []
    assert worker.poll() is None and path.exists()


def test_a_session_notes_its_processes_and_ends_them(home, sleeper):
    session = ray_runner.Session()
    process = sleeper()
    session.refresh()
    noted = json.loads(session.path.read_text())
    assert process.pid in [pid for pid, _ in noted["processes"]] and noted["driver"][0] == os.getpid()
    session.end()
    assert not session.path.exists()
    assert process.wait(10) is not None
