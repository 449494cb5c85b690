"""What the browser tests share: a headless Chromium of the system, one stack of services, and a camera.

All of them use the pages in a new browser, as somebody does who was given the links that `reread up` prints. Screenshots
go to .pytest_browser, or to the folder REREAD_SCREENSHOTS, one folder a test.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.browser.camera import Camera
from tests.browser.mlflow_pages import MLflow
from tests.browser.prefect_pages import Prefect
from tests.conftest import ROOT

SCREEN = {"width": 1440, "height": 1000}        # pixels
PATIENCE = 90                                  # seconds for a page or a part of one, on a machine at its limit
COMMAND = 900                                   # seconds
TRAINING = ("--model", "jrt-tiny", "--set", "rows={kind: disjoint, batches: 300, batch_tokens: 512, "
                                            "sizes: [[2, 4]]}")
ASKED = ("--task", "disjoint", "--set", "cloze.limit=12", "--set", "cloze.orders=[small_first]",
         "--set", "cloze.task_options={sizes: [[2, 4]]}")


@pytest.fixture(scope="session")
def chromium():
    """A running browser."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test-browser")
    program = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    driver.expect.set_options(timeout=PATIENCE * 1000)
    with driver.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield browser
        browser.close()


@dataclass(frozen=True)
class Stack:
    """What `reread up` serves, and a model to ask."""

    home: Path
    prefect: str            # address of the page that `reread up` says to open
    mlflow: str
    checkpoint: str         # id of an artifact
    deployments: int        # pid of the process that runs flows


class Reread:
    """The command line, over a home of its own. The nightly schedule is off until somebody switches it on."""

    def __init__(self, home: Path) -> None:
        self.home = home
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("PREFECT_", "RAY_", "MLFLOW_", "REREAD_"))}
        self.environment = {**kept, "REREAD_HOME": str(home), "REREAD_NIGHTLY_CRON": "off"}

    def __call__(self, *arguments: str) -> str:
        """What it prints. Its children may outlive it, so it writes to files."""
        out, err = self.home.parent / "out", self.home.parent / "err"
        with out.open("w") as output, err.open("w") as errors:
            code = subprocess.run([sys.executable, "-m", "flows.cli", *arguments], stdout=output, stderr=errors,
                                  env=self.environment, timeout=COMMAND, check=False).returncode
        assert code == 0, f"reread {' '.join(arguments)}\n{err.read_text()}{out.read_text()}"
        return out.read_text()


@pytest.fixture(scope="session")
def stack(chromium, tmp_path_factory) -> Stack:
    """Asks for the browser first: without one nothing is started. REREAD_BROWSER_HOME: a home whose services are up, with
    the schedule off, and stay so; spares a minute to whoever writes such tests.
    """
    given = os.environ.get("REREAD_BROWSER_HOME")
    reread = Reread(Path(given) if given else tmp_path_factory.mktemp("stack") / "home")
    trained = json.loads(reread("pretrain", *TRAINING, "--json"))["artifact"]
    reread("evaluate", "--checkpoint", trained, *ASKED)             # something to sort
    try:
        said = reread("up", "--detach")
        found = {one["service"]: one for one in json.loads(reread("status", "--json"))["services"]}
        yield Stack(reread.home, *(re.search(rf"^{name} +(http\S+)", said, re.M)[1] for name in ("Prefect", "MLflow")),
                    trained, found["deployments"]["pid"])
    finally:
        if not given:
            reread("down")


@pytest.fixture
def page(chromium, request):
    """A page of a browser that was never here before; a failed test leaves a picture of what it saw last."""
    context = chromium.new_context(viewport=SCREEN, locale="en-GB", timezone_id="UTC")
    context.set_default_timeout(PATIENCE * 1000)
    opened = context.new_page()
    opened.camera = Camera(_folder() / request.node.name)
    yield opened
    if getattr(request.node, "failed", False):
        for last in context.pages:
            opened.camera(last, "failed", whole=True)
    context.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    item.failed = getattr(item, "failed", False) or report.failed


@pytest.fixture
def shot(page):
    """`shot("the form", whole=True)` keeps a picture of what is to be seen."""
    return lambda name, whole=False, of=page: page.camera(of, name, whole)


@pytest.fixture
def prefect(page, stack) -> Prefect:
    return Prefect(page, stack.prefect)


@pytest.fixture
def mlflow(page) -> MLflow:
    return MLflow(page)


def _folder() -> Path:
    return Path(os.environ.get("REREAD_SCREENSHOTS") or ROOT / ".pytest_browser")
