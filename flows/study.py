"""The flow `study`: every missing stage of a study on Ray, as early as its inputs and the cores allow, then the report.

Wiring only. What exists is decided by manifests (flows/planning/plan.py), not by Prefect; what a stage does is
in tasks/.
"""

from __future__ import annotations

from flows import environment

environment.prepare()

import inspect  # noqa: E402
import re  # noqa: E402
from typing import Any  # noqa: E402

from prefect import flow, get_run_logger  # noqa: E402

from flows import studies  # noqa: E402
from flows.forms.forms import StudyForm  # noqa: E402
from flows.forms.titles import run_name  # noqa: E402
from flows.planning.builder import plan  # noqa: E402
from flows.planning.expectations import check  # noqa: E402
from flows.running.ray_runner import interruptible, task_runner  # noqa: E402
from flows.running.runner import Runner  # noqa: E402
from flows.showing.failure import clear_failures  # noqa: E402
from storage.artifacts import Store  # noqa: E402


def described(function: Any) -> str:
    """The docstring, and a table of the shipped studies, read as text: nothing is checked before one is run."""
    about = inspect.getdoc(function).partition("\nArgs:")[0].strip()
    rows = []
    for name, path in studies.shipped().items():
        found = dict(re.findall(r"^(about|estimated_minutes): *(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE))
        rows.append(f"| `{name}` | {found.get('estimated_minutes', '?')} | {found.get('about', '')} |")
    return "\n".join([about, "", "| study | minutes | what it asks |", "| --- | --- | --- |", *rows])


@clear_failures
def study(request: StudyForm = StudyForm()) -> dict[str, Any]:      # noqa: B008  (frozen)
    """Run a whole study: corpus, tokenising, training, prompts, evaluation, benchmark, report.

    What exists already is not made again, so that an interrupted study goes on where it was. Minutes are those of two cores,
    from nothing.

    **Example:** *Study* `quick`, *Changes* `architectures=jrt` and `train.steps=100`.

    Args:
        request: Which study, and what to change in it. Example: quick, with the change train.steps=100
    """
    interruptible()
    store, asked = Store(), request.to_request()
    planned = plan(studies.load(asked.file or asked.study, asked.settings), store)
    done = Runner(planned, store).run()
    get_run_logger().info("report: %s", store.path(planned.goal.artifact) / "report.md")
    check(planned, store, done)
    return done


study = flow(name="study", description=described(study), flow_run_name=run_name, task_runner=task_runner(),
             validate_parameters=False)(study)
