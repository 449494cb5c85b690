"""Benchmarks of mixers and whole models: growth with the history, LAVO's protocols, time to first token."""

import pytest
import torch

from models import LanguageModel, registry
from models.mixers import attention
from tasks.benchmarks import efficiency, growth, whole_models
from tasks.benchmarks.conditions import Conditions
from tasks.benchmarks.sections import (
    FIRST_TOKEN,
    GENERATION,
    INCREMENTAL,
    MODEL_FORWARD,
    PREFIXES,
    Efficiency,
    Growth,
    WholeModels,
)

NOW = Conditions()
GROWTH = Growth(histories=(16, 64, 600), width=32, heads=2, seconds=0, fewest=1)
SMALL = Efficiency(lengths=(16, 48), simulated=(40,), stride=16, layers=1, width=32, heads=2, vocabulary=64, seconds=0, fewest=1)


# ---------------------------------------------------------------------------------------------------------------- growth
@pytest.mark.parametrize("kind", growth.points(GROWTH, NOW))
def test_every_streaming_mixer_takes_part_by_itself(kind):
    rows = growth.measure(GROWTH, kind, NOW)
    assert rows and {row["op"] for row in rows} == {kind}
    for row in rows:
        assert row["ms"] is not None and row["error"] <= row["tolerance"], (row["error"], row["note"])
        assert row["state_bytes"] > 0 and row["flops"] >= 0 and row["state_bytes_measured"] >= row["state_bytes"]


def test_growth_is_counted_as_it_is():
    attending, based = (growth.measure(GROWTH, kind, NOW) for kind in ("attention", "based"))
    assert attending[-1]["state_bytes_measured"] > 8 * attending[1]["state_bytes_measured"]
    assert len({row["state_bytes_measured"] for row in based}) == len({row["flops"] for row in based}) == 1
    assert attending[0]["truth"].startswith("forward") and attending[-1]["truth"].startswith("prefill")


def test_a_wrong_step_has_no_time(monkeypatch):
    right = attention.Attention.mix_step

    def wrong(self, x_BD, layout, state):
        y, state = right(self, x_BD, layout, state)
        return (y if y.dtype == torch.float64 else y * 1.01), state

    monkeypatch.setattr(attention.Attention, "mix_step", wrong)
    row = growth.measure(GROWTH, "attention", NOW)[0]
    assert row["ms"] is row["state_bytes_measured"] is None and row["error"] == pytest.approx(0.01, rel=0.01)


def test_published_kinds_that_are_not_here_are_listed(monkeypatch):
    monkeypatch.setattr(registry, "kinds", lambda: ["attention", "based"])
    absent = growth.absent(GROWTH, NOW)
    assert {sentence.partition(":")[0] for sentence in absent} == set(growth.PUBLISHED) - {"attention"}
    assert growth.points(GROWTH, NOW) == ["attention", "based"], "the published analysis first"


# ------------------------------------------------------------------------------------------------------------- protocols
def test_the_trapezoid_rule_sums_every_length():
    assert efficiency.summed({1: 1.0, 5: 5.0, 10: 10.0}) == sum(range(1, 11))
    assert efficiency.summed({1: 2.0, 100: 2.0}) == 200
    squares = efficiency.summed({n: float(n * n) for n in efficiency.lengths_of(1000, 50)})
    assert squares == pytest.approx(sum(n * n for n in range(1, 1001)), rel=2e-3)
    assert efficiency.summed({1: 3.0}) == 3


def test_strided_lengths_keep_both_ends():
    assert efficiency.lengths_of(10, 4) == [1, 4, 8, 10]
    assert efficiency.lengths_of(8, 4) == [1, 4, 8] and efficiency.lengths_of(3, 100) == [1, 3]
    assert efficiency.lengths_of(5, 1) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("system", efficiency.points(SMALL, NOW))
