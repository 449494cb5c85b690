"""`reread tokenise|pretrain|cloze|evaluate|bench`: in this process, or with `--flow` through Prefect and Ray."""

from __future__ import annotations

import json as json_format
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from flows import overrides
from flows.commands.output import document, say, table
from flows.forms.requests import (
    BenchRequest,
    ClozeRequest,
    DeployRequest,
    EvaluateRequest,
    ExtrapolationRequest,
    PerplexityRequest,
    PretrainRequest,
    TokeniseRequest,
)
from flows.planning.plan import RUNS_IN_MLFLOW, Plan
from flows.showing.columns import MEASURED, with_controls
from flows.showing.watch import clock
from storage import logs
from storage.artifacts import Store
from storage.errors import SpecError

log = logs.get("flows.single")

HUB = "hub:"
SPARE = 16      # documents beyond the limit that a preview reads, for controls and examples
REQUESTS = {"tokenise": TokeniseRequest, "pretrain": PretrainRequest, "cloze": ClozeRequest,
            "evaluate": EvaluateRequest, "perplexity": PerplexityRequest, "extrapolation": ExtrapolationRequest,
            "deploy": DeployRequest, "bench": BenchRequest}


def request_of(kind: str, fields: dict[str, Any], settings: list[str]) -> Any:
    """The request that options and `--set` describe.

    :raises SpecError: an unknown field or an impossible value
    """
    data = {name: value for name, value in fields.items() if value is not None}
    return overrides.apply(overrides.validate(REQUESTS[kind], data, kind), settings)


def questions_of(task: str | None, places: list[str] | None) -> dict[str, Any] | None:
    """The questions that `--questions` names: files, or one published set as `hub:<name or folder>`.

    :raises SpecError: both kinds at once, or several sets
    """
    if not places:
        return None
    sets = [place.removeprefix(HUB) for place in places if place.startswith(HUB)]
    if sets and len(places) > 1:
        raise SpecError(f"--questions: give files, or one published set; got {', '.join(places)}")
    return {"task": task, "dataset": sets[0]} if sets else {"task": task, "paths": places}


def run_single(kind: str, fields: dict[str, Any], settings: list[str], dry_run: bool, flow: bool, json: bool) -> None:
    request, store = request_of(kind, fields, settings), Store()
    planned: Plan = request.plan(store)
    if dry_run:
        from flows.commands.dry_run import describe

        describe(planned, store, json)
        if kind == "bench":
            from flows.commands.bench import warn

            warn(planned.goal.spec.device)
        return
    missing = planned.missing()
    if missing and flow:
        from flows.forms.forms import FORMS
        from flows.running.embedded import run

        run(lambda: _flow(kind), FORMS[kind].of(request))
    artifact = here(planned, store) if missing and not flow else planned.goal.artifact
    tell(kind, planned, store, json, did=len(missing), artifact=artifact)
    if kind == "bench":
        from flows.commands.bench import check_timings

        check_timings(store.path(artifact))


def _flow(kind: str):
    from flows import single

    return getattr(single, kind)


def here(planned: Plan, store: Store) -> str:
    """Stage after stage in this process; Ray only where a stage spreads its work.

    Returns the id of what was made: another than planned where sources changed meanwhile, which is told.
    """
    from flows.recording.tracked import Runs
    from flows.running.ray_runner import local_ray
    from flows.running.work import Order, perform

    missing, made = planned.missing(), {}
    spreads = any(stage.kind in ("corpus", "tokenise") or (stage.kind == "pretrain" and stage.drives)
                  for stage in missing)
    tracks = any(stage.kind in RUNS_IN_MLFLOW for stage in missing)
    with local_ray() if spreads else nullcontext():
        runs = Runs(planned, store) if tracks else None
        try:
            for stage in missing:
                inputs = {role: made.get(artifact, artifact) for role, artifact in stage.inputs.items()}
                made[stage.artifact] = perform(Order(
                    stage.kind, stage.module, stage.title, stage.spec, inputs, store.root,
                    run=runs.of.get(stage.key) if runs else None, tracking=runs.address if runs else None,
                    about=runs.about(stage.key) if runs else None)).artifact
                if made[stage.artifact] != stage.artifact:
                    log.warning("%s: planned as %s, made as %s: its sources or inputs changed meanwhile", stage.title,
                                stage.artifact, made[stage.artifact])
        except BaseException as error:
            if runs:
                runs.end("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")
            raise
        if runs:
            runs.end("FINISHED")
    return made[planned.goal.artifact]


