"""The bench stage: no time without a green check, one artifact a machine, rows and presets that scripts rely on."""

import json
import math

import pytest
import torch

from storage.artifacts import Store
from storage.errors import SpecError
from tasks import bench
from tasks.benchmarks import decode, machine, presets, refusals, registry, sweep
from tasks.benchmarks.conditions import Conditions
from tasks.benchmarks.operation import PROOF_TOLERANCE, Setting
from tasks.benchmarks.rows import KEYS
from tasks.benchmarks.sections import Decode, Sweep
from tasks.specs import BenchSpec

# what DESIGN 12 promises, and what was added since; a change here is a change of the interface
FROZEN = ["op", "backend", "measure", "n", "batch", "heads", "dtype", "threads", "device", "ms", "ms_median", "p20", "p80",
          "wall_ms", "repetitions", "error", "tolerance", "truth", "ratio_to_sdpa", "ratio_to_peer", "peer",
          "ratio_to_vanilla", "tokens_per_second", "peak_bytes", "state_bytes", "state_bytes_measured", "bytes", "flops",
          "floor_fraction", "contended", "published", "note"]
NOW = Conditions()


def small(*names: str, **options) -> Sweep:
    return Sweep(names, (64, 130), seconds=0, fewest=1, **options)


@pytest.fixture
def short(monkeypatch):
    """Every preset is two tiny sweeps and a decode step."""
    sections = (small("sdpa", "taylor", "prefix"), Decode(("sdpa", "taylor"), (64, 600), seconds=0, fewest=1))
    monkeypatch.setattr(presets, "presets", lambda device: {
        name: presets.Preset("", "", sections) for name in ("quick", "gate")})
    return sections


def test_rows_and_artifact(short, home):
    store, spec = Store(), BenchSpec()
    identifier = bench.run(spec, store)
    assert identifier == bench.plan(spec, store) == bench.run(spec, store)
    folder = store.path(identifier)
    rows = json.loads((folder / "timings.json").read_text())
    assert [(row["op"], row["n"]) for row in rows] == [
        (op, n) for n in (64, 130) for op in ("sdpa", "taylor", "prefix")] + [(op, n) for n in (64, 600) for op in ("sdpa", "taylor")]
    for row in rows:
        assert list(row) == FROZEN
        assert 0 < row["ms"] <= row["ms_median"] and row["p20"] <= row["p80"] and 0 <= row["error"] <= row["tolerance"]
        assert (row["heads"], row["batch"], row["dtype"], row["threads"]) == (8, 1, "float32", 1)
        assert isinstance(row["contended"], bool) and row["device"] == machine.processor()
        assert row["floor_fraction"] is None, "a CPU has no floor of bytes"
    for row in rows[:6]:
        assert row["peak_bytes"] >= 8 * 64 * row["n"] * 4 and row["flops"] > 0 and row["bytes"] > 0
    sdpa, taylor = rows[:2]
    assert sdpa["ratio_to_sdpa"] == 1
    assert taylor["ratio_to_sdpa"] == pytest.approx(sdpa["ms"] / taylor["ms"])
    assert rows[6]["state_bytes"] == 2 * 8 * 64 * 64 * 4 and rows[7]["state_bytes"] == rows[9]["state_bytes"]
    counts = store.manifest(identifier).counts
    assert (counts["rows"], counts["refused"]) == (10, 0)
    page = (folder / "report.md").read_text()
    for name in ("time.png", "decode.png"):
        assert (folder / name).stat().st_size > 5000 and name in page
    assert "taylor" in page and machine.processor() in page


def test_the_keys_are_frozen():
    assert list(KEYS) == FROZEN


