"""What an extrapolation has read so far, block by block and book by book, so that a killed attempt goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = ".parts"       # the leading dot keeps it out of the artifact


@dataclass(frozen=True)
class Part:
    """The targets of one block, or of one book between two lengths. `unit`: what intervals resample."""

    part: int
    unit: str
    n: int
    nll: float
    bytes: int


class Parts:
    """Small JSON files by name, each written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER
        self._read: dict[str, dict[str, Any]] = {}

    def get(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What is kept under a name, or else what `make` returns, which then is."""
        if name in self._read:
            return self._read[name]
        path = self.folder / f"{name}.json"
        if path.is_file():
            found = json.loads(path.read_text(encoding="utf-8"))
        else:
            found = make()
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(found), encoding="utf-8")
            os.replace(partial, path)
        self._read[name] = found
        return found
