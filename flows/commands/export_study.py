"""`reread export STUDY --format csv|latex|html`: a finished study's numbers for a notebook, a paper or a mail."""

from __future__ import annotations

import csv
import json as json_format
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows import studies
from flows.commands.lineage import package_version
from flows.commands.look import whole
from flows.commands.output import document, say, size
from flows.planning.builder import plan
from storage.artifacts import Manifest, Store
from storage.errors import ArtifactError, SpecError
from tasks.specs import StudySpec

METADATA = "metadata.json"         # tells a folder of ours, which --force may replace
BY_NAME = ("prompts", "checkpoints", "scores", "sweeps", "perplexities", "extrapolations", "deploys")


def is_study(what: str, format_: str | None, settings: list[str]) -> bool:
    """Whether `reread export WHAT` is about a study: a format or settings say so, or its name, or a report's id.

    :raises SpecError: a format for something that is no study
    """
    folder = Path(what)
    named = what in studies.shipped() or folder.suffix in (".yaml", ".yml")
    if named and (format_ or not (folder / "config.json").is_file()):
        return True
    kind = _kind(what)
    if kind == "report":
        return True
    if format_ or settings:
        other = f"{what} is a {kind} artifact" if kind else f"{what} is neither a study (`reread study list`) nor a report's id"
        raise SpecError(f"--format and --set are for studies, and {other}; a checkpoint is exported by "
                        "reread export CHECKPOINT FOLDER")
    return False


def _kind(what: str) -> str | None:
    store = Store()
    try:
        return store.manifest(whole(store, what)).kind
    except ArtifactError:
        return None


def export_study(what: str, target: str | None, format_: str | None, settings: list[str], force: bool, json: bool) -> None:
    """Writes a folder, whole or not at all.

    :raises SpecError: no format, or the study is not finished here
    """
    from models.adapters.folders import check_free, whole_folder

    if format_ is None:
        raise SpecError(f"{what} is a study; say --format csv (for computing), latex (for a paper) or html (one page)")
    store = Store()
    manifest = store.manifest(_report(what, settings, store))
    study = _spec(manifest)
    place = Path(target or f"{study.name}-{format_}").absolute()
    own = {"marker": METADATA, "what": "export"}
    check_free(place, force, **own)
    _check_ours(place)
    store.verify(manifest.id)
    with whole_folder(place, force, **own) as work:
        tables = WRITERS[format_](work, study, store, manifest)
        facts = _facts(study, manifest, format_, tables)
        (work / METADATA).write_text(json_format.dumps(facts, indent=1, ensure_ascii=False, default=str), encoding="utf-8")
    files = [{"path": path.relative_to(place).as_posix(), "size": path.stat().st_size}
             for path in sorted(place.rglob("*")) if path.is_file()]
    if json:
        document({"study": study.name, "report": manifest.id, "format": format_, "folder": str(place), "files": files})
        return
    for one in files:
        say(f"{one['path']:30} {size(one['size']):>10}")
    say(f"\n{study.name}, {manifest.id}\n{place}")


def _check_ours(place: Path) -> None:
    """SpecError where a folder has a file that is called like our metadata and says something else."""
    if not (place / METADATA).is_file():
        return
    try:
        ours = {"format", "study", "report"} <= set(json_format.loads((place / METADATA).read_text(encoding="utf-8")))
    except (ValueError, TypeError, OSError):
        ours = False
    if not ours:
        raise SpecError(f"the {METADATA} in {place} is none of an export, so that folder is not replaced; choose another one")


def _report(what: str, settings: list[str], store: Store) -> str:
    """The id of the report. SpecError with the command that makes it where it is not there."""
    if what not in studies.shipped() and Path(what).suffix not in (".yaml", ".yml"):
        if settings:
            raise SpecError(f"--set changes a study, and {what} names a report as it is")
        return whole(store, what)
    planned = plan(studies.load(what, settings), store)
    if planned.finished:
        return planned.goal.artifact
    command = shlex.join(["reread", "study", "run", what, *(part for one in settings for part in ("--set", one))])
    older = [one for one in store.list("report") if one.spec.get("name") == planned.name]
    raise SpecError(f"study {planned.name} is not finished here: {len(planned.missing())} of {len(planned.stages)} stages are to "
                    f"do; finish it with: {command}" + (
                        f" (a report of other settings or code is there: reread export {older[-1].id})" if older else ""))


def _spec(manifest: Manifest) -> StudySpec:
    from pydantic import ValidationError

    try:
        return StudySpec.model_validate(manifest.spec)
    except ValidationError as error:
        raise SpecError(f"{manifest.id} was written by another version of reread ({error.errors()[0]['msg']}); run the study "
                        "again") from error


