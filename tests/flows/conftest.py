"""What tests of flows share: a command line that runs in this process, and studies that can be planned."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

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
