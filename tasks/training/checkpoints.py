"""Resumable checkpoints of a run in this process: written beside, synced, then named; the last two are kept.

They lie in the artifact's work folder under a name that begins with a dot, so they survive a kill and never become
part of the artifact. (On Ray, `ray_workers.RayCheckpoints` hands them to Ray Train instead.)
"""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Protocol

from storage import logs
from storage.errors import ArtifactError
from tasks.training.engine import Engine

FOLDER = ".checkpoints"
KEPT = 2

log = logs.get("tasks.training")


class Checkpoints(Protocol):
    """Where the loop keeps what it can resume from."""

    def resume(self, engine: Engine, fingerprint: str) -> dict | None:
        """Load the newest usable checkpoint into the engine and return its facts; None to start afresh."""

    def keep(self, engine: Engine, facts: dict) -> None:
        """Save the engine and these facts ({"step": …, "fingerprint": …, …})."""


class LocalCheckpoints:
    """`<folder>/.checkpoints/step-<n>/`, atomic by rename."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder) / FOLDER

    def names(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*[0-9]"))

    def resume(self, engine: Engine, fingerprint: str) -> dict | None:
        for path in reversed(self.names()):
            try:
                facts = engine.load(path)
            except (OSError, RuntimeError, EOFError, KeyError, ValueError, pickle.UnpicklingError) as error:
                log.warning("checkpoint %s cannot be read (%s); trying the one before", path, error)
                continue
            check_fingerprint(facts, fingerprint, path)
            return facts
        return None

    def keep(self, engine: Engine, facts: dict) -> None:
        final = self.folder / f"step-{facts['step']:09d}"
        partial = final.with_name(final.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        engine.save(partial, facts)
        for path in partial.iterdir():
            _sync(path)
        shutil.rmtree(final, ignore_errors=True)
        os.rename(partial, final)
        _sync(self.folder)
        for old in self.names()[:-KEPT]:
            shutil.rmtree(old)

    def remove(self) -> None:
        """Delete them all: the run is complete."""
        shutil.rmtree(self.folder, ignore_errors=True)


def check_fingerprint(facts: dict, fingerprint: str, where: object) -> None:
    """ArtifactError unless the checkpoint belongs to the same spec, inputs and code."""
    if facts["fingerprint"] != fingerprint:
        raise ArtifactError(f"checkpoint {where} belongs to {facts['fingerprint']}, not to {fingerprint}: spec, inputs "
                            "or code have changed; delete it to start afresh")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
