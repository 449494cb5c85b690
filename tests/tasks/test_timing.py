"""Clocks and counts: turns, contention, percentiles, bytes."""

import time
from functools import partial

import pytest
import torch

from tasks.timing import Times, observed, peak_bytes, take_turns


def test_competitors_take_turns():
    calls = []
    times = take_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, threads=1, seconds=0, fewest=3)
    assert calls[-6:] == ["a", "b"] * 3 and len(times["a"].work) == 3


def test_a_dear_competitor_gets_fewer_turns():
    x = torch.randn(300, 300)
    times = take_turns({"dear": lambda: [x @ x for _ in range(20)], "cheap": lambda: None}, threads=1, seconds=1e-3, fewest=1,
                       most=9)
    assert len(times["dear"].work) <= 2 and len(times["cheap"].work) == 9
    idle = take_turns({"idle": lambda: time.sleep(0.02)}, threads=1, seconds=0.01, fewest=1, most=50)["idle"]
    assert len(idle.work) <= 8, "one that only waits is let go too"


def test_a_waiting_run_is_contended():
    times = take_turns({"idle": lambda: time.sleep(0.01)}, threads=1, seconds=0, fewest=3)["idle"]
    assert times.contended and times.best < 5e-3, "sleep is not work"
    assert not Times([0.01] * 3, [0.0101] * 3).contended
    assert Times([0.01, 0.03, 0.03], [0.01, 0.03, 0.03]).contended, "with several threads: far from the best"
    assert Times([0.01, 0.03], [0.01, 0.03], device="cuda").contended is None, "a GPU's events do not tell"


def test_percentiles_lie_between_neighbours():
    times = Times([3.0, 1.0, 2.0, 5.0, 4.0], [1.0] * 5)
    assert [times.percentile(p) for p in (0, 20, 50, 80, 100)] == [1, 1.8, 3, 4.2, 5]
    assert (times.best, times.median) == (1, 3)
    assert Times([7.0], [7.0]).percentile(80) == 7


def test_peak_bytes_are_counted_exactly():
    x = torch.zeros(1000)

    def call():
        y = x + 1          # 4000
        y = y * 2          # 8000 alive, then 4000
        return (y + y)     # 8000 alive

    assert peak_bytes(call) == 8000
    assert peak_bytes(lambda: x.view(10, 100)) == 0, "a view allocates nothing"
    assert peak_bytes(lambda: x.add_(1)) == 0
    result, peak, seconds = observed(lambda: x + 1)
    assert (float(result[0]), peak) == (2, 4000) and seconds > 0


def test_one_that_raises_is_told_and_ends_no_other():
    def second(calls):
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("again")

    failed: dict[str, Exception] = {}
    functions = {"first": lambda: 1 / 0, "second": partial(second, []), "right": lambda: None}
    times = take_turns(functions, threads=1, seconds=0, fewest=3, failed=failed)
    assert list(times) == ["right"] and {name: type(error) for name, error in failed.items()} == {
        "first": ZeroDivisionError, "second": ValueError}
    with pytest.raises(ZeroDivisionError):
        take_turns(functions, threads=1, seconds=0, fewest=1, warm_up=0)