def results_of(manifest: Manifest) -> dict[str, Any]:
    """A report's inputs in the form that made them: the inverse of `tasks.report.flatten`."""
    found: dict[str, Any] = {"workloads": {}, "timings": manifest.inputs.get("timings")}
    for role, artifact in manifest.inputs.items():
        workload, _, rest = role.partition("/")
        kind, _, name = rest.partition("/")
        if not rest:
            continue
        parts = found["workloads"].setdefault(workload, {"corpus": None, "shards": None, "rows": None,
                                                         "prompts": {}, "checkpoints": {}, "scores": {}})
        if kind in BY_NAME:
            parts.setdefault(kind, {})[name] = artifact
        else:
            parts[kind] = artifact
    return found


# --------------------------------------------------------------------------------------------------------------- formats
def _csv(folder: Path, study: StudySpec, store: Store, manifest: Manifest) -> dict[str, str]:
    from tasks.report import assemble
    from tasks.reporting.tidy import ABOUT, tidy

    results = results_of(manifest)
    told = {}
    for name, rows in tidy(assemble(study, store, results), results).items():
        columns = list(dict.fromkeys(column for row in rows for column in row))
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows({column: _cell(value) for column, value in row.items()} for row in rows)
        told[f"{name}.csv"] = ABOUT[name]
    (folder / "README.md").write_text(_readme(study, manifest, told), encoding="utf-8")
    return told


def _cell(value: Any) -> Any:
    return json_format.dumps(value, ensure_ascii=False) if isinstance(value, list | tuple | dict | bool) else value


def _readme(study: StudySpec, manifest: Manifest, told: dict[str, str]) -> str:
    return "\n".join([
        f"# {study.name}: {study.about}", "", study.question, "", f"Report `{manifest.id}`, made {manifest.created}, commit "
        f"`{manifest.git_commit or 'unknown'}`. {_conditions(study)}", "", "| file | rows |", "|---|---|",
        *(f"| `{name}` | {about} |" for name, about in told.items()), "",
        "`value` with `low` and `high`: a mean or a difference and its 95 % interval, documents resampled (`n` items of "
        "`documents` documents; `seeds` training seeds resampled too where there are several). `seed`: one training. An empty "
        "field: not known, or no such thing. Times are seconds, sizes bytes, losses nats unless a column says otherwise. "
        f"`{METADATA}` has the id of every artifact.", ""])


def _latex(folder: Path, study: StudySpec, store: Store, manifest: Manifest) -> dict[str, str]:
    from tasks.report import assemble
    from tasks.reporting import latex

    conditions = (f"Study `{study.name}`, report `{manifest.id}`, commit `{(manifest.git_commit or 'unknown')[:12]}`. "
                  f"{_conditions(study)}")
    told = {}
    for table in assemble(study, store, results_of(manifest)).tables():
        text = latex.table(table, conditions, {"report": manifest.id, **manifest.inputs})
        (folder / f"{table.name}.tex").write_text(text, encoding="utf-8")
        told[f"{table.name}.tex"] = table.title
    names = [name.removesuffix(".tex") for name in told]
    (folder / "all.tex").write_text(latex.document(f"{study.name}: {study.about}", study.question, names), encoding="utf-8")
    return {**told, "all.tex": "a document that sets them all: pdflatex all.tex"}


def _html(folder: Path, study: StudySpec, store: Store, manifest: Manifest) -> dict[str, str]:
    from tasks.reporting.html import page

    text = page(store.path(manifest.id), f"{study.name}: {study.about}")
    (folder / "index.html").write_text(text, encoding="utf-8")
    return {"index.html": "the whole report, nothing beside it is needed"}


WRITERS: dict[str, Callable[[Path, StudySpec, Store, Manifest], dict[str, str]]] = {
    "csv": _csv, "latex": _latex, "html": _html}


def _conditions(study: StudySpec) -> str:
    """How many seeds each workload has, and so what differences are about."""
    from tasks.reporting.compare import claim_note

    seeds = {name: len(work.seeds) for name, work in study.workloads.items()}
    return claim_note(min(seeds.values(), default=1))


def _facts(study: StudySpec, manifest: Manifest, format_: str, tables: dict[str, str]) -> dict[str, Any]:
    return {"format": format_, "study": study.name, "about": study.about, "question": study.question, "report": manifest.id,
            "made": manifest.created, "git_commit": manifest.git_commit, "reread": package_version(),
            "conditions": _conditions(study), "artifacts": manifest.inputs, "files": tables, "spec": manifest.spec}
