"""A Prefect server for the tests of one file, in this process's environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def prefect_server(home: Path, **settings: str) -> Iterator[str]:
    """Address of the API of a server whose files lie in `home`; until the end nothing else is configured but `settings`."""
    from flows import environment
    from flows.services import local

    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("PREFECT_", "RAY_", "MLFLOW_"))]:
            patch.delenv(name)
        for name, value in {"REREAD_HOME": str(home), "PREFECT_HOME": str(home / "prefect"), **settings}.items():
            patch.setenv(name, value)
        environment.prepare()
        with local.prefect_api() as api:
            yield api
