"""How long stages may take, and what is tried again."""

from __future__ import annotations

import errno

import pytest

from flows.running import limits
from flows.running.schedule import PRIORITY
from storage.errors import SpecError, StageFailed


def test_every_kind_of_stage_has_a_generous_limit(monkeypatch):
    monkeypatch.delenv(limits.VARIABLE, raising=False)
    assert set(limits.HOURS) == set(PRIORITY)
    assert min(limits.stage_seconds().values()) >= 2 * 3600 and limits.stage_seconds()["pretrain"] >= 7 * 24 * 3600


def test_the_environment_changes_some(monkeypatch):
    monkeypatch.setenv(limits.VARIABLE, "pretrain=48, evaluate=0.5,")
    found = limits.stage_seconds()
    assert found["pretrain"] == 48 * 3600 and found["evaluate"] == 1800 and found["report"] == 7200


@pytest.mark.parametrize("text", ["pretrain", "pretrain=", "pretrain=long", "pretrain=0", "pretrain=-1", "pretrain=nan",
                                  "pretrain=inf", "train=3", "pretrain=1=2", "=3"])
def test_a_wrong_limit_is_told_in_one_sentence(monkeypatch, text):
    monkeypatch.setenv(limits.VARIABLE, text)
    with pytest.raises(SpecError) as told:
        limits.stage_seconds()
    assert limits.VARIABLE in str(told.value) and repr(text) in str(told.value) and "pretrain=48" in str(told.value)


@pytest.mark.parametrize("error", [ConnectionResetError("gone"), TimeoutError("slow"), OSError(errno.EIO, "disk"),
                                   BrokenPipeError(), OSError("of a library, without a number")])
def test_what_may_pass_is_tried_again(error):
    assert limits.may_pass(error)


@pytest.mark.parametrize("error", [SpecError("wrong field"), StageFailed("diverged"), ValueError("a bug"),
                                   FileNotFoundError(errno.ENOENT, "none"), OSError(errno.ENOSPC, "disk full"),
                                   PermissionError(errno.EACCES, "no"), MemoryError()])
def test_what_fails_the_same_way_again_is_not(error):
    assert not limits.may_pass(error)


def test_failures_of_connections_and_helpers_are_known_by_name():
    import httpx
    import ray.exceptions

    assert limits.may_pass(httpx.ConnectError("no route")) and not limits.may_pass(httpx.InvalidURL("x"))
    assert limits.may_pass(ray.exceptions.WorkerCrashedError())
    assert limits.is_death(ray.exceptions.WorkerCrashedError()) and limits.is_death(ray.exceptions.OutOfMemoryError("x"))
    assert not limits.is_death(ValueError()) and not limits.is_death(ray.exceptions.TaskCancelledError())


def test_the_names_of_libraries_are_names_that_exist():
    import importlib

    for name in limits.PASSING:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name
    for name in limits.DEATHS:
        assert hasattr(importlib.import_module("ray.exceptions"), name), name


def test_pauses_grow():
    assert list(limits.RETRY_SECONDS) == sorted(limits.RETRY_SECONDS) and limits.RETRY_SECONDS[-1] >= 10
