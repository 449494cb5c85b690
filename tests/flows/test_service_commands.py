"""`reread up`, `down` and `status` as a person sees them; services are small processes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest

from flows.commands import service
from flows.services import fleet, health, local, servers
from flows.services.processes import ProcessId, Record, free_port
from storage.errors import ServiceError


def finding(answer, check: str) -> dict:
    return next(one for one in answer.json["findings"] if one["check"] == check)


def state(answer) -> dict[str, str]:
    return {one["service"]: one["state"] for one in answer.json["services"]}


def test_up_prints_the_pages_and_a_second_one_keeps_them(reread, small_servers):
    first = reread("up", "--detach")
    assert first.code == 0, first.err
    prefect, mlflow = local.running("prefect").url, local.running("mlflow").url
    assert f"{prefect}/v2/deployments" in first.out and f"{prefect}/v2/runs" in first.out and mlflow in first.out
    assert "starting prefect" in first.err and "all answer after" in first.err and "running in the background" in first.out
    for again in (reread("up", "--detach"), reread("up")):            # neither stays: there is nothing to watch
        assert again.code == 0 and again.err.count("runs already") == 3 and "nothing to start" in again.out
    down = reread("down")
    assert down.code == 0 and down.out.count("stopped ") == 3
    assert reread("down").out == "nothing was running\n"


def test_an_attached_up_stays_until_it_is_asked(reread, small_servers):
    def ask() -> None:
        deadline = time.time() + 60
        while time.time() < deadline and not all((one := local.running(name)) and one.extra["ready"]
                                                 for name in local.ORDER):
            time.sleep(0.1)
        time.sleep(1)                   # what starts has started; now it stays
        if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=ask, daemon=True).start()
    answer = reread("up")
    assert answer.code == 0 and "Ctrl-C stops them" in answer.out, answer.err
    assert answer.out.rstrip().endswith("stopped deployments, mlflow, prefect")
    assert not any(start.record.process.alive for start in small_servers)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("arguments", [(), ("--detach",)])
def test_interrupted_while_starting_nothing_stays(reread, small_servers, monkeypatch, number, arguments):
    begin = fleet._begin

    def interrupted(name, api):
        os.kill(os.getpid(), number)
        return begin(name, api)

    monkeypatch.setattr(fleet, "_begin", interrupted)
    answer = reread("up", *arguments)
    assert answer.code == 130 and "interrupted" in answer.err and "Traceback" not in answer.err
    assert small_servers and not any(start.record.process.alive for start in small_servers)
    assert not list(local.folder().glob("*.json"))


@pytest.mark.parametrize("arguments", [(), ("--detach",)])
def test_interrupted_while_the_links_are_printed_nothing_stays(reread, small_servers, monkeypatch, arguments):
    monkeypatch.setattr(service, "_links", lambda up: os.kill(os.getpid(), signal.SIGINT))
    assert reread("up", *arguments).code == (130 if arguments else 0)
    assert len(small_servers) == 3 and not any(start.record.process.alive for start in small_servers)


@pytest.mark.parametrize("arguments", [(), ("--detach",)])
def test_nothing_stays_when_nobody_can_read_what_is_said(reread, small_servers, monkeypatch, arguments):
    """`reread up | head -1`"""
    def gone(text=""):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(service, "say", gone)
    with pytest.raises(SystemExit):
        reread("up", *arguments)
    assert len(small_servers) == 3 and not any(start.record.process.alive for start in small_servers)


@pytest.mark.parametrize("name, value", [("REREAD_NIGHTLY_CRON", "at two"), ("REREAD_NIGHTLY_TIMEZONE", "Mars/Olympus")])
def test_a_time_of_nights_that_cannot_be_read_is_told_before_anything_starts(reread, small_servers, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    refused(reread, f"{name} is {value!r}: expected")
    assert not small_servers


def test_down_says_that_it_waits_for_another_command(reread, small_servers):
    with local.exclusive():
        threading.Timer(0.5, lambda: held.release()).start()
        held = threading.Lock()
        held.acquire()
        said = []
        waiting = threading.Thread(target=fleet.down, kwargs={"report": said.append})
        waiting.start()
        held.acquire()
        assert waiting.is_alive() and said == ["waiting for another command that starts or stops them"]
    waiting.join(20)
    assert not waiting.is_alive()


# ---------------------------------------------------------------------------------------------------------------- places
def refused(reread, words: str) -> None:
    answer = reread("up", "--detach")
    assert answer.code in (1, 2) and words in answer.err, answer.err
    assert answer.err.count("\n") == 1 and "Traceback" not in answer.err, "one sentence"


def test_a_full_disk_is_refused_before_anything_starts(reread, small_servers, monkeypatch):
    monkeypatch.setattr(health, "free_bytes", lambda place: 20_000_000)
    refused(reread, "the disk is full: 20.0 MB free under")
    assert not small_servers
    monkeypatch.setattr(health, "free_bytes", lambda place: 1_000_000_000)
    answer = reread("up", "--detach")
    assert answer.code == 0 and "warning: only 1.0 GB free" in answer.err
    fleet.down()


@pytest.fixture
def small_disk(tmp_path):
    """Mounts a file system of so many bytes; skips where that is not allowed."""
    mounted = []

    def mount(options: str) -> Path:
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"file systems cannot be mounted here: {done.stderr.strip()}")
        mounted.append(place)
        return place

    if os.geteuid() or not Path("/bin/mount").exists():
        pytest.skip("mounting a small file system needs root")
    yield mount
    for place in mounted:
        subprocess.run(["umount", str(place)], check=False)


def test_a_real_full_disk_is_refused(reread, small_servers, small_disk, monkeypatch):
    monkeypatch.setenv("REREAD_HOME", str(small_disk("size=20m")))
    refused(reread, "the disk is full")
    assert not small_servers


def test_a_home_on_a_disk_that_is_read_only_is_refused(reread, small_servers, small_disk, monkeypatch):
    monkeypatch.setenv("REREAD_HOME", str(small_disk("ro,size=100m") / "home"))
    refused(reread, "set REREAD_HOME to a folder that can be written")
    assert not small_servers


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_without_permission_is_refused(reread, small_servers, tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir(mode=0o500)
    monkeypatch.setenv("REREAD_HOME", str(tmp_path / "closed" / "home"))
    refused(reread, "set REREAD_HOME to a folder that can be written")
    assert not small_servers


def test_a_home_that_is_a_file_or_below_one_is_refused(reread, small_servers, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REREAD_HOME", str(tmp_path / "file" / "home"))
    refused(reread, "set REREAD_HOME to a folder")
    monkeypatch.setenv("REREAD_HOME", str(tmp_path / "file"))
    refused(reread, "set REREAD_HOME to a folder")
    assert not small_servers


# ---------------------------------------------------------------------------------------------------------------- status
def test_nothing_has_to_run_before_up(reread):
    answer = reread("status", "--json")
    assert answer.code == 0 and answer.json["ok"] and set(state(answer).values()) == {"not running"}
    assert set(answer.json) == {"ok", "services", "versions", "queue", "disk", "memory_bytes", "findings"}
    assert answer.json["versions"]["prefect"] and answer.json["versions"]["ray"] and answer.json["queue"] is None
    assert set(answer.json["disk"]) == {"home", "free_bytes", "total_bytes", "prefect_db_bytes", "mlflow_db_bytes",
                                        "mlflow_artifacts_bytes", "artifacts_bytes", "artifacts_counted_whole"}
    assert "not running" in reread("status").out


def test_a_service_that_died_is_named_until_up_or_down(reread, small_servers):
    reread("up", "--detach")
    process = psutil.Process(local.running("mlflow").process.pid)
    process.kill()
    process.wait(10)
    answer = reread("status", "--json")
    assert answer.code == 1 and not answer.json["ok"] and state(answer)["mlflow"] == "dead"
    assert "small server" in finding(answer, "mlflow")["message"] and "not well: " in answer.err and "mlflow" in answer.err
    table = reread("status")
    assert table.code == 1 and "BAD     mlflow" in table.out and "reread up starts it again" in table.out
    assert reread("up", "--detach").err.count("runs already") == 2
    assert state(reread("status", "--json"))["mlflow"] == "answers"
    reread("down")
    assert reread("status").code == 0


def test_a_service_that_hangs_is_silent(reread, small_servers, monkeypatch):
    monkeypatch.setattr("flows.services.pages.Page.__init__.__defaults__", (0.5,))
    reread("up", "--detach")
    os.kill(local.running("mlflow").process.pid, signal.SIGSTOP)
    answer = reread("status", "--json")
    assert answer.code == 1 and state(answer)["mlflow"] == "silent" and finding(answer, "mlflow")["ok"] is False


def test_what_runs_is_shown_with_port_memory_and_age(reread, small_servers):
    reread("up", "--detach")
    found = {one["service"]: one for one in reread("status", "--json").json["services"]}
    assert found["mlflow"]["page"].endswith(f":{found['mlflow']['port']}") and found["mlflow"]["memory_bytes"] > 1_000_000
    assert 0 <= found["mlflow"]["uptime_seconds"] < 600 and found["mlflow"]["kept_by"] == "up"
    assert found["deployments"]["page"] is None and found["deployments"]["pid"]


def test_servers_elsewhere_are_judged_by_their_answer(reread, small_servers, monkeypatch):
    local.start_prefect("run")
    api = local.running("prefect").url + "/api"
    (local.folder() / "prefect.json").unlink()
    away = f"http://127.0.0.1:{free_port(0)}"
    monkeypatch.setenv("PREFECT_API_URL", api)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", away)
    answer = reread("status", "--json")
    assert answer.code == 1 and state(answer)["prefect"] == "external" and state(answer)["mlflow"] == "external, silent"
    assert finding(answer, "mlflow")["remedy"] == "start that server, or correct MLFLOW_TRACKING_URI"


def test_no_password_is_shown(reread, small_servers, monkeypatch):
    local.start_prefect("run")
    place = local.running("prefect").url.removeprefix("http://")
    (local.folder() / "prefect.json").unlink()
    monkeypatch.setenv("PREFECT_API_URL", f"http://me:secret@{place}/api")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{free_port(0)}")
    up = reread("up", "--detach")
    assert up.code == 0, up.err
    answer, table = reread("status", "--json"), reread("status")
    assert state(answer)["prefect"] == "external" and state(answer)["mlflow"] == "external, silent"
    said = "".join(one.out + one.err for one in (up, answer, table, reread("down"), reread("doctor")))
    assert "secret" not in said and place in said
    assert "secret" not in local.mlflow_url()


def test_a_password_in_a_log_and_that_of_the_store_stay_hidden(reread, home, monkeypatch):
    """Everybody can read a command line."""
    (home / "services").mkdir(parents=True)
    (home / "words.log").write_text("no server at postgresql://mlflow:secret@db/mlflow")
    Record("mlflow", ProcessId(2**22 - 1, 1.0), "up", "http://127.0.0.1:9", str(home / "words.log")).save(local.folder())
    answer = reread("status", "--json")
    assert "mlflow:***@db" in finding(answer, "mlflow")["message"] and "secret" not in answer.out + reread("status").out
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://mlflow:secret@db/mlflow")
    server = servers.mlflow(5050)
    assert "secret" not in str(server.command) and "secret" in server.environment["REREAD_MLFLOW_STORE"]


def test_a_stale_state_folder_says_what_is_dead_and_down_clears_it(reread, sleeper):
    """After a reboot: three records, and numbers that belong to others."""
    others = [sleeper() for _ in local.ORDER]
    for name, process in zip(local.ORDER, others, strict=True):
        Record(name, ProcessId(process.pid, 1.0), "up", "http://127.0.0.1:9").save(local.folder())
    answer = reread("status", "--json")
    assert answer.code == 1 and set(state(answer).values()) == {"dead"}
    assert reread("down").out == "nothing was running\n" and reread("status").code == 0
    assert all(process.poll() is None for process in others)


def test_the_dead_server_of_a_command_is_nobodys_trouble(reread):
    Record("prefect", ProcessId(2**22 - 1, 1.0), "run", "http://127.0.0.1:9").save(local.folder())
    assert reread("status").code == 0


def test_a_check_of_the_place_needs_no_network(tmp_path, monkeypatch):
    monkeypatch.setenv("REREAD_HOME", str(tmp_path / "new"))
    service._check_place()
    monkeypatch.setattr(health, "free_bytes", lambda place: 1)
    with pytest.raises(ServiceError, match="the disk is full"):
        service._check_place()
