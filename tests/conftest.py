"""Fixtures shared by all tests. Real sample data lies outside the repository and tests skip, with the reason, without it."""

import logging
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("REREAD_REGISTER", "tags")     # exporting every small training imports transformers

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference vectors and sample data beside the repository (REREAD_SHARED overrides)."""
    path = Path(os.environ.get("REREAD_SHARED", ROOT.parent / "shared"))
    if not path.is_dir():
        pytest.skip(f"reference data is not here: {path} (set REREAD_SHARED)")
    return path


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An artifact home of its own."""
    monkeypatch.setenv("REREAD_HOME", str(tmp_path / "home"))
    for name in ("RAY_ADDRESS", "PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def told():
    """Messages that `reread` loggers give from WARNING on, each once, whether or not a command has set up the log."""
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger, handler = logging.getLogger("reread"), Keep(logging.WARNING)
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)
