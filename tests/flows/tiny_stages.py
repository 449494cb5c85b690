"""A stage that really is one, in a fraction of a second: for tests of what surrounds stages."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from storage import logs
from storage.artifacts import Store, artifact_id
from tasks.specs import Spec


class TinySpec(Spec):
    name: str
    sleep: float = 0.0
    kill_once: bool = False        # SIGKILL of its own process, the first time
    fail: str = ""
    threads: int = 1


def plan(spec: TinySpec, store: Store, **inputs: str) -> str:
    return artifact_id("tiny", spec.model_dump(mode="json"), inputs, "code")


def run(spec: TinySpec, store: Store, tracking=None, **inputs: str) -> str:
    def build(folder: Path) -> dict:
        logs.get("tests.tiny").info("working on %s", spec.name)
        sys.stderr.write(f"tiny: note of {spec.name}\n")
        if spec.fail:
            raise ValueError(spec.fail)
        if spec.kill_once and not (folder / ".killed").exists():
            (folder / ".killed").touch()
            os.kill(os.getpid(), 9)
        time.sleep(spec.sleep)
        (folder / "report.md").write_text(f"# {spec.name}\n")
        return {"pid": os.getpid()}

    return store.produce("tiny", spec.model_dump(mode="json"), inputs, "code", build)
