"""One stage, run in this process: the wrapper between a plan and the plain functions in `tasks/`. Knows no Prefect."""

from __future__ import annotations

import importlib
import inspect
import time
from dataclasses import dataclass
from typing import Any

from flows.recording.about import About
from flows.recording.tracked import finished, tracked
from storage.artifacts import Store


@dataclass(frozen=True)
class Order:
    """Everything a stage needs to know, small and picklable."""

    kind: str
    module: str                        # where `run` is, for example tasks.pretrain
    title: str
    spec: Any
    inputs: dict[str, Any]
    home: str
    note: str | None = None
    run: str | None = None             # MLflow run that was created for it
    tracking: str | None = None        # MLflow's address
    about: About | None = None         # what the run shows


@dataclass(frozen=True)
class Outcome:
    """What came of it: the artifact, and when the work began and ended [seconds since the epoch]."""

    artifact: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def perform(order: Order) -> Outcome:
    """Run one stage in this process, without Prefect."""
    began = time.time()
    store = Store(order.home)
    run = importlib.import_module(order.module).run
    with tracked(order.tracking, order.run, order.about, store, order.inputs) as tracking:
        taken = {name: value for name, value in tracking.items() if name in inspect.signature(run).parameters}
        artifact = run(order.spec, store, **order.inputs, **taken)
        if tracking:
            finished(tracking["tracking"], tracking["run_id"], order.kind, store, artifact, order.about)
    return Outcome(artifact, began, time.time())
