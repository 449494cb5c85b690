"""The report stage: all that a study made, as one page with tables, plots and plain sentences.

Produces a `report` artifact: report.md, one CSV per table, PNG plots, findings.json for machines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from storage.artifacts import Store, artifact_id
from storage.identity import code_hash
from tasks.specs import StudySpec

VERSION = "1"
SOURCES = ("tasks.report",)


def flatten(results: dict[str, Any]) -> dict[str, str]:
    """Roles of the input artifacts: {"pydocs/scores/jrt/0/pydocs": id, ...}."""
    inputs = {}
    for workload, parts in results["workloads"].items():
        for role, value in parts.items():
            if isinstance(value, dict):
                inputs |= {f"{workload}/{role}/{name}": artifact for name, artifact in value.items()}
            elif value:
                inputs[f"{workload}/{role}"] = value
    if results.get("timings"):
        inputs["timings"] = results["timings"]
    return inputs


def plan(study: StudySpec, store: Store, results: dict[str, Any]) -> str:
    """The id the report will have; no work."""
    return artifact_id("report", study.model_dump(mode="json"), flatten(results), code_hash(SOURCES))


def run(study: StudySpec, store: Store, results: dict[str, Any]) -> str:
    """Writes the report of a study whose artifacts are all there.

    Args:
        results: {"workloads": {name: {"corpus", "shards", "rows": id, "prompts": {task: id},
            "checkpoints": {"architecture/seed": id}, "scores": {"architecture/seed/task": id},
            "sweeps": {"architecture/value": id}, where there are any}}, "timings": id or None}.

    Raises:
        ArtifactError: one of them is missing or damaged.
    """

    def build(folder: Path) -> dict[str, Any]:
        report = assemble(study, store, results)
        plots = report.draw(folder)
        tables = report.tables()
        for table in tables:
            table.csv(folder)
        text = "\n".join([report.findings(), *(f"![{name.removesuffix('.png')}]({name})" for name in plots), "",
                          "## Tables", "", *(table.markdown() for table in tables)])
        (folder / "report.md").write_text(text, encoding="utf-8")
        (folder / "findings.json").write_text(json.dumps(_findings(report), indent=1), encoding="utf-8")
        return {"panels": len(report.panels), "comparisons": len(report.differences), "plots": len(plots)}

    return store.produce("report", study.model_dump(mode="json"), flatten(results), code_hash(SOURCES), build, VERSION)


def assemble(study: StudySpec, store: Store, results: dict[str, Any]) -> Any:
    """The `tasks.reporting.render.Report` behind the page, with its comparisons made."""
    from models import load_config
    from tasks.reporting.footprint import footprint
    from tasks.reporting.gather import gather
    from tasks.reporting.render import Report

    found = gather(store, results)
    footprints = {}
    lengths = {workload: _document_length(study, workload) for workload in study.workloads}
    for one in found.trained:
        key = f"{one.workload}/{one.architecture}"
        if key not in footprints:
            footprints[key] = footprint(load_config(store.path(one.artifact)), lengths[one.workload])
    return Report(study, found, footprints, lengths).compare()


def _document_length(study: StudySpec, workload: str) -> int:
    """Tokens of the longest document an evaluation of this workload may show; of a training row where nothing is asked."""
    work = study.workloads[workload]
    rows = work.rows
    if rows is not None and rows.kind == "disjoint":
        return max(sum(pair) for pair in rows.sizes) + 3
    lengths = [e.cloze.total_tokens if e.cloze.budget == "total" else e.cloze.document_tokens
               for e in work.evaluations]
    return max(lengths, default=work.tokenise.row_tokens if work.tokenise else 2048)


def unmet(study: StudySpec, store: Store, results: dict[str, Any]) -> list[str]:
    """Sentences for every expectation of the study that its scores do not satisfy; empty when all hold."""
    from tasks.reporting.compare import recalls
    from tasks.reporting.gather import Panel, gather

    if not study.expectations:
        return []
    found = gather(store, results)
    failures = []
    for expected in study.expectations:
        panel = Panel(expected.workload, expected.task, expected.column)
        rows = [r for r in (recalls(found, panel, [expected.architecture], 2000, 0) if panel in found.answers else [])
                if r.order == expected.order]
        if not rows:
            failures.append(f"{expected.architecture} has no score on {panel.title}, order {expected.order}")
            continue
        for control in ("empty", "other"):
            gap = rows[0].above.get(control)
            if gap is None:
                failures.append(f"{panel.title} was run without its control `{control}`")
            elif gap.low is None or gap.low <= 0:
                failures.append(
                    f"{expected.architecture} on {panel.title}, order {expected.order}, is not above the control "
                    f"`{control}`: the difference is {gap.value:+.3f} "
                    + ("without an interval" if gap.low is None else f"with an interval from {gap.low:+.3f} to {gap.high:+.3f}"))
    return failures


def _findings(report: Any) -> dict[str, Any]:
    """The same numbers for machines; `published` lists the claims of an entry, none where none was published."""
    from tasks.reporting.published import link

    found = _numbers(report)
    for entries in (found["recall"], found["averages"]):
        link(entries, report.published)
    return found


def _numbers(report: Any) -> dict[str, Any]:
    return {
        "recall": [{"workload": r.panel.workload, "task": r.panel.task, "column": r.panel.column, "order": r.order,
                    "architecture": r.architecture, "asked": report.asked(r.panel), **r.score.as_dict(),
                    "cell": (r.panel.workload, r.architecture, r.panel.task, r.panel.column, r.order), "controls": r.controls,
                    "above": {name: gap.as_dict() for name, gap in r.above.items()}} for r in report.recalls],
        "differences": [{"workload": d.panel.workload, "task": d.panel.task, "column": d.panel.column, "about": d.about,
                         "first": d.first, "second": d.second, "where": d.where, "significant": d.significant,
                         "holds_after_holm": d.holds, **d.gap.as_dict()} for d in report.differences],
        "averages": [{"workload": a.workload, "architecture": a.architecture, "order": a.order, "over": over,
                      "asked": a.asked.short, "labels": a.labels, "tasks": a.tasks, **interval.as_dict(),
                      "cell": (a.workload, a.architecture, "average", over, a.order)}
                     for a in report.averages for over, interval in (("columns", a.columns), ("data sets", a.sets))],
    }
