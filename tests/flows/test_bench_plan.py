"""A benchmark in a plan: the machine is named when it is planned, and a GPU is asked for where one is meant."""

import sys
import types

import pytest

from flows.forms.requests import BenchRequest
from flows.running.runner import check_gpus
from storage.artifacts import Store
from storage.errors import SpecError
from tasks import bench
from tasks.benchmarks import machine


def test_the_planned_machine_goes_with_the_stage(home, monkeypatch):
    stage = BenchRequest(preset="gate").plan(Store()).goal
    assert stage.spec.machine == machine.processor() and stage.gpus == 0
    monkeypatch.setattr(machine, "processor", lambda: "a worker's")
    assert bench.plan(stage.spec) == stage.artifact, "whoever measures means the same artifact"


def test_a_gpu_is_asked_for(home, monkeypatch):
    stage = BenchRequest(preset="table5", device="cuda").plan(Store()).goal
    assert stage.gpus == 1 and stage.spec.device == "cuda" and stage.spec.machine
    cluster = {"CPU": 2.0}
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(cluster_resources=lambda: cluster))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(SpecError, match="needs 1 GPU"):
        check_gpus([stage])
    check_gpus([BenchRequest().plan(Store()).goal])
    cluster["GPU"] = 1.0
    check_gpus([stage])
    del cluster["GPU"]
    monkeypatch.setenv("RAY_ADDRESS", "ray://somewhere:10001")
    check_gpus([stage])


def test_table5_without_a_gpu_is_refused_when_planned(home):
    with pytest.raises(SpecError, match="needs one CUDA GPU"):
        BenchRequest(preset="table5").plan(Store())