def test_every_system_of_the_protocol(system):
    rows = efficiency.measure(SMALL, system, NOW)
    assert [(row["measure"], row["n"]) for row in rows] == [
        (MODEL_FORWARD, 16), (MODEL_FORWARD, 48), (PREFIXES, 40), (INCREMENTAL, 40)]
    for row in rows:
        assert row["ms"] > 0 and row["error"] <= row["tolerance"] and row["tokens_per_second"] > 0
        assert ("stride 16" in row["note"]) == (row["measure"] != MODEL_FORWARD)
    assert rows[0]["peak_bytes"] < rows[1]["peak_bytes"]


def test_vanilla_keeps_its_scores():
    vanilla, fused = (efficiency.measure(SMALL, system, NOW)[1] for system in ("Vanilla", "FlashAttention"))
    assert vanilla["peak_bytes"] - fused["peak_bytes"] >= 2 * 48 * 48 * 4, "heads x n x n scores in float32"


def test_ratios_are_at_equal_length_and_protocol():
    def row(op, measure, n, ms):
        return {"op": op, "measure": measure, "n": n, "ms": ms, "ratio_to_vanilla": None, "ratio_to_sdpa": None}

    rows = [row("Vanilla", "a", 1, 8.0), row("FlashAttention", "a", 1, 4.0), row("LAVO", "a", 1, 2.0), row("LAVO", "b", 1, 2.0),
            row("LAVO", "a", 2, None)]
    efficiency.finish(rows)
    assert [(one["ratio_to_vanilla"], one["ratio_to_sdpa"]) for one in rows] == [
        (1, 0.5), (2, 1), (4, 2), (None, None), (None, None)]


def test_systems_without_a_mixer_are_named(monkeypatch):
    monkeypatch.setattr(registry, "kinds", lambda: ["attention"])
    assert efficiency.points(SMALL, NOW) == ["Vanilla", "FlashAttention", "FlashAttention + RoPE"]
    assert any("LAVO" in sentence for sentence in efficiency.absent(SMALL, NOW))


# --------------------------------------------------------------------------------------------------------- whole models
@pytest.mark.parametrize("name", ["transformer-mini", "based-mini", "jrt-mini"])
def test_first_token_and_generation(name):
    section = WholeModels((name,), prompt=24, new=4, batch=2, seconds=0, fewest=1)
    first, generation = whole_models.measure(section, name, NOW)
    assert (first["measure"], generation["measure"]) == (FIRST_TOKEN, GENERATION)
    assert first["error"] <= first["tolerance"] and 0 < first["ms"] and first["n"] == 24 and generation["n"] == 28
    assert generation["tokens_per_second"] == pytest.approx(2 * 4 / (generation["ms"] / 1e3))
    assert first["peak_bytes"] > 0 and first["state_bytes"] > 0


def test_models_that_do_not_fit_are_named():
    section = WholeModels(("based-mini", "based-1.3b"))
    assert whole_models.points(section, NOW) == ["based-mini"]
    assert "based-1.3b" in whole_models.absent(section, NOW)[0] and "GPU" in whole_models.absent(section, NOW)[0]


def test_memory_that_is_short_is_a_reason(monkeypatch):
    monkeypatch.setattr("tasks.benchmarks.machine.free_memory", lambda device: 1000)
    assert "do not fit" in whole_models.obstacle("based-mini", "cpu")


def test_a_model_that_differs_from_float64_has_no_time(monkeypatch):
    monkeypatch.setattr(LanguageModel, "double", lambda self: greater(LANGUAGE_MODEL_DOUBLE(self)))
    rows = whole_models.measure(SHORT, "based-mini", NOW)
    assert all(row["ms"] is None and row["error"] > 0.1 for row in rows)


LANGUAGE_MODEL_DOUBLE = LanguageModel.double
SHORT = WholeModels(("based-mini",), prompt=8, new=4, seconds=0, fewest=1)


