"""What tests of flows share: a command line that runs in this process, and studies that can be planned."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace

import pytest

from flows import cli


@dataclass
class Answer:
    """What a command line said."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def reread(home, monkeypatch):
    """`reread("study", "list")` runs that command here, with a home of its own."""
    for name in ("PREFECT_HOME", "RAY_AUTH_MODE", "DS_ACCELERATOR", "PATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))       # restored afterwards, whatever the command sets
    for name in ("PREFECT_HOME", "RAY_AUTH_MODE", "DS_ACCELERATOR"):
        monkeypatch.delenv(name)                                 # as on a machine where nothing is configured

    def call(*arguments: str) -> Answer:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = cli.run(list(arguments), debug="--debug" in arguments)
        return Answer(code, out.getvalue(), err.getvalue())

    return call


@pytest.fixture
def sleeper():
    """Starts real, harmless child processes and ends those that a test leaves."""
    import subprocess

    started = []

    def start(code: str = "import time; time.sleep(120)", **options) -> subprocess.Popen:
        process = subprocess.Popen([sys.executable, "-c", code], **options)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(10)


SMALL_SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_): pass
print("small server", flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
SMALL_DEPLOYMENTS = """
import pathlib, sys, time
print("small deployments", flush=True)
pathlib.Path(sys.argv[1]).write_text("ready")
time.sleep(600)
"""


@pytest.fixture
def small_servers(home, monkeypatch):
    """The three services are small processes that answer whatever they are asked, on ports nobody else uses.

    The list of their starts; all are gone afterwards.
    """
    from flows.services import fleet, local, servers
    from flows.services.processes import free_port, stop

    started = []

    class Start(servers.Start):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            started.append(self)

    def small(name):
        def build(port: int) -> servers.Server:
            url = f"http://127.0.0.1:{port}"
            return servers.Server(name, [sys.executable, "-c", SMALL_SERVER, str(port)], url, f"{url}/")
        return build

    real = servers.deployments

    def deployments(api: str) -> servers.Server:
        server = real(api)
        return replace(server, command=[sys.executable, "-c", SMALL_DEPLOYMENTS, server.command[-1]])

    for name, port in (("prefect", "PREFECT_PORT"), ("mlflow", "MLFLOW_PORT")):
        monkeypatch.setattr(servers, name, small(name))
        free = free_port(0)
        for module in (servers, local, fleet):
            monkeypatch.setattr(module, port, free)
    monkeypatch.setattr(servers, "deployments", deployments)
    for module in (local, fleet):
        monkeypatch.setattr(module, "Start", Start)
    yield started
    stop([start.record.process for start in started], grace=5)
