"""`up` and `down` with small processes in the place of the three services."""

from __future__ import annotations

import json
import socket
import sys
import time
from dataclasses import replace
from urllib.parse import urlparse

import psutil
import pytest

from flows.services import fleet, local, servers
from flows.services.processes import ProcessId, Record, answers, free_port
from storage.errors import ServiceError

PORTS = {"prefect": "PREFECT_PORT", "mlflow": "MLFLOW_PORT"}


def kill(record: Record) -> None:
    process = psutil.Process(record.process.pid)
    process.kill()
    process.wait(10)


def test_up_starts_three_keeps_what_runs_and_down_stops_exactly_them(small_servers, sleeper):
    bystander = sleeper()
    said = []
    first = fleet.up(said.append)
    assert list(first.records) == list(local.ORDER) == list(first.started)
    assert said == ["starting prefect", "starting mlflow", "starting deployments"]
    assert all(record.process.alive and record.extra["ready"] for record in first.records.values())
    again = fleet.up(said.append)
    assert again.records == first.records and again.started == () and len(said) == 3 and len(small_servers) == 3
    assert [record.name for record in fleet.down()] == ["deployments", "mlflow", "prefect"]
    assert not any(record.process.alive for record in first.records.values()) and bystander.poll() is None
    assert fleet.down() == []


def test_down_leaves_nothing_behind_but_the_lock(small_servers):
    fleet.up()
    (local.folder() / ".mlflow.123.partial").write_text('{"name"')          # a writer that was killed
    (local.folder() / ".deployments.ready").write_text("ready")             # a start that was killed
    fleet.down()
    assert [path.name for path in local.folder().iterdir()] == [".start.lock"]


def test_up_takes_over_the_server_of_a_running_command(small_servers, monkeypatch):
    with local.prefect_api():
        with monkeypatch.context() as elsewhere:             # `up` is another process, without our address
            elsewhere.delenv("PREFECT_API_URL")
            fleet.up()
    assert local.running("prefect").process.alive and len(small_servers) == 3
    fleet.down()


@pytest.mark.parametrize("name", local.ORDER)
def test_up_starts_only_the_one_that_was_killed_on_its_old_port(small_servers, name):
    first = fleet.up().records
    kill(first[name])
    again = fleet.up()
    assert again.started == (name,)
    assert {other: record for other, record in again.records.items() if other != name} == {
        other: record for other, record in first.items() if other != name}
    assert again.records[name].url == first[name].url and again.records[name].process.alive


def test_deployments_follow_a_prefect_that_had_to_move(small_servers, monkeypatch):
    first = fleet.up().records
    kill(first["prefect"])
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", urlparse(first["prefect"].url).port))
        other.listen()
        again = fleet.up()
    assert set(again.started) == {"prefect", "deployments"} and not first["deployments"].process.alive
    assert again.records["deployments"].extra["api"] == f"{again.records['prefect'].url}/api"


def test_taken_ports_are_told_and_others_used(small_servers):
    said = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", fleet.MLFLOW_PORT))
        other.listen()
        up = fleet.up(said.append)
    port = urlparse(up.records["mlflow"].url).port
    assert port != fleet.MLFLOW_PORT and answers(up.records["mlflow"].url)
    assert f"mlflow uses port {port}: {fleet.MLFLOW_PORT} is taken" in said
    kill(up.records["mlflow"])
    assert fleet.up().records["mlflow"].url == up.records["mlflow"].url, "links that people have still hold"


def test_a_server_that_loses_its_port_while_it_starts_moves_to_another(small_servers, monkeypatch):
    """Two commands that start at once, in homes of their own, both find a port free; the other one gets it."""
    monkeypatch.setattr(servers, "free_port", lambda preferred: preferred or free_port(0))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        record = local.Start(servers.prefect, "up", taken).wait()
    assert urlparse(record.url).port != taken and answers(record.url)


def test_a_server_moves_also_when_whoever_took_its_port_has_gone(small_servers):
    """As uvicorn says it; by the time we look the port is free again."""
    build, taken = servers.mlflow, free_port(0)

    def first_refused(port: int) -> servers.Server:
        refuse = "raise SystemExit('[Errno 98] error while attempting to bind: address already in use')"
        server = build(port)
        return replace(server, command=[sys.executable, "-c", refuse]) if port == taken else server

    start = local.Start(first_refused, "up", taken)
    record = start.wait()
    assert start.moved and urlparse(record.url).port != taken and answers(record.url)


