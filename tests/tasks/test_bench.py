"""The bench stage: no time without a green check, honest clocks, one artifact a machine."""

import json
import time

import pytest
import torch

from storage.artifacts import Store
from tasks import bench
from tasks.specs import BenchSpec
from tasks.timing import Times, peak_bytes, take_turns

KEYS = {"op", "backend", "n", "heads", "dtype", "threads", "ms", "error", "ratio_to_sdpa", "ratio_to_peer", "peer",
        "peak_bytes", "contended"}


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(bench, "LENGTHS", {"quick": (64, 130), "gate": (64, 130, 260)})
    monkeypatch.setattr(bench, "SECONDS", 0.02)


def test_rows(short, home):
    store, spec = Store(), BenchSpec()
    identifier = bench.run(spec, store)
    assert identifier == bench.plan(spec, store) == bench.run(spec, store)
    rows = json.loads((store.path(identifier) / "timings.json").read_text())
    assert [(row["op"], row["n"]) for row in rows] == [
        (op, n) for n in (64, 130) for op in ("sdpa", "taylor", "prefix")]
    for row in rows:
        assert row.keys() >= KEYS
        assert 0 < row["ms"] <= row["ms_median"] and 0 <= row["error"] <= bench.TOLERANCE
        assert (row["heads"], row["dtype"], row["threads"]) == (8, "float32", 1)
        assert row["peak_bytes"] >= 8 * 64 * row["n"] * 4, "at least its output"
        assert isinstance(row["contended"], bool)
        assert (row["peer"] is None) == (row["ratio_to_peer"] is None)
    sdpa, taylor = rows[:2]
    assert sdpa["ratio_to_sdpa"] == 1
    assert taylor["ratio_to_sdpa"] == pytest.approx(sdpa["ms"] / taylor["ms"])
    assert store.manifest(identifier).counts == {"rows": 6, "refused": 0,
                                                 "contended": sum(row["contended"] for row in rows)}


@pytest.mark.parametrize("fault", ["a little", "not finite"])
def test_a_red_check_has_no_time(short, monkeypatch, fault):
    right = bench.taylor

    def wrong(q, k, v, backend="auto"):
        y = right(q, k, v, backend=backend)
        if backend == "naive":
            return y
        return y * 1.0001 if fault == "a little" else torch.full_like(y, torch.nan)

    monkeypatch.setattr(bench, "taylor", wrong)
    rows = {row["op"]: row for row in bench.measure(BenchSpec()) if row["n"] == 64}
    assert rows["taylor"]["ms"] is rows["taylor"]["ratio_to_sdpa"] is rows["taylor"]["peak_bytes"] is None
    if fault == "a little":
        assert bench.TOLERANCE < rows["taylor"]["error"] < 1e-3
    else:
        assert rows["taylor"]["error"] is None
    assert rows["prefix"]["ms"] > 0 and rows["prefix"]["ratio_to_sdpa"] > 0
    json.dumps(list(rows.values()), allow_nan=False)


def test_without_sdpa_there_is_no_ratio(short, monkeypatch):
    monkeypatch.setattr(bench, "attention_error", lambda inputs: 1.0)
    rows = {row["op"]: row for row in bench.measure(BenchSpec()) if row["n"] == 64}
    assert rows["sdpa"]["ms"] is rows["taylor"]["ratio_to_sdpa"] is None
    assert rows["taylor"]["ms"] > 0


def test_the_attention_check_can_fail(monkeypatch):
    inputs = bench.make_inputs(70, 0)
    assert bench.attention_error(inputs) <= 1e-5
    monkeypatch.setattr(bench, "VALUES", 63)
    assert bench.attention_error(inputs) > 1e-4, "another scale must show"


def test_the_artifact_belongs_to_the_machine(home, monkeypatch):
    here = bench.plan(BenchSpec())
    monkeypatch.setattr(bench, "processor", lambda: "another")
    assert bench.plan(BenchSpec()) != here
    assert bench.plan(BenchSpec(preset="gate")) != bench.plan(BenchSpec())


def test_threads_are_given_back(short, monkeypatch):
    seen = []
    monkeypatch.setattr(bench, "measure_length", lambda n, spec: seen.append(torch.get_num_threads()) or [])
    before = torch.get_num_threads()
    bench.measure(BenchSpec(threads=2))
    assert seen == [2, 2] and torch.get_num_threads() == before


def test_competitors_take_turns():
    calls = []
    times = take_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, threads=1, seconds=0, fewest=3)
    assert calls[-6:] == ["a", "b"] * 3 and len(times["a"].work) == 3


def test_a_waiting_run_is_contended():
    times = take_turns({"idle": lambda: time.sleep(0.01)}, threads=1, seconds=0, fewest=3)["idle"]
    assert times.contended and times.best < 5e-3, "sleep is not work"
    assert not Times([0.01] * 3, [0.0101] * 3).contended
    assert Times([0.01, 0.03, 0.03], [0.01, 0.03, 0.03]).contended, "with several threads: far from the best"


def test_peak_bytes_are_counted_exactly():
    x = torch.zeros(1000)

    def call():
        y = x + 1          # 4000
        y = y * 2          # 8000 alive, then 4000
        return (y + y)     # 8000 alive

    assert peak_bytes(call) == 8000
    assert peak_bytes(lambda: x.view(10, 100)) == 0, "a view allocates nothing"
    assert peak_bytes(lambda: x.add_(1)) == 0