# ------------------------------------------------------------------------------------------------------------ red checks
@pytest.mark.parametrize("fault", ["a little", "not finite", "raises", "shape", "second call"])
def test_a_red_check_has_no_time(monkeypatch, fault):
    operation = registry.every()["taylor"]
    right, calls = operation.implementations[0].call, []

    def wrong(inputs):
        if fault == "raises":
            raise RuntimeError("out of order")
        y = right(inputs)
        calls.append(1)
        if fault == "second call" and len(calls) > 1:
            raise RuntimeError("out of order")
        if fault in ("second call", "shape"):
            return y[:, :len(y[0]) - (fault == "shape")]
        return y * 1.0001 if fault == "a little" else torch.full_like(y, torch.nan)

    object.__setattr__(operation.implementations[0], "call", wrong)
    try:
        rows = {row["op"]: row for row in sweep.measure(small("sdpa", "taylor", "prefix"), (1, 130), NOW)}
    finally:
        object.__setattr__(operation.implementations[0], "call", right)
    red = rows["taylor"]
    assert [red[key] for key in ("ms", "ms_median", "ratio_to_sdpa", "peak_bytes", "contended")] == [None] * 5
    assert red["repetitions"] == 0
    if fault == "a little":
        assert red["tolerance"] < red["error"] < 1e-3
    else:
        assert red["error"] is None
    assert red["note"] == {"a little": None, "not finite": "not finite",
                           "shape": "a result of shape (1, 129, 8, 64), expected (1, 130, 8, 64)"}.get(
                               fault, "could not run: RuntimeError: out of order")
    assert refusals.broken(list(rows.values())) == [red] and refusals.ran(red) is (red["note"] is None or "run" not in red["note"])
    assert rows["prefix"]["ms"] > 0 and rows["prefix"]["ratio_to_sdpa"] > 0
    json.dumps(list(rows.values()), allow_nan=False)


@pytest.mark.parametrize("place", ["draw", "formula"])
@pytest.mark.parametrize("backward", [False, True])
def test_without_a_truth_only_its_own_rows_are_refused(monkeypatch, place, backward):
    def wrong(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    operation = registry.every()["taylor"]
    operation.prove()
    right = getattr(operation, place)
    object.__setattr__(operation, place, wrong)
    try:
        rows = sweep.measure(small("sdpa", "taylor", backward=backward), (1, 600), NOW)
    finally:
        object.__setattr__(operation, place, right)
    assert rows[0]["ms"] > 0 and rows[1]["ms"] is rows[1]["error"] is None
    assert rows[1]["note"] == "could not run: out of memory: OutOfMemoryError: CUDA out of memory"
    assert refusals.broken(rows) == [], "memory that is short is no fault of a form"


def test_a_gradient_of_a_result_of_another_shape_is_refused():
    operation = registry.every()["taylor"]
    right = operation.implementations[0].call
    object.__setattr__(operation.implementations[0], "call", lambda inputs: right(inputs)[:, :-1])
    try:
        row = sweep.measure(small("taylor", backward=True), (1, 64), NOW)[0]
    finally:
        object.__setattr__(operation.implementations[0], "call", right)
    assert row["ms"] is None and row["note"].startswith("a result of shape (1, 63, 8, 64)")


def test_a_step_that_fails_while_it_is_timed_is_refused(monkeypatch):
    def wrong(*_, **__):
        raise RuntimeError("out of order")

    monkeypatch.setattr("tasks.benchmarks.conditions.take_turns", wrong)
    row = decode.measure(Decode(("taylor",), (64,)), 64, NOW)[0]
    assert row["ms"] is row["error"] is None and row["note"] == "could not run: RuntimeError: out of order"


@pytest.mark.parametrize("problem", [ImportError("libcuda.so.1: cannot open"), AttributeError("no naive_chunk_based")])
def test_a_peer_that_cannot_be_imported_is_no_failure(monkeypatch, problem):
    def wrong(*_):
        raise problem

    monkeypatch.setattr("tasks.benchmarks.operation.installed", lambda module: True)
    monkeypatch.setattr("tasks.benchmarks.operations.taylor.fla_naive", wrong)
    rows = sweep.measure(small("taylor", peers=True), (1, 256), NOW)
    assert rows[0]["ms"] > 0 and len(rows) == 3 and refusals.broken(rows) == []
    for row in rows[1:]:
        assert row["ms"] is None and not refusals.ran(row)
        assert refusals.reason(row) == f"could not run: {type(problem).__name__}: {problem}"


def test_a_wrong_gradient_is_red():
    operation = registry.every()["taylor"]
    right = operation.implementations[0].call

    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, dy):
            return dy * 0.5

    object.__setattr__(operation.implementations[0], "call", lambda inputs: Halved.apply(right(inputs)))
    try:
        rows = sweep.measure(small("sdpa", "taylor", backward=True), (1, 64), NOW)
    finally:
        object.__setattr__(operation.implementations[0], "call", right)
    assert rows[0]["ms"] > 0 and rows[0]["measure"] == "forward and backward"
    assert rows[1]["ms"] is None and rows[1]["error"] == pytest.approx(0.5, rel=0.2)


def test_without_sdpa_there_is_no_ratio():
    rows = sweep.measure(small("taylor"), (1, 64), NOW)
    assert [row["op"] for row in rows] == ["taylor"] and rows[0]["ms"] > 0 and rows[0]["ratio_to_sdpa"] is None


