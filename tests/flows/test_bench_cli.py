"""What `reread bench` says of rows without a time, and of sources that change while it runs."""

import dataclasses
import json

import pytest

from storage.artifacts import Store
from tasks import bench
from tasks.benchmarks import machine, presets, registry
from tasks.benchmarks.sections import Sweep

ARGUMENTS = ("bench", "--set", "lengths=256")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """The quick preset is one tiny sweep, sources stay as they are, and no MLflow is asked."""
    monkeypatch.setattr(bench, "code_hash", lambda modules: "code")
    section = Sweep(("sdpa", "taylor"), (256,), heads=2, peers=True, seconds=0, fewest=1)
    monkeypatch.setattr(presets, "presets", lambda device: {"quick": presets.Preset("", "", (section,))})
    monkeypatch.setattr("flows.commands.single.RUNS_IN_MLFLOW", ())


@pytest.fixture
def wrong():
    """`wrong(name)` lets that form of Taylor attention give double of what it should."""
    operation = registry.every()["taylor"]
    right = operation.implementations

    def spoil(name):
        object.__setattr__(operation, "implementations", tuple(
            dataclasses.replace(form, call=lambda inputs, form=form: 2 * form.call(inputs)) if form.name == name else form
            for form in right))

    yield spoil
    object.__setattr__(operation, "implementations", right)


def test_a_form_of_ours_that_is_refused_is_code_1(reread, wrong):
    wrong("chunked")
    answer = reread(*ARGUMENTS, "--json")
    rows = {row["backend"]: row for row in answer.json}
    assert answer.code == 1 and rows["chunked"]["ms"] is None and rows["torch"]["ms"] > 0
    assert "1 of this project's own rows" in answer.err and "taylor (chunked), forward, n 256: error 1.0e+00" in answer.err
    again = reread(*ARGUMENTS)
    assert again.code == 1 and "exists: nothing to do" in again.out and "refused: taylor (chunked)" in again.out


@pytest.mark.skipif(not machine.installed("fla"), reason="flash-linear-attention is not installed")
def test_a_peer_that_is_refused_is_none(reread, wrong):
    wrong("fla.naive_chunk_based")
    answer = reread(*ARGUMENTS)
    assert answer.code == 0 and "refused: taylor (fla.naive_chunk_based), forward, n 256: error 1.0e+00 above" in answer.out


def test_sources_that_change_meanwhile(reread, monkeypatch):
    """The id that `run` returned is shown, not the planned one that does not exist."""
    hashes = iter(["planned", "made"])
    monkeypatch.setattr(bench, "code_hash", lambda modules: next(hashes, "made"))
    answer = reread(*ARGUMENTS)
    [made] = Store().list("timings")
    assert answer.code == 0 and made.code == "made" and f"{made.id} made in" in answer.out
    assert json.loads((Store().path(made.id) / "timings.json").read_text())