def test_deployments_that_began_beside_a_prefect_that_moved_begin_anew(small_servers, monkeypatch):
    build = servers.prefect
    refuse = "raise SystemExit('[Errno 98] error while attempting to bind: address already in use')"
    monkeypatch.setattr(servers, "prefect", lambda port: replace(build(port), command=[sys.executable, "-c", refuse])
                        if port == fleet.PREFECT_PORT else build(port))
    up = fleet.up()
    api = f"{up.records['prefect'].url}/api"
    assert urlparse(api).port != fleet.PREFECT_PORT
    assert up.records["deployments"].extra["api"] == api and up.records["deployments"].process.alive
    begun = [start for start in small_servers if start.server.name == "deployments"]
    assert len(begun) == 2 and not begun[0].record.process.alive


def test_a_port_that_another_server_answers_on_is_not_taken_for_ours(small_servers, monkeypatch):
    deaf = "import time; time.sleep(60)"
    url = local.start_prefect("run").url
    monkeypatch.setattr(servers, "READY_SECONDS", 0.5)
    start = local.Start(lambda port: servers.Server("mlflow", [sys.executable, "-c", deaf], url, f"{url}/"), "up", None)
    with pytest.raises(ServiceError, match="mlflow was not ready within"):
        start.wait()
    assert not start.record.process.alive


def test_a_service_that_does_not_start_is_told_with_its_last_words_and_nothing_stays(small_servers, monkeypatch):
    build = servers.mlflow
    monkeypatch.setattr(servers, "mlflow", lambda port: replace(
        build(port), command=[sys.executable, "-c", "raise SystemExit('no such database')"]))
    with pytest.raises(ServiceError, match="mlflow ended with status 1 before it was ready(.|\n)*no such database"):
        fleet.up()
    assert not any(start.record.process.alive for start in small_servers)
    assert not list(local.folder().glob("*.json"))


@pytest.mark.parametrize("looks", [0, 1, 3])
def test_an_interrupt_while_starting_leaves_nothing(small_servers, monkeypatch, looks):
    seen, build = [], servers.mlflow
    monkeypatch.setattr(servers, "mlflow", lambda port: replace(build(port), ready=lambda: False))     # still starting

    def stopped() -> bool:
        seen.append(1)
        return len(seen) > looks

    with pytest.raises(KeyboardInterrupt):
        fleet.up(stopped=stopped)
    assert small_servers and not any(start.record.process.alive for start in small_servers)
    assert not list(local.folder().glob("*.json"))


def test_an_interrupt_while_a_dead_one_is_started_again_spares_the_living(small_servers):
    first = fleet.up().records
    kill(first["mlflow"])
    with pytest.raises(KeyboardInterrupt):
        fleet.up(stopped=lambda: True)
    assert first["prefect"].process.alive and first["deployments"].process.alive


def test_one_whose_start_was_killed_is_started_anew(small_servers):
    first = fleet.up().records
    half = replace(first["deployments"], extra={**first["deployments"].extra, "ready": False})
    half.save(local.folder())
    assert fleet.up().started == ("deployments",) and not half.process.alive


def test_one_that_lives_but_is_deaf_is_replaced(small_servers, sleeper, monkeypatch):
    monkeypatch.setattr(fleet, "SILENT_SECONDS", 0.3)
    process = sleeper()
    deaf = Record("mlflow", ProcessId.of(psutil.Process(process.pid)), "up", f"http://127.0.0.1:{free_port(0)}")
    deaf.save(local.folder())
    assert "mlflow" in fleet.up().started and not deaf.process.alive


@pytest.mark.parametrize("text", ["", '{"name": "mlf', "[1, 2]", '{"name": "mlflow", "process": {"pid": 1}}'])
def test_half_written_records_do_not_matter(small_servers, text):
    local.make_folder(local.folder())
    for name in local.ORDER:
        (local.folder() / f"{name}.json").write_text(text)
    assert len(fleet.up().started) == 3
    assert json.loads((local.folder() / "mlflow.json").read_text())["owner"] == "up"


@pytest.mark.parametrize("changes", [
    {"process": {"pid": "12", "started": 1.0}}, {"process": {"pid": -1, "started": 1.0}}, {"process": {"pid": 12, "started": None}},
    {"url": 5}, {"url": "http://127.0.0.1:nine"}, {"extra": None}, {"name": "prefect"}, {"colour": "red"}])
def test_records_that_somebody_else_wrote_do_not_matter(small_servers, changes):
    whole = {"name": "mlflow", "process": {"pid": 12, "started": 1.0}, "owner": "up", "url": None, "log": None, "extra": {}}
    local.make_folder(local.folder())
    (local.folder() / "mlflow.json").write_text(json.dumps(whole | changes))
    assert Record.load(local.folder(), "mlflow") is None
    assert fleet.down() == [] and len(fleet.up().started) == 3