@pytest.mark.parametrize("name", list(registry.every()))
def test_every_formula_is_proven(name):
    """The truth of long rows equals the naive form of short ones."""
    assert registry.every()[name].prove() <= PROOF_TOLERANCE


def test_a_wrong_formula_refuses_the_long_rows(monkeypatch):
    operation = registry.every()["prefix"]
    right, proof = operation.formula, dict(operation._proof)
    object.__setattr__(operation, "formula", lambda inputs, at: right(inputs, at) * 1.001)
    operation._proof.clear()
    try:
        row = sweep.measure(small("prefix"), (1, 600), NOW)[0]
    finally:
        object.__setattr__(operation, "formula", right)
        operation._proof.clear()
        operation._proof.update(proof)
    assert row["ms"] is None and row["error"] == pytest.approx(1e-3, rel=0.1) and "formula" in row["note"]


@pytest.mark.parametrize("name", list(registry.every()))
def test_every_operation_passes_forward_and_backward(name):
    operation = registry.every()[name]
    for backward in (False, True):
        for n in (64, 600):
            rows = sweep.measure(small(name, peers=True, backward=backward), (1, n), NOW)
            assert rows and all(row["ms"] is not None for row in rows), [
                (row["backend"], row["error"], row["note"]) for row in rows]
    assert operation.count(Setting(128)).flops * 2 == pytest.approx(operation.count(Setting(256)).flops, rel=0.6)


def test_batches_on_one_page():
    rows = sweep.measure(Sweep(("sdpa", "taylor"), (64,), (3,), heads=2, padded=False, seconds=0, fewest=1), (3, 64), NOW)
    assert [(row["batch"], row["heads"]) for row in rows] == [(3, 2), (3, 2)] and all(row["ms"] for row in rows)


# ----------------------------------------------------------------------------------------------------------------- peers
def test_the_quickest_peer_counts():
    row = {**KEYS, "op": "taylor", "measure": "forward", "n": 64}
    rows = sweep.compare([{**row, "backend": "chunked", "ms": 2.0}, {**row, "backend": "fla.naive_chunk_based", "ms": 8.0},
                          {**row, "backend": "fla.naive_parallel_based", "ms": 6.0},
                          {**row, "op": "sdpa", "backend": "torch", "ms": 10.0}])
    assert (rows[0]["ratio_to_peer"], rows[0]["peer"], rows[0]["ratio_to_sdpa"]) == (3, "fla.naive_parallel_based", 5)
    assert rows[1]["ratio_to_peer"] is rows[1]["peer"] is rows[3]["ratio_to_peer"] is None


def test_a_refused_peer_does_not_count():
    row = {**KEYS, "op": "taylor", "n": 64}
    rows = sweep.compare([{**row, "backend": "chunked", "ms": 2.0}, {**row, "backend": "fla.naive_chunk_based", "ms": None}])
    assert rows[0]["ratio_to_peer"] is None and rows[0]["peer"] is None


def test_a_peer_that_is_not_installed_is_absent(monkeypatch):
    monkeypatch.setattr("tasks.benchmarks.operation.installed", lambda module: module != "fla")
    rows = sweep.measure(small("taylor", peers=True), (1, 256), NOW)
    assert [row["backend"] for row in rows] == ["chunked"] and rows[0]["peer"] is None


def test_an_operation_without_its_kernels_is_absent(monkeypatch):
    registry.every.cache_clear()
    monkeypatch.setattr("tasks.benchmarks.operation.installed", lambda module: not module.startswith("kernels.prefix"))
    try:
        assert "prefix" not in registry.every() and "taylor" in registry.every()
        assert [row["op"] for row in sweep.measure(small("sdpa", "prefix"), (1, 64), NOW)] == ["sdpa"]
    finally:
        registry.every.cache_clear()


# --------------------------------------------------------------------------------------------------------- identity, plan
def test_the_artifact_belongs_to_the_machine(home, monkeypatch):
    here = bench.plan(BenchSpec())
    assert bench.plan(bench.placed(BenchSpec())) == here
    monkeypatch.setattr(machine, "processor", lambda: "another")
    assert bench.plan(BenchSpec()) != here
    assert bench.plan(BenchSpec(preset="gate")) != bench.plan(BenchSpec())
    assert bench.plan(BenchSpec(machine="node 7")) == bench.plan(bench.placed(BenchSpec(machine="node 7")))


