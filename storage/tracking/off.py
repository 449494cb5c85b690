"""Tracking switched off: the methods of `Tracking`, doing nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class NoTracking:
    """Accepts what `Tracking` accepts; ids are "", searches find nothing."""

    uri = ""

    def experiment(self, name: str) -> str:
        return ""

    def start(self, experiment: str, name: str, tags: Mapping[str, Any] | None = None,
              params: Mapping[str, Any] | None = None, parent: str | None = None) -> str:
        return ""

    def finish(self, run_id: str, status: str = "FINISHED") -> None:
        return None

    def tag(self, run_id: str, tags: Mapping[str, Any]) -> None:
        return None

    def find(self, experiment: str, tags: Mapping[str, Any]) -> list[str]:
        return []

    def metrics(self, run_id: str, values: Mapping[str, float], step: int, tokens: int | None = None) -> None:
        return None

    def last_step(self, run_id: str, key: str) -> int | None:
        return None

    def artifacts(self, run_id: str, path: str | os.PathLike, subfolder: str | None = None, move: bool = False) -> None:
        return None

    def table(self, run_id: str, rows: Iterable[Mapping[str, Any]], name: str) -> None:
        return None

    def text(self, run_id: str, text: str, name: str) -> None:
        return None

    def inputs(self, run_id: str, datasets: Sequence[Mapping[str, Any]]) -> None:
        return None

    def register(self, name: str, run_id: str, artifact_path: str, tags: Mapping[str, Any] | None = None,
                 description: str = "", family: str = "") -> str:
        return ""

    def link(self, run_id: str, file: str = "") -> str:
        return "#/"

    def experiment_link(self, experiment: str) -> str:
        return "#/"

    def flush(self) -> bool:
        return True

    def replay(self) -> int:
        return 0

    def close(self) -> None:
        return None
