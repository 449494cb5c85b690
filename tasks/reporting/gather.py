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

MEASURED = {"perplexities": "perplexity.json", "extrapolations": "extrapolation.json", "deploys": "deploy.json"}
METRICS = ("contains", "exact", "squad_exact", "f1", "rouge_l")      # columns of predictions.arrow beside `correct`


@dataclass(frozen=True)
class Panel:
    """What is shown together: one workload, one evaluation of it by its label, one column (natural, swap, held_out, ...)."""

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
    correct_N: np.ndarray     # 0.0 or 1.0, or a share where the metric gives one
    also: dict[str, np.ndarray] = field(default_factory=dict)       # the other metrics, item by item
    errors_N: np.ndarray | None = None                              # class of each error, "" where right

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


@dataclass(frozen=True)
class Rejected:
    """Records or items of one evaluation that could not be used."""

    workload: str
    label: str
    stage: str                # questions or prompts
    artifact: str             # of that stage; several evaluations may share it
    reason: str
    count: int


@dataclass(frozen=True)
class Measured:
    """What one reading or timing of one checkpoint gave: the rows of its artifact's table."""

    workload: str
    architecture: str
    seed: int
    label: str
    rows: list[dict[str, Any]]

    def name(self, among: list[Measured]) -> str:
        """The architecture, with its seed where several seeds stand beside each other."""
        several = len({one.seed for one in among if one.architecture == self.architecture}) > 1
        return f"{self.architecture}, seed {self.seed}" if several else self.architecture


@dataclass
class Gathered:
    """Everything a report needs. `answers[panel][architecture, seed, order, control]`."""

    trained: list[Trained] = field(default_factory=list)
    answers: dict[Panel, dict[tuple[str, int, str, str], Answers]] = field(default_factory=dict)
    scores: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[tuple[str, str], str] = field(default_factory=dict)  # (workload, label) -> what `correct` counts
    perplexities: list[Measured] = field(default_factory=list)
    extrapolations: list[Measured] = field(default_factory=list)
    deploys: list[Measured] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    data: dict[str, dict[str, Any]] = field(default_factory=dict)      # workload -> counts of its corpus and rows


def gather(store: Store, results: dict[str, Any]) -> Gathered:
    """`results` names artifacts: {"workloads": {name: {corpus, shards, rows, prompts, checkpoints, scores,
    perplexities, extrapolations, deploys}}, "timings"}."""
    found = Gathered()
    for workload, parts in results["workloads"].items():
        found.data[workload] = {role: store.manifest(parts[role]).counts
                                for role in ("corpus", "shards", "rows") if parts.get(role)}
        for label, prompts in parts.get("prompts", {}).items():
            found.rejected += _rejected(store, workload, label, prompts)
        for name, checkpoint in parts.get("checkpoints", {}).items():
            architecture, seed = name.rsplit("/", 1)
            folder = store.path(checkpoint)
            found.trained.append(Trained(workload, architecture, int(seed), checkpoint,
                                         _json(folder / "summary.json"), list(_lines(folder / "curve.jsonl"))))
        for name, scores in parts.get("scores", {}).items():
            architecture, seed, label = name.split("/", 2)
            store.verify(scores)
            _read_scores(found, store.path(scores), workload, (architecture, int(seed)), label)
        for kind, file in MEASURED.items():
            getattr(found, kind).extend(_measured(store, workload, parts.get(kind, {}), file))
    if results.get("timings"):
        store.verify(results["timings"])
        found.timings = _json(store.path(results["timings"]) / "timings.json")
    return found


def _measured(store: Store, workload: str, artifacts: dict[str, str], file: str) -> Iterator[Measured]:
    for name, artifact in artifacts.items():
        architecture, seed, label = name.split("/", 2)
        store.verify(artifact)
        yield Measured(workload, architecture, int(seed), label, _json(store.path(artifact) / file))


def _rejected(store: Store, workload: str, label: str, prompts: str) -> Iterator[Rejected]:
    """What the questions behind the prompts, and the prompts themselves, left out."""
    manifest = store.manifest(prompts)
    questions = manifest.inputs.get("questions", "")
    for stage, artifact, counts in (
            ("questions", questions, store.manifest(questions).counts if questions and store.exists(questions) else {}),
            ("prompts", prompts, manifest.counts)):
        for reason, number in counts.get("rejected", {}).items():
            yield Rejected(workload, label, stage, artifact, reason, number)


def _read_scores(found: Gathered, folder: Path, workload: str, model: tuple[str, int], label: str) -> None:
    """label: the evaluation's, which stands for its task from here on."""
    for row in _json(folder / "scores.json"):
        found.scores.append({"workload": workload, "architecture": model[0], "seed": model[1], "label": label, **row})
        if "metric" in row:
            found.metrics[workload, label] = row["metric"]
    table = RowTable(folder / "predictions.arrow")
    wanted = ("item", "document", "column", "order", "control", "correct", "uncommon")
    columns = {name: np.asarray(table.column(name)) for name in
               (*wanted, *(name for name in (*METRICS, "error") if name in table.names))}
    keys = np.stack([columns[name].astype(str) for name in ("column", "order", "control")])
    for column, order, control in sorted({tuple(key) for key in keys.T}):
        chosen = (keys == np.array([[column], [order], [control]])).all(axis=0)
        _add(found, Panel(workload, label, column), (*model, order, control), columns, chosen)
        if column == "natural" and columns["uncommon"][chosen].any():
            uncommon = chosen & columns["uncommon"].astype(bool)
            _add(found, Panel(workload, label, "uncommon"), (*model, order, control), columns, uncommon)


def _add(found: Gathered, panel: Panel, key: tuple[str, int, str, str], columns: dict[str, np.ndarray],
         chosen: np.ndarray) -> None:
    sort = np.argsort(columns["item"][chosen].astype(str), kind="stable")
    found.answers.setdefault(panel, {})[key] = Answers(
        items_N=columns["item"][chosen].astype(str)[sort],
        documents_N=columns["document"][chosen].astype(str)[sort],
        correct_N=columns["correct"][chosen].astype(float)[sort],
        also={name: columns[name][chosen].astype(float)[sort] for name in METRICS if name in columns},
        errors_N=columns["error"][chosen].astype(str)[sort] if "error" in columns else None)


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Nothing where there is no such file: an imported checkpoint has no curve."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        if line.strip():
            yield json.loads(line)