def test_nobody_else_may_read_a_record(small_servers):
    """The address of a server elsewhere may hold a password."""
    local.start_prefect("run")
    assert (local.folder() / "prefect.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("writes", [0, 1, 4])
def test_a_disk_that_fills_up_while_starting_is_told_and_leaves_nothing(small_servers, monkeypatch, writes):
    """Records are written when each begins and when it is ready."""
    import errno
    import os

    from flows.services import processes

    begun, replace_, launch, left = [], os.replace, servers.launch, [writes]

    def full(source, target):
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= 1
        replace_(source, target)

    monkeypatch.setattr(processes.os, "replace", full)
    monkeypatch.setattr(servers, "launch", lambda *what: begun.append(launch(*what)) or begun[-1])
    with pytest.raises(ServiceError, match="cannot be written under .*: No space left on device; free some"):
        fleet.up()
    assert begun and all(process.poll() is not None for process in begun)
    assert [path.name for path in local.folder().iterdir() if path.suffix in (".json", ".partial")] == []


@pytest.fixture
def deployments_with_a_run(small_servers, monkeypatch):
    """The process that serves the deployments has a flow run below it."""
    build = servers.deployments
    family = ("import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
              "open(sys.argv[1], 'w').close(); time.sleep(600)")

    def with_a_run(api):
        server = build(api)
        return replace(server, command=[sys.executable, "-c", family, server.command[-1]])

    monkeypatch.setattr(servers, "deployments", with_a_run)


def test_down_ends_also_what_was_begun_before_a_killed_service_was_started_again(small_servers, deployments_with_a_run):
    runs = []
    for _ in range(3):
        record = fleet.up().records["deployments"]
        runs.append(ProcessId.of(psutil.Process(record.process.pid).children()[0]))
        kill(record)
    fleet.up()
    assert all(run.alive for run in runs), "a run goes on until somebody stops it"
    fleet.down()
    assert not any(run.alive for run in runs)


def test_an_api_elsewhere_that_is_away_is_told_before_anything_starts(small_servers, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", f"http://me:secret@127.0.0.1:{free_port(0)}/api")
    with pytest.raises(ServiceError, match="PREFECT_API_URL is http://me:.* nothing answers there") as refusal:
        fleet.up()
    assert not small_servers and "secret" not in str(refusal.value)


def test_stale_pids_are_not_touched(small_servers, sleeper):
    """After a reboot the numbers belong to others."""
    others = [sleeper() for _ in local.ORDER]
    for name, process in zip(local.ORDER, others, strict=True):
        Record(name, ProcessId(process.pid, 1.0), "up", "http://127.0.0.1:9").save(local.folder())
    assert fleet.down() == []
    for name, process in zip(local.ORDER, others, strict=True):
        Record(name, ProcessId(process.pid, 1.0), "up", f"http://127.0.0.1:{free_port(0)}").save(local.folder())
    assert len(fleet.up().started) == 3
    fleet.down()
    assert all(process.poll() is None for process in others)


def test_down_ends_what_a_killed_service_had_begun(small_servers, deployments_with_a_run):
    """A flow run outlives the process that serves the deployments when that is killed."""
    record = fleet.up().records["deployments"]
    run = ProcessId.of(psutil.Process(record.process.pid).children()[0])
    kill(record)
    assert run.alive
    fleet.down()
    assert not run.alive


def test_prefect_unpacks_its_pages_in_the_home_where_its_code_cannot_be_written(home, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", str(home / "prefect"))
    monkeypatch.setattr(servers.os, "access", lambda place, mode: not place.endswith("/server"))
    assert servers.prefect(1).environment["PREFECT_UI_STATIC_DIRECTORY"] == str(home / "prefect" / "pages")
    monkeypatch.undo()
    monkeypatch.setenv("PREFECT_HOME", str(home / "prefect"))
    assert "PREFECT_UI_STATIC_DIRECTORY" not in servers.prefect(1).environment


def test_down_is_quick(small_servers):
    fleet.up()
    began = time.monotonic()
    fleet.down()
    assert time.monotonic() - began < 5


def test_servers_elsewhere_are_used_and_left_alone(small_servers, monkeypatch):
    api, pages = local.start_prefect("up").url + "/api", f"http://127.0.0.1:{free_port(0)}"
    monkeypatch.setenv("PREFECT_API_URL", api)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", pages)
    (local.folder() / "prefect.json").unlink()
    up = fleet.up()
    assert up.started == ("deployments",) and up.records["deployments"].extra["api"] == api
    assert local.external() == {"prefect": api.removesuffix("/api"), "mlflow": pages}
    assert [record.name for record in fleet.down()] == ["deployments"] and small_servers[0].record.process.alive
