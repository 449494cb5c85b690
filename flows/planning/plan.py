"""What a study or a request comes to: stages that each make one artifact, under ids that are known before anything runs
(an id depends on specs, input ids and code alone). So a finished study is recognised without starting a server, and an
interrupted one does only what is missing.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

from storage.artifacts import Store
from storage.errors import ArtifactError
from tasks.specs import BenchSpec, EvaluateSpec, PretrainSpec, Spec, StudySpec

RUNS_IN_MLFLOW = ("pretrain", "evaluate", "perplexity", "extrapolation", "deploy", "bench")


@dataclass(frozen=True)
class Stage:
    """One arrow of the data flow: a spec and input artifacts become one artifact."""

    key: str                       # unique in the study, for example pydocs/pretrain/jrt/0
    kind: str                      # names the module under tasks/
    title: str                     # for people: "pretrain jrt seed 0 on pydocs rows"
    spec: Spec
    inputs: dict[str, str]         # role -> artifact id
    artifact: str
    exists: bool
    after: tuple[str, ...] = ()    # keys of the stages that make the inputs
    tokens: int = 0                # trained on, in all
    weight: float = 0.0            # expected cost, only compared with others: the longest start first
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """Where its `run` is."""
        return f"tasks.{self.kind}"

    @property
    def cores(self) -> int:
        """CPU cores it keeps busy; a stage that only drives Ray tasks counts the one they leave least."""
        if isinstance(self.spec, PretrainSpec):
            return self.spec.train.workers * self.spec.train.threads
        return max(1, getattr(self.spec, "threads", 1))

    @property
    def drives(self) -> bool:
        """True for a stage whose work happens in Ray tasks it starts: it must hold no core itself, or a small machine
        would wait for ever."""
        if isinstance(self.spec, PretrainSpec):
            return self.spec.train.trainer == "deepspeed"
        if isinstance(self.spec, EvaluateSpec):
            return self.spec.actors > 1 or self.spec.gpus_per_actor > 0
        return self.kind in ("corpus", "questions", "tokenise", "rows", "cloze", "bigrams", "report")

    @property
    def gpus(self) -> int:
        """GPUs of the stage itself; Ray Train asks for its workers' own."""
        if isinstance(self.spec, BenchSpec):
            return int(self.spec.device == "cuda")
        alone = isinstance(self.spec, PretrainSpec) and self.spec.train.trainer == "in_process"
        return self.spec.train.gpus_per_worker if alone else 0


@dataclass
class Plan:
    """The stages of a study in an order in which they can run, and the report's table of artifacts."""

    name: str                      # of the experiment in MLflow
    stages: dict[str, Stage]
    goal: Stage                    # the stage that all others are for
    results: dict[str, Any] = field(default_factory=dict)
    study: StudySpec | None = None

    @property
    def finished(self) -> bool:
        """What was asked for is there, whatever was deleted below it."""
        return self.goal.exists

    def missing(self) -> list[Stage]:
        """What has to be made."""
        return [] if self.finished else [stage for stage in self.stages.values() if not stage.exists]


def identify(kind: str, spec: Spec, store: Store, inputs: dict[str, str]) -> str:
    """The id of what a stage makes, without doing its work."""
    return importlib.import_module(f"tasks.{kind}").plan(spec, store, **inputs)


def present(store: Store, artifact: str, kind: str):
    """The manifest of an artifact of that kind.

    :raises ArtifactError: there is none, or it is of another kind
    """
    manifest = store.manifest(artifact)
    if manifest.kind != kind:
        raise ArtifactError(f"{artifact} is a {manifest.kind} artifact, expected one of kind {kind}; "
                            f"`reread list --kind {kind}` shows those there are")
    return manifest
