"""A journal of operations that are not yet known to be in the tracking store.

One JSON line per operation, in the kernel's hands as soon as `append` returns, so that it outlives a killed process.
The writer holds a lock (flock) on its file; a journal nobody holds belongs to a dead process and can be replayed.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from storage import logs

log = logs.get("storage.spool")


class Journal:
    """The journal of this process in `folder`; the file appears with the first operation and goes when all is done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.operations: list[dict[str, Any]] = []
        self.owner = os.getpid()
        self._file: IO[str] | None = None
        self._broken = False

    def append(self, operation: dict[str, Any]) -> None:
        """Keep one operation. A folder that cannot be written is reported once; memory then has to do."""
        self.operations.append(operation)
        if self._broken:
            return
        try:
            if self._file is None:
                self._file = self._create()
            self._file.write(json.dumps(operation, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as error:
            self._broken = True
            log.warning("cannot write the tracking journal in %s (%s); what the tracking store does not take before "
                        "this process ends will be lost", self.folder, error)

    def _create(self) -> IO[str]:
        """A new file, locked before it gets the name under which a replay would see it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / f"{self.owner}-{uuid.uuid4().hex[:8]}.jsonl"
        hidden = self.path.with_suffix(".new")
        file = open(hidden, "w", encoding="utf-8")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(hidden, self.path)
        return file

    def clear(self) -> None:
        """All operations so far are in the store."""
        self.operations.clear()
        if self._file is not None and not self._broken:
            self._file.seek(0)
            self._file.truncate()

    def close(self) -> None:
        """Let go of the file: removed when empty, left for a replay otherwise."""
        if self._file is None:
            return
        if not self.operations:
            self.path.unlink(missing_ok=True)
        self._file.close()
        self._file = None


def replay_orphans(folder: Path, deliver: Callable[[list[dict[str, Any]]], None]) -> int:
    """Deliver the journals of dead processes, oldest first, removing each that went through; returns operations."""
    delivered = 0
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns):
        try:
            file = open(path, "r+", encoding="utf-8")
        except FileNotFoundError:   # another process was faster
            continue
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if not path.exists():
                continue
            operations = read(file)
            deliver(operations)
            path.unlink()
            delivered += len(operations)
    return delivered


def read(file: IO[str]) -> list[dict[str, Any]]:
    """The operations of a journal; a last line cut short by a kill was never acknowledged and is left out."""
    operations = []
    for line in file:
        try:
            operations.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return operations


def set_aside(folder: Path, operation: dict[str, Any], reason: str) -> None:
    """Keep an operation that the store refuses for what it says, so that it does not block those behind it."""
    log.warning("the tracking store refuses %s: %s; kept in %s", operation.get("op"), reason, folder / "refused.log")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "refused.log", "a", encoding="utf-8") as file:
            file.write(json.dumps({"reason": reason, **operation}, ensure_ascii=False) + "\n")
    except OSError as error:
        log.warning("cannot keep it there: %s", error)
