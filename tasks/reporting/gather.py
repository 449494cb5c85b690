"""Reads what the stages of a study left behind into plain tables; nothing is computed twice and nothing is guessed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from storage.artifacts import Store
from storage.shards import RowTable


@dataclass(frozen=True)
class Panel:
    """What is shown together: one workload, one eval task, one column of it (natural, swap, held_out, uncommon, ...)."""

    workload: str
    task: str
    column: str

    @property
    def title(self) -> str:
        return f"{self.task} / {self.column}"


@dataclass
class Answers:
    """Right or wrong, item by item, of one checkpoint on one panel, order and control."""

    items_N: np.ndarray       # item ids, sorted
    documents_N: np.ndarray   # document ids, for the bootstrap
    correct_N: np.ndarray     # 0.0 or 1.0

    @property
    def value(self) -> float:
        return float(self.correct_N.mean())


@dataclass
class Trained:
    """One checkpoint: its summary and its curve."""

    workload: str
    architecture: str
    seed: int
    artifact: str
    summary: dict[str, Any]
    curve: list[dict[str, Any]]


@dataclass
class Gathered:
    """Everything a report needs. `answers[panel][architecture, seed, order, control]`."""

    trained: list[Trained] = field(default_factory=list)
    answers: dict[Panel, dict[tuple[str, int, str, str], Answers]] = field(default_factory=dict)
    scores: list[dict[str, Any]] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)
    rejected: dict[str, dict[str, int]] = field(default_factory=dict)
    data: dict[str, dict[str, Any]] = field(default_factory=dict)      # workload -> counts of its corpus and rows


def gather(store: Store, results: dict[str, Any]) -> Gathered:
    """`results` names artifacts: {"workloads": {name: {corpus, shards, rows, prompts, checkpoints, scores}}, "timings"}."""
    found = Gathered()
    for workload, parts in results["workloads"].items():
        found.data[workload] = {role: store.manifest(parts[role]).counts
                                for role in ("corpus", "shards", "rows") if parts.get(role)}
        for task, prompts in parts.get("prompts", {}).items():
            found.rejected[f"{workload}/{task}"] = dict(store.manifest(prompts).counts.get("rejected", {}))
        for name, checkpoint in parts.get("checkpoints", {}).items():
            architecture, seed = name.rsplit("/", 1)
            folder = store.path(checkpoint)
            found.trained.append(Trained(workload, architecture, int(seed), checkpoint,
                                         _json(folder / "summary.json"), list(_lines(folder / "curve.jsonl"))))
        for name, scores in parts.get("scores", {}).items():
            architecture, seed, _ = name.split("/", 2)
            store.verify(scores)
            _read_scores(found, store.path(scores), workload, architecture, int(seed))
    if results.get("timings"):
        store.verify(results["timings"])
        found.timings = _json(store.path(results["timings"]) / "timings.json")
    return found


def _read_scores(found: Gathered, folder: Path, workload: str, architecture: str, seed: int) -> None:
    for row in _json(folder / "scores.json"):
        found.scores.append({"workload": workload, "architecture": architecture, "seed": seed, **row})
    table = RowTable(folder / "predictions.arrow")
    columns = {name: np.asarray(table.column(name)) for name in
               ("item", "document", "task", "column", "order", "control", "correct", "uncommon")}
    keys = np.stack([columns[name].astype(str) for name in ("task", "column", "order", "control")])
    for task, column, order, control in sorted({tuple(key) for key in keys.T}):
        chosen = (keys == np.array([[task], [column], [order], [control]])).all(axis=0)
        _add(found, Panel(workload, task, column), (architecture, seed, order, control), columns, chosen)
        if column == "natural" and columns["uncommon"][chosen].any():
            uncommon = chosen & columns["uncommon"].astype(bool)
            _add(found, Panel(workload, task, "uncommon"), (architecture, seed, order, control), columns, uncommon)


def _add(found: Gathered, panel: Panel, key: tuple[str, int, str, str], columns: dict[str, np.ndarray],
         chosen: np.ndarray) -> None:
    sort = np.argsort(columns["item"][chosen].astype(str), kind="stable")
    found.answers.setdefault(panel, {})[key] = Answers(
        items_N=columns["item"][chosen].astype(str)[sort],
        documents_N=columns["document"][chosen].astype(str)[sort],
        correct_N=columns["correct"][chosen].astype(float)[sort])


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            yield json.loads(line)
