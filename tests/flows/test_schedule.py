from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import Path

from flows.planning import builder
from flows.running.schedule import PRIORITY, start_now


@dataclass
class Job:
    key: str
    kind: str
    after: tuple[str, ...] = ()
    weight: float = 0
    cores: int = 1


def keys(jobs) -> list[str]:
    return [job.key for job in jobs]


def test_nothing_starts_before_its_inputs():
    jobs = [Job("b", "pretrain", ("a",)), Job("c", "cloze")]
    assert keys(start_now(jobs, [], set(), 2)) == ["c"]
    assert keys(start_now(jobs, [], {"a"}, 2)) == ["c", "b"]


def test_what_unblocks_others_first_then_evaluations_then_the_longest_training():
    jobs = [Job("short", "pretrain", weight=1), Job("long", "pretrain", weight=9), Job("eval", "evaluate"),
            Job("rows", "rows"), Job("prompts", "cloze")]
    assert keys(start_now(jobs, [], set(), 5)) == ["rows", "prompts", "eval", "long", "short"]
    assert keys(start_now(jobs, [], set(), 2)) == ["rows", "prompts"]


def test_cores_are_not_overbooked():
    running = [Job("x", "pretrain")]
    assert keys(start_now([Job("a", "pretrain"), Job("b", "pretrain")], running, set(), 2)) == ["a"]
    assert keys(start_now([Job("wide", "pretrain", cores=2), Job("a", "pretrain")], running, set(), 2)) == ["a"]
    assert start_now([Job("a", "pretrain")], [Job("x", "pretrain"), Job("y", "pretrain")], set(), 2) == []


def test_a_job_wider_than_the_machine_runs_alone_rather_than_never():
    wide = Job("wide", "pretrain", cores=8)
    assert keys(start_now([wide], [], set(), 2)) == ["wide"]
    assert start_now([wide], [Job("x", "cloze")], set(), 2) == []


def test_a_benchmark_runs_when_nothing_else_does():
    bench, training = Job("bench", "bench"), Job("a", "pretrain")
    assert keys(start_now([bench, training], [], set(), 2)) == ["a"]
    assert start_now([bench], [training], set(), 2) == []
    assert keys(start_now([bench], [], set(), 2)) == ["bench"]
    assert start_now([training], [bench], set(), 2) == []


def test_every_kind_of_stage_that_a_plan_may_hold_can_run():
    """A kind without a place here would be planned, and fail when Prefect is asked for its task."""
    planned = set(re.findall(r'self\.(?:add|_measure)\(\s*"(\w+)"', Path(builder.__file__).read_text())) | {"report"}
    planned |= {"pretrain"}                                       # added through one method for trials as well
    assert planned == set(PRIORITY)
    for kind in PRIORITY:
        module = importlib.import_module(f"tasks.{kind}")
        assert callable(module.run) and callable(module.plan), kind
