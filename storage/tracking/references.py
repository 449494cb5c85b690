"""Everything that a store and the journals for it say, to find what refers to an artifact; and one run by its id.

This needs an answer, so that nothing here is spooled: a store that is away, refuses or is not there yet is a
`TrackingError`. Nothing is created by looking.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from storage.errors import TrackingError
from storage.home import local_home
from storage.tracking.asking import asked, pages
from storage.tracking.places import absolute, default_uri, sqlite_file

NAMED = 4               # runs named where first letters fit several


@dataclass(frozen=True)
class Referrer:
    """One run and what it says."""

    id: str
    name: str
    deleted: bool                   # it, or its experiment, lies in MLflow's trash
    tags: dict[str, str]
    params: dict[str, str]


def every_run(uri: str | None = None) -> list[Referrer]:
    """All runs of all experiments, deleted ones too. uri: None = `default_uri()`."""
    with _reading(uri) as store:
        from mlflow.entities import ViewType

        experiments = {one.experiment_id: one for one in pages(store.search_experiments, view_type=ViewType.ALL)}
        runs = pages(store.search_runs, experiment_ids=list(experiments), run_view_type=ViewType.ALL) if experiments else []
    return [Referrer(one.info.run_id, one.info.run_name or "", "deleted" in (
        one.info.lifecycle_stage, experiments[one.info.experiment_id].lifecycle_stage),
        dict(one.data.tags), dict(one.data.params)) for one in runs]


def run_by_id(start: str, uri: str | None = None) -> Referrer:
    """The run whose id begins so. `TrackingError` where none does, or several."""
    found = [run for run in every_run(uri) if run.id.startswith(start) and not run.deleted]
    if len(found) == 1:
        return found[0]
    if not found:
        raise TrackingError(f"no run {start} in the tracking store {absolute(uri or default_uri())}; copy the run id from "
                            "the page of a run, or set MLFLOW_TRACKING_URI to the store that has it")
    several = ", ".join(f"{run.id} ({run.name})" for run in found[:NAMED])
    raise TrackingError(f"{start} could be the runs {several}{' or others' if len(found) > NAMED else ''}; give more of it")


def undelivered() -> str:
    """What the journals of this home hold and no store is known to have, as text."""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").replace("\\n", "\n")     # an id may begin a line
                     for path in sorted((local_home() / "spool").glob("*/*.jsonl")))


@contextmanager
def _reading(uri: str | None) -> Iterator[Any]:
    where = absolute(uri or default_uri())
    if (file := sqlite_file(where)) is not None and not file.is_file():
        raise TrackingError(f"there is no tracking store {where}; set MLFLOW_TRACKING_URI to the one in use")
    with asked(where) as store:
        yield store
