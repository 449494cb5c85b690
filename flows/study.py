"""The flow `study`: every missing stage of a study on Ray, as early as its inputs and the cores allow, then the report.

Wiring only. What exists is decided by manifests (flows/plan.py), not by Prefect; what a stage does is in tasks/.
"""

from __future__ import annotations

from flows import environment

environment.prepare()

from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from prefect import flow, get_run_logger, runtime  # noqa: E402

from flows import studies  # noqa: E402
from flows.expectations import check  # noqa: E402
from flows.planning import plan  # noqa: E402
from flows.ray_runner import interruptible, task_runner  # noqa: E402
from flows.requests import StudyRequest  # noqa: E402
from flows.runner import Runner  # noqa: E402
from storage.artifacts import Store  # noqa: E402

QUICK = StudyRequest()


def run_name() -> str:
    """`study quick`."""
    request = StudyRequest.model_validate(runtime.flow_run.parameters["request"])
    return f"study {Path(request.file).stem if request.file else request.study}"


@flow(name="study", flow_run_name=run_name, task_runner=task_runner())
def study(request: StudyRequest = QUICK) -> dict[str, Any]:
    """Run a whole study: corpus, tokenising, training, prompts, evaluation, benchmark, report.

    Args:
        request: Which study, and what to change in it.
    """
    interruptible()
    store = Store()
    planned = plan(studies.load(request.file or request.study, request.settings), store)
    done = Runner(planned, store).run()
    get_run_logger().info("report: %s", store.path(planned.goal.artifact) / "report.md")
    check(planned, store, done)
    return done
