"""Reading runs back: what an earlier process wrote to an experiment. Needs an answer, so nothing here is spooled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage.tracking.asking import asked, pages
from storage.tracking.places import absolute, default_uri, sqlite_file


@dataclass(frozen=True)
class Run:
    """One run as it is in the store. Times in seconds since 1970; `ended` is None while it is not ended."""

    id: str
    name: str
    status: str             # RUNNING, FINISHED, FAILED or KILLED
    tags: dict[str, str]
    metrics: dict[str, float]
    began: float
    ended: float | None


def read_runs(experiment: str, tags: Mapping[str, str] | None = None, uri: str | None = None) -> list[Run]:
    """The runs of an experiment with all these tags, oldest first; none where there is no such experiment.

    :raises TrackingError: the store is away or refuses
    """
    uri = absolute(uri or default_uri())
    if (file := sqlite_file(uri)) is not None and not file.is_file():
        return []                       # reading must not make a database
    with asked(uri) as store:
        found = store.get_experiment_by_name(experiment)
        return [] if found is None else _read(store, found.experiment_id, tags or {})


def _read(store: Any, experiment: str, tags: Mapping[str, str]) -> list[Run]:
    wanted = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
    found = pages(store.search_runs, [experiment], filter_string=wanted, order_by=["attributes.start_time ASC"])
    return [Run(one.info.run_id, one.info.run_name or "", one.info.status, dict(one.data.tags), dict(one.data.metrics),
                one.info.start_time / 1000, one.info.end_time / 1000 if one.info.end_time else None) for one in found]
