"""Near keys and summaries of closed chunks under one softmax: blocks of queries against one query at a time."""

import pytest
import torch

from kernels.errors import ConfigError, LayoutError
from kernels.summary_window import LOCALS, Places, Rule, reach, summary_window, summary_window_step
from kernels.summary_window.naive import summary_window_naive
from kernels.summary_window.near import check_rule
from tests.kernels.agreement import TOLERANCE, draw, error, with_gradients

B, H, K, V = 3, 2, 4, 5
RULES = [Rule(5, 4), Rule(7, 3, 2), Rule(1, 1), *(Rule(6, 3, 2, local) for local in LOCALS[1:])]
every_rule = pytest.mark.parametrize("rule", RULES, ids=str)


def inputs(L, rule, P=0, longest=0, dtype=torch.float64):
    """q, k, v, far_k, far_v, near, table, far, key bias; every one of them takes a gradient."""
    S, O, N = (longest + L) // rule.chunk * rule.rank, reach(rule), P + L
    shapes = [(B, L, H, K), (B, N, H, K), (B, N, H, V), (B, S, H, K), (B, S, H, V), (O, H, K), (H, O), (S, H, K), (B, N, H)]
    return [draw(*shape, dtype=dtype, seed=11 * i) for i, shape in enumerate(shapes)]


def outputs(form, leaves, rule, past_B=None, placed=True):
    places = Places(*leaves[5:]) if placed else None
    return [form(*leaves[:5], rule=rule, places=places, past_B=past_B)]


@every_rule
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("L", [1, 2, 63, 100])
def test_rows_from_their_start(L, dtype, rule):
    truth, leaves, weights = inputs(L, rule), inputs(L, rule, dtype=dtype), [draw(B, L, H, V, gradient=False)]
    results = []
    for form, tensors in ((summary_window_naive, truth), (summary_window, leaves)):
        call = lambda form=form, tensors=tensors: [o + 0 * sum(t.sum() for t in tensors) for o in outputs(form, tensors, rule)]  # noqa: E731
        results.append(with_gradients(call, tensors, weights))
    assert error(results[1], results[0]) <= TOLERANCE[dtype]


@every_rule
@pytest.mark.parametrize("L", [1, 70])
def test_rows_that_go_on(L, rule):
    P, counts = reach(rule) - 1, [25, reach(rule) // 2, 0]
    results = []
    for form in (summary_window_naive, summary_window):
        tensors = inputs(L, rule, P, 25)
        call = lambda form=form, tensors=tensors: [  # noqa: E731
            o + 0 * sum(t.sum() for t in tensors) for o in outputs(form, tensors, rule, torch.tensor(counts))]
        results.append(with_gradients(call, tensors, [draw(B, L, H, V, gradient=False)]))
    assert error(results[1], results[0]) <= TOLERANCE[torch.float64]


@every_rule
def test_a_step_is_a_row_of_one(rule):
    P, past_B = reach(rule) - 1, torch.tensor([25, reach(rule) // 2, 0])
    q, k, v, far_k, far_v, near, table, far, _ = inputs(1, rule, P, 25)
    expected = summary_window_naive(q, k, v, far_k, far_v, rule=rule, places=Places(near, table, far), past_B=past_B)
    by_offset = torch.einsum("bhk,ohk->bho", q[:, 0] * K**-0.5, near) + table
    by_slot = torch.einsum("bhk,shk->bhs", q[:, 0] * K**-0.5, far)
    got = summary_window_step(q[:, 0], k, v, far_k, far_v, rule=rule, past_B=past_B, near_BHO=by_offset, far_BHS=by_slot)
    assert error([got], [expected[:, 0]]) <= TOLERANCE[torch.float64]


@every_rule
def test_without_places(rule):
    tensors = inputs(40, rule)
    got, expected = (outputs(form, tensors, rule, placed=False) for form in (summary_window, summary_window_naive))
    assert error(got, expected) <= TOLERANCE[torch.float64]


def test_memory_is_linear_with_gradients():
    """What the graph keeps of a row twice as long is twice as much, although the weights are four times as many."""
    kept = []
    for L in (256, 512):
        rule, sizes = Rule(8, 2), set()
        tensors = inputs(L, rule)

        def keep(t, sizes=sizes):
            sizes.add((t.data_ptr(), t.numel()))
            return t

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            outputs(summary_window, tensors, rule)
        kept.append(sum(n for _, n in sizes))
    assert kept[1] <= 2.05 * kept[0]


def test_refusals():
    q, k, v, far_k, far_v, *_ = inputs(8, Rule(5, 4, 2))
    with pytest.raises(LayoutError, match="past_B"):
        summary_window(q[:, :4], k, v, far_k, far_v, rule=Rule(5, 4, 2))
    with pytest.raises(LayoutError, match="multiple of rank 2"):
        summary_window(q, k, v, far_k[:, :3], far_v[:, :3], rule=Rule(5, 4, 2))
    with pytest.raises(ConfigError, match="window 3 is smaller than chunk 4"):
        check_rule("x", Rule(3, 4))
    with pytest.raises(ConfigError, match="not a multiple of chunk 4"):
        check_rule("x", Rule(6, 4, local="blocks"))