def tell(kind: str, planned: Plan, store: Store, json: bool, did: int, artifact: str | None = None) -> None:
    """What was made, in the form frozen for scripts or in a few lines for people. artifact: None = as planned."""
    artifact = artifact or planned.goal.artifact
    folder = store.path(artifact)
    manifest = store.manifest(artifact)
    if kind in ("evaluate", "bench", *MEASURED):
        store.verify(artifact)
    if kind == "evaluate":
        scores = with_controls(json_format.loads((folder / "scores.json").read_text(encoding="utf-8")))
        if json:
            document({"scores": scores, "artifact": artifact})
            return
        table(["task", "column", "order", "n", "value", "95 %", "controls"],
              [[row["task"], row["column"], row["order"], row["n"], _number(row["value"], ".3f"),
                "–" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}",
                ", ".join(f"{name} {_number(value, '.3f')}" for name, value in row["controls"].items())]
               for row in scores],
              right=("n", "value"))
    elif kind == "bench":
        rows = json_format.loads((folder / "timings.json").read_text(encoding="utf-8"))
        if json:
            document(rows)
            return
        from flows.commands.bench import show_timings

        show_timings(rows, folder)
    elif kind in MEASURED and json:
        document({"rows": json_format.loads((folder / f"{kind}.json").read_text(encoding="utf-8")), "artifact": artifact})
        return
    elif kind in MEASURED:
        _show_rows(json_format.loads((folder / f"{kind}.json").read_text(encoding="utf-8")), MEASURED[kind])
    elif json:
        document({"artifact": artifact, "kind": manifest.kind, "path": str(folder), "did": did,
                  "counts": manifest.counts})
        return
    else:
        for name, value in manifest.counts.items():
            say(f"{name:20} {value:,}" if isinstance(value, int) and not isinstance(value, bool)
                else f"{name:20} {value}")
    say(f"\n{artifact} {'made in ' + clock(manifest.seconds) if did else 'exists: nothing to do'}\n{folder}")


def _show_rows(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """Figures of a measuring stage; a column that no row fills is left out."""
    kept = [name for name in columns if any(row.get(name) is not None for row in rows)]
    table(kept, [[_cell(row.get(name)) for name in kept] for row in rows],
          right=tuple(name for name in kept if any(isinstance(row.get(name), (int, float)) for row in rows)))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def preview_cloze(fields: dict[str, Any], source: Path, tokenizer: str | None, settings: list[str], json: bool) -> None:
    """Prompts over the documents of one file, or the questions of a file or folder, shown instead of kept."""
    from tasks.cloze import preview
    from tasks.evals.base import get_task
    from tasks.specs import ClozeSpec

    if not source.exists():
        raise SpecError(f"--source {source}: there is no such file or folder")
    data = {name: value for name, value in fields.items() if value is not None}
    spec = overrides.apply(overrides.validate(ClozeSpec, data, "cloze"), settings)
    if get_task(spec.task).needs_questions:
        rows, left_out = _questions(spec, source)
        found = preview(spec, (), tokenizer or "gpt2", rows)
        found["rejected"] = dict(Counter(left_out) + Counter(found["rejected"]))
    else:
        found = preview(spec, _documents(source), tokenizer or "gpt2")
    if json:
        document(found)
        return
    for one in found["prompts"]:
        say(f"--- {one['id']}, {one['tokens']} tokens, answer {' or '.join(map(repr, one['answers']))}\n{one['prompt']}\n")
    say(f"{len(found['prompts'])} prompts; rejected: "
        + (", ".join(f"{reason} {count}" for reason, count in found["rejected"].items()) or "none"))


def _documents(source: Path) -> list[Any]:
    from tasks.evals.base import Document
    from tasks.sources import text_files
    from tasks.specs import CorpusSpec

    if not source.is_file():
        raise SpecError(f"--source {source}: expected a file")
    texts = text_files.read(CorpusSpec(source="files", paths=(str(source),)), Counter())
    return [Document(f"{source.name}:{number}", text) for number, (_, text) in enumerate(texts)]


def _questions(spec: Any, source: Path) -> tuple[list[Any], dict[str, int]]:
    """The questions of a file or folder in its original format, and what was left out, by reason."""
    import tempfile

    from storage.shards import RowTable
    from tasks import questions
    from tasks.evals.base import QuestionRow, get_task
    from tasks.specs import QuestionsSpec

    wanted = QuestionsSpec(task=spec.task, paths=(str(source),),
                           limit=None if spec.limit is None else spec.limit + SPARE)
    with tempfile.TemporaryDirectory() as folder:
        counts = questions.build(wanted, get_task(spec.task), Path(folder))
        table = RowTable(Path(folder) / questions.FILE)
        rows = [QuestionRow(**{**row, "answers": tuple(row["answers"])}) for row in map(table.row, range(len(table)))]
    return rows, counts["rejected"]
