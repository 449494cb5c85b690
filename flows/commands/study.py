"""`reread study run|list|show`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from flows import studies
from flows.commands.output import console, document, say, table
from flows.forms.requests import StudyRequest
from flows.planning.builder import plan
from flows.planning.plan import Plan
from flows.showing.watch import clock
from storage.artifacts import Store
from storage.errors import StudyFailed


def run_study(name: str, settings: list[str], dry_run: bool, json: bool) -> None:
    began = time.time()
    study, store = studies.load(name, settings), Store()
    planned = plan(study, store)
    if dry_run:
        from flows.commands.dry_run import describe

        describe(planned, store, json)
        return
    failure = None
    if planned.finished:
        done: dict[str, Any] = {"stages": {}}
        failure = _unmet(planned, store)
    else:
        from flows.forms.forms import StudyForm
        from flows.running.embedded import run

        path = studies.find(name)
        request = StudyRequest(**{"study": name} if name in studies.shipped() else {"file": str(path.resolve())},
                               settings=tuple(settings))
        try:
            done = run(_flow, StudyForm.of(request))
        except StudyFailed as error:
            failure, done = error, getattr(error, "done", None)
            if done is None:
                raise
    wall = time.time() - began
    if json:
        document(_summary(planned, store, done, wall, failure))
    else:
        _tell(planned, store, done, began, wall)
    if failure is not None:
        raise failure


def _flow():
    from flows.study import study

    return study


def _unmet(planned: Plan, store: Store) -> StudyFailed | None:
    if not planned.study.expectations:
        return None
    from flows.planning.expectations import check

    try:
        check(planned, store, {})
    except StudyFailed as error:
        return error
    return None


def _summary(planned: Plan, store: Store, done: dict[str, Any], wall: float, failure: Exception | None) -> dict:
    folder = store.path(planned.goal.artifact)
    return {"study": planned.name, "report": planned.goal.artifact, "path": str(folder / "report.md"),
            "did": len(done["stages"]), "failure": str(failure) if failure else None, "seconds": round(wall, 2),
            "overhead_seconds": round(overhead(done["stages"], wall), 2) if done["stages"] else None,
            "stages": [{"title": stage["title"], "seconds": round(stage["ended"] - stage["began"], 2)}
                       for stage in done["stages"].values()], "artifacts": planned.results}


def _tell(planned: Plan, store: Store, done: dict[str, Any], began: float, wall: float) -> None:
    """The report's tables, the times, and where to look further."""
    report = store.path(planned.goal.artifact) / "report.md"
    if done["stages"]:
        from tasks.report import assemble

        shown = console()
        for each in assemble(planned.study, store, planned.results).tables():
            if each.name != "data":
                shown.print(each.rich())
        say()
        times(done["stages"], began, wall)
    else:
        say(f"nothing to do: study {planned.name} is finished")
    say(f"\nreport   {report}")
    say("browse   reread up          then the links it prints: MLflow for curves and tables, Prefect for runs")
    say(f"         reread show {planned.goal.artifact}")


def times(stages: dict[str, dict], began: float, wall: float) -> None:
    """Wall time by stage, and what was none of them."""
    rows = [[stage["title"], clock(max(0.0, stage["began"] - began)), clock(stage["ended"] - stage["began"])]
            for stage in sorted(stages.values(), key=lambda stage: stage["began"])]
    table(["stage", "started after", "took"], rows, right=("started after", "took"), title="Times")
    lost = overhead(stages, wall)
    say(f"\nwall {clock(wall)}, of which {clock(wall - lost)} with a stage at work; orchestration {clock(lost)}")


def overhead(stages: dict[str, dict], wall: float) -> float:
    """Seconds of `wall` during which no stage was at work: servers, Ray, imports, hand-overs."""
    busy, until = 0.0, 0.0
    for began, ended in sorted((stage["began"], stage["ended"]) for stage in stages.values()):
        busy += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return max(0.0, wall - busy)


def list_studies(json: bool) -> None:
    found = []
    for name in studies.shipped():
        study = studies.load(name)
        found.append({
            "name": name, "about": study.about,
            "architectures": sorted({label for workload in study.workloads.values() for label in workload.architectures}),
            "tasks": sorted({e.cloze.task for workload in study.workloads.values() for e in workload.evaluations}),
            "estimated_minutes": study.estimated_minutes})
    if json:
        document(found)
        return
    table(["study", "minutes", "architectures", "tasks", "about"],
          [[one["name"], f"{one['estimated_minutes']:g}", ", ".join(one["architectures"]), ", ".join(one["tasks"]),
            one["about"]] for one in found], right=("minutes",))


def show_study(name: str, settings: list[str], json: bool) -> None:
    import yaml

    study = studies.load(name, settings)
    data = study.model_dump(mode="json")
    for label, workload in study.workloads.items():
        for number, evaluation in enumerate(workload.evaluations):
            if "orders" not in evaluation.cloze.model_fields_set:        # left to the task, which knows its own
                del data["workloads"][label]["evaluations"][number]["cloze"]["orders"]
    if json:
        document(data)
    else:
        say(f"# {Path(studies.find(name)).name}, every field written out")
        say(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110).rstrip())