def greater(model):
    with torch.no_grad():
        model.embedding.weight.mul_(torch.linspace(0.5, 1.5, model.embedding.weight.shape[1]))
    return model


@pytest.fixture
def steps(monkeypatch):
    """`steps(change)` alters the logits of every step of a model that is not in float64; None: it raises."""
    right = LanguageModel.step

    def wrong_by(change):
        def wrong(self, ids_B, state):
            logits, state = right(self, ids_B, state)
            return (logits if logits.dtype == torch.float64 else change(logits)), state

        monkeypatch.setattr(LanguageModel, "step", wrong)

    return wrong_by


def raises(logits):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 TiB\nand more")


FAULTS = {"nan": lambda y: torch.full_like(y, torch.nan), "off": lambda y: y + 0.3 * y.abs().max(), "shape": lambda y: y[:, :-1],
          "reversed": lambda y: y.flip(-1), "raises": raises}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_step_refuses_what_steps_alone(steps, fault):
    steps(FAULTS[fault])
    first, generation = whole_models.measure(SHORT, "based-mini", NOW)
    rows = efficiency.measure(SMALL, "Local", NOW)
    assert first["ms"] > 0 and all(row["ms"] > 0 and row["error"] <= row["tolerance"] for row in rows[:-1])
    for row in (generation, rows[-1]):
        assert row["ms"] is None and row["repetitions"] == 0
        if fault in ("off", "reversed"):
            assert row["error"] > 0.1 and "steps" in row["truth"]
        else:
            assert row["error"] is None
            assert row["note"].startswith({"nan": "not finite", "shape": "a result of shape"}.get(
                fault, "could not run: out of memory: OutOfMemoryError: CUDA out of memory. Tried to allocate 2 TiB"))
            assert "and more" not in row["note"]


def test_a_wrong_answer_is_refused(monkeypatch):
    """Steps are right, what `greedy` makes of them is not."""
    monkeypatch.setattr(whole_models, "greedy", lambda model, prompts, maximum_new: [[0] * maximum_new for _ in prompts])
    first, generation = whole_models.measure(SHORT, "based-mini", NOW)
    assert first["ms"] > 0 and generation["ms"] is None and generation["error"] > 0.05


def test_a_forward_that_is_not_finite_late_is_refused(monkeypatch):
    monkeypatch.setattr(efficiency, "CHECKED", 20)
    right = LanguageModel.forward

    def wrong(self, ids_BL, layout):
        logits = right(self, ids_BL, layout)
        logits[:, 30:] = torch.nan
        return logits

    monkeypatch.setattr(LanguageModel, "forward", wrong)
    short, long, prefixes, _ = efficiency.measure(SMALL, "Local", NOW)
    assert short["ms"] > 0 and short["truth"].endswith("every token") and long["ms"] is None and prefixes["ms"] > 0
    assert "up to 20 tokens; finite beyond" in long["truth"]


@pytest.mark.parametrize("measure", [lambda: whole_models.measure(SHORT, "based-mini", NOW),
                                     lambda: efficiency.measure(SMALL, "Local", NOW),
                                     lambda: growth.measure(GROWTH, "attention", NOW)])
@pytest.mark.parametrize("place", ["draw", "clock"])
def test_one_failing_call_refuses_its_row(monkeypatch, measure, place):
    def wrong(*_, **__):
        raise RuntimeError("out of order")

    if place == "draw":
        monkeypatch.setattr(torch, "randint", wrong)
        monkeypatch.setattr(torch, "randn", wrong)
    else:
        monkeypatch.setattr("tasks.benchmarks.conditions.take_turns", wrong)
        monkeypatch.setattr(whole_models, "timings", lambda functions, section, conditions, failed:
                            failed.update(dict.fromkeys(functions, RuntimeError("out of order"))))
    for row in measure():
        assert row["ms"] is row["error"] is None and row["note"] == "could not run: RuntimeError: out of order"
