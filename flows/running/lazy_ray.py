"""The Prefect task runner for stages: Ray starts with the first stage, not with the flow.

So a wrong field is told within seconds, and a flow that finds everything done never starts Ray. An import of this
module imports Prefect and Ray.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from prefect.futures import PrefectFuture
from prefect_ray import RayTaskRunner, task_runners

from flows.running import ray_runner


class _Later:
    """Ray, imported when something of it is needed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("ray"), name)


# prefect_ray leaves a module that loads itself as soon as somebody asks it for anything, such as `inspect` when it looks
# through all modules for the one that a frame is of
if type(sys.modules.get("ray")).__name__ == "_LazyModule":
    del sys.modules["ray"]
    task_runners.ray = _Later()


class LazyRay(RayTaskRunner):
    """Submits stages to Ray as `prefect_ray` does; Ray that did not run before the flow ends with it."""

    def __init__(self, address: str | None = None, init_kwargs: dict[str, Any] | None = None) -> None:
        super().__init__(address, init_kwargs)
        self.found_running = False

    def __enter__(self) -> LazyRay:
        self.found_running = ray_runner.is_running()
        super(RayTaskRunner, self).__enter__()          # its own would start Ray here
        return self

    def submit(self, task: Any, parameters: dict[str, Any], wait_for: Any = None, dependencies: Any = None,
               ) -> PrefectFuture[Any]:
        ray_runner.start()
        return super().submit(task, parameters, wait_for, dependencies)

    def __exit__(self, *failure: Any) -> None:
        if not self.found_running:
            ray_runner.shut_down()
        super(RayTaskRunner, self).__exit__(*failure)

