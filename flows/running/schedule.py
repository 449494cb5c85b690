"""Which stages start now: a list scheduler for a handful of stages on a known number of cores.

Ray would start them in the order of submission. This starts what unblocks others first, then evaluations of finished
checkpoints, then trainings from the longest to the shortest; what takes times waits until nothing else runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

# every kind of stage there is
PRIORITY = {"corpus": 0, "questions": 0, "tokenise": 0, "rows": 0, "cloze": 1, "bigrams": 1, "evaluate": 2, "perplexity": 2,
            "extrapolation": 2, "pretrain": 3, "deploy": 4, "bench": 4, "report": 5}
ALONE = ("deploy", "bench")


class Job(Protocol):
    """What the scheduler looks at."""

    key: str
    kind: str
    after: tuple[str, ...]
    weight: float
    cores: int


def start_now(waiting: Iterable[Job], running: Collection[Job], done: Collection[str], cores: int) -> list[Job]:
    """The waiting jobs to start, best first, given what runs and what is done.

    A job that wants more cores than there are runs alone rather than never.
    """
    if any(job.kind in ALONE for job in running):
        return []
    ready = [job for job in waiting if all(key in done for key in job.after)]
    ready.sort(key=lambda job: (PRIORITY.get(job.kind, 9), -job.weight))
    free, chosen = cores - sum(job.cores for job in running), []
    for job in ready:
        if job.kind in ALONE:
            if not running and not chosen:
                return [job]
        elif job.cores <= free or not (running or chosen):
            chosen.append(job)
            free -= job.cores
    return chosen