def test_what_measures_whole_models_hangs_on_the_mixers(home):
    assert not any("mixers" in module for module in bench.modules(BenchSpec(preset="gate")))
    assert "models.mixers.based" in bench.modules(BenchSpec(preset="growth"))
    assert "tasks.benchmarks.operations.taylor" in bench.modules(BenchSpec(preset="gate"))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", BenchSpec.model_fields["preset"].annotation.__args__)
def test_every_preset_has_a_plan(name, device, monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda device: 100 << 30)
    if name == "table5" and device == "cpu":
        with pytest.raises(SpecError, match="device=cuda"):
            bench.plan(BenchSpec(preset=name))
        return
    spec = BenchSpec(preset=name, device=device)
    assert bench.plan(spec).startswith("timings-")
    conditions = Conditions(device, bench.dtype_of(spec))
    known = set(registry.every())
    for section in bench.chosen(spec).sections:
        module = __import__(section.module, fromlist=["points"])
        assert module.points(section, conditions) and section.about()
        if isinstance(section, Sweep | Decode):
            assert known & set(section.operations)
        if isinstance(section, Decode):
            assert all(registry.every()[operation].step for operation in section.operations if operation in known)


def test_the_gate_holds_what_a_release_promises():
    sections = presets.presets("cpu")["gate"].sections
    forward = [section for section in sections if isinstance(section, Sweep) and not section.backward]
    assert {n for section in forward for n in section.lengths} == {512, 1024, 2048, 4096, 8192}
    assert any(section.peers and 2048 in section.lengths for section in forward)
    assert any(section.backward and section.lengths == (4096,) for section in sections if isinstance(section, Sweep))
    assert {512, 131_072} <= {n for section in sections if isinstance(section, Decode) for n in section.contexts}
    assert (32_768,) in [section.lengths for section in presets.presets("cpu")["long"].sections if isinstance(section, Sweep)]


def test_table5_has_the_published_conditions():
    lengths, batches = presets.presets("cuda")["table5"].sections
    assert (lengths.batches, lengths.heads, lengths.padded) == ((16,), 16, False)
    assert set(lengths.lengths) == {2048, 4096, 8192, 16_384, 32_768}
    assert batches.lengths == (16_384,) and {1, 2, 4, 8, 32, 64} == set(batches.batches)
    assert bench.dtype_of(BenchSpec(preset="table5", device="cuda")) == "bfloat16"


def test_only_some_operations_and_lengths(short):
    rows, _ = bench.measure(BenchSpec(operations=("taylor",), lengths=(64,)))
    assert [(row["op"], row["n"], row["measure"]) for row in rows] == [
        ("taylor", 64, "forward"), ("taylor", 64, "decode step")]
    assert BenchSpec(operations="taylor, sdpa", lengths=512) == BenchSpec(operations=("taylor", "sdpa"), lengths=[512])
    assert BenchSpec(lengths="512,2048").lengths == (512, 2048)
    assert BenchSpec(lengths=None, operations=None) == BenchSpec(lengths="", operations=[]) == BenchSpec()
    with pytest.raises(SpecError, match="times none of prefix at 600; it times prefix at 64, 130"):
        bench.plan(BenchSpec(operations="prefix", lengths=600))
    with pytest.raises(SpecError, match="times 64, 130, 600; got 4096"):
        bench.plan(BenchSpec(lengths=4096))
    with pytest.raises(SpecError, match="does not time lavo"):
        bench.plan(BenchSpec(operations=("lavo",)))


def test_a_gpu_that_is_not_there_is_a_clear_mistake(home):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(SpecError, match="no CUDA device"):
        bench.run(BenchSpec(device="cuda"), Store())


def test_threads_are_given_back(short, monkeypatch):
    seen = []
    monkeypatch.setattr(sweep, "measure", lambda *_: seen.append(torch.get_num_threads()) or [])
    before = torch.get_num_threads()
    bench.measure(BenchSpec(threads=2, operations=("prefix",)))
    assert seen == [2, 2] and torch.get_num_threads() == before


def test_numbers_of_a_row_are_finite_or_null(short):
    rows, _ = bench.measure(BenchSpec())
    for row in rows:
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))


@pytest.mark.parametrize("name", list(registry.every()))
def test_a_batch_is_checked_at_some_rows(name):
    """As many rows as heads, so that what rows share cannot be taken for rows."""
    rows = sweep.measure(Sweep((name,), (600,), (6,), heads=6, seconds=0, fewest=1), (6, 600), NOW)
    assert rows[0]["ms"] is not None and "4 rows" in rows[0]["truth"], (rows[0]["error"], rows[0]["note"])
