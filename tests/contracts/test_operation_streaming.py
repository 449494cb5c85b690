"""L7 split and L8 identity for every operation of kernels/: a row in pieces is the row, whatever carries it on.

What carries a row on is a `state`, or the last tokens (`past_…`), or both. A prefix belongs to the first piece.
"""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from tests.contracts.operation_cases import CASES
from tests.contracts.operation_inputs import SIZES, STATE_TOKENS, B, draw
from tests.contracts.operation_pieces import begins, carries, pieces, stripped
from tests.contracts.operation_runs import TOLERANCE, call, error, evaluate, gradients, leaf, named
from tests.contracts.operations import OPERATIONS, WINDOW, Case

SPLIT = list(dict.fromkeys(case for case in map(stripped, CASES) if begins(case) and not case.tuned and case.unit <= WINDOW and (
    "lengths_B" in case.optional or "lengths_B" not in case.parameters)))
# where each row is cut; "even": all rows alike
CUTS = {"even": [(7, 7, 7)], "nothing": [(0, 0, 0), (13, 13, 13)], "one": [(1, 1, 1), (2, 2, 2)],
        "ragged": [(5, 0, 6), (5, 6, 6), (12, 9, 6)]}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("case", SPLIT, ids=str)
def test_l7_pieces_are_the_whole(case, cut):
    """Outputs, last state, and every gradient, also those that flow back through the state."""
    L = 13 * case.unit
    ragged = "lengths_B" in case.parameters
    lengths = tuple(n * case.unit for n in (13, 10 if cut == "ragged" else 13, 6 if cut == "ragged" else 13)) if ragged else (L,) * B
    prefix = draw(case, L, lengths=lengths).get("prefix_B", torch.zeros(B, dtype=torch.int64)).tolist()  # never cut
    cuts = [tuple(max(min(n * case.unit, limit), m) for n, limit, m in zip(row, lengths, prefix)) for row in CUTS[cut]]
    expected = evaluate(case, draw(case, L, lengths=lengths), backend="naive")
    for backend in ("chunked",) if case.unit > 1 or cut != "ragged" else ("naive", "chunked"):
        got = pieces(case, L, lengths, cuts, backend)
        assert error({n: got[n] for n in expected}, expected) <= TOLERANCE[torch.float64], backend


@pytest.mark.parametrize("case", [case for case in SPLIT if "state" in case.optional], ids=str)
def test_l8_no_tokens_leave_the_state_as_it_was(case):
    """Rows of length 0, and rows of pads only; bit for bit. A prefix of nothing adds nothing."""
    for L in (0, 4):
        for backend in ("naive", "chunked"):
            tensors = draw(case, L, lengths=(0, 0, 0))
            if "prefix_B" in tensors:
                tensors["prefix_B"] = torch.zeros_like(tensors["prefix_B"])
            y, state = call(case, tree_map(torch.clone, tensors), backend=backend)
            got, expected = named(y, state), named(y, tensors["state"])
            if "prefix_B" in tensors:  # it begins documents, another operation goes on with them
                assert error(got, expected) <= 1e-14
            else:
                assert all(map(torch.equal, got.values(), expected.values())), (L, backend)


def steps() -> list[tuple[Callable, Case]]:
    """Functions of one token, <op>_step, with each case of the operation that has the same arguments and settings."""
    found = []
    for package in sorted({function.__module__.split(".")[1] for function in OPERATIONS.values()}):
        module = importlib.import_module(f"kernels.{package}")
        for name, step in vars(module).items():
            if name.endswith("_step") and inspect.isfunction(step) and step.__module__.startswith(module.__name__):
                found += [(step, case) for case in CASES if matches(step, case, package)]
    return found


def matches(step: Callable, case: Case, package: str) -> bool:
    given = {stem(name) for name in (*case.tensors, *carries(case), *dict(case.settings)) if name not in ("lengths_B",)}
    needed = {stem(n) for n, p in inspect.signature(step).parameters.items() if p.default is p.empty}
    known = {stem(name) for name in inspect.signature(step).parameters}
    return (case.function.__module__.startswith(f"kernels.{package}") and case.causal and needed <= given <= known
            and "state" not in case.optional and "past_BPD" not in case.optional)


def stem(name: str) -> str:
    head, _, last = name.rpartition("_")
    return head if head and last.isupper() else name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize(("step", "case"), steps(), ids=lambda value: value.__name__ if inspect.isfunction(value) else str(value))
def test_l8_steps_are_the_operation(step, case, dtype):
    """Token by token: outputs, last state and gradients; and the same without gradients, where a step may overwrite."""
    case = Case(case.operation, case.settings, tuple(n for n in case.optional if n != "lengths_B"), case.shapes)
    L = 6
    expected = evaluate(case, {n: x.double() if x.is_floating_point() else x for n, x in draw(case, L, dtype).items()}, backend="naive")
    for gradient in (True, False):
        tensors = {n: tree_map(leaf, x) for n, x in draw(case, L, dtype).items()}
        carried = {n: x for n, x in zip(carries(case), (first_state(case, dtype),))}
        ys, name = [], next(iter(carried))
        with torch.set_grad_enabled(gradient):
            for t in range(L):
                token = {n: x[:, t] if any(a in case.letters(n) for a in "LM") else x for n, x in tensors.items()}
                token = {renamed(step, n): x for n, x in token.items()}
                before = tree_map(torch.clone, carried[name])
                y, after = step(**token, **carried, **dict(case.settings))
                if gradient:
                    assert all(map(torch.equal, _parts(before), _parts(carried[name]))), "the state given was overwritten"
                carried[name] = after
                ys.append(y.clone())
            results = named(torch.stack(ys, dim=1), carried[name] if name == "state" else None)
        got = {n: x.detach() for n, x in results.items()} | (gradients(results, tensors) if gradient else {})
        assert error(got, {n: expected[n] for n in got}) <= TOLERANCE[dtype], gradient


def _parts(state: Any) -> tuple[torch.Tensor, ...]:
    return (state,) if isinstance(state, torch.Tensor) else tuple(state)


def renamed(step: Callable, name: str) -> str:
    return next(n for n in inspect.signature(step).parameters if stem(n) == stem(name))


def first_state(case: Case, dtype: torch.dtype) -> Any:
    """The state before the first token: what rows of no tokens leave."""
    if "state" not in case.parameters:
        return torch.zeros(B, SIZES["K"] - 1, SIZES["D"], dtype=dtype)
    with torch.no_grad():
        return call(case, draw(case, 0, dtype), backend="naive")[1]


def test_steps_were_found():
    assert {step.__module__.split(".")[1] for step, _ in steps()} >= {"taylor", "short_conv", "gated_scan", "orthogonal_memory"}
    assert len({case.operation for case in SPLIT}) > 5 and max(STATE_TOKENS) > 0
