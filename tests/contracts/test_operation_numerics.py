"""L13 edges and L14 numerics for every operation of kernels/, by cases that are read off the signatures."""

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from tests.contracts.batches import T16
from tests.contracts.operation_cases import CASES
from tests.contracts.operation_inputs import along, draw
from tests.contracts.operation_runs import TOLERANCE, call, error, evaluate, named, real_outputs
from tests.contracts.operations import OPERATIONS, Case

FULL = [max((case for case in CASES if case.operation == name), key=lambda case: len(case.optional)) for name in OPERATIONS]
PLAIN = [next(case for case in CASES if case.operation == name) for name in OPERATIONS]
BOTH = list(dict.fromkeys((*PLAIN, *FULL, *(case for case in CASES if case["causal"] is False))))
cases = pytest.mark.parametrize("case", BOTH, ids=str)
DECAYS = (0.0, -1e-4, -30.0, -1e4)


def double(tensors):
    return tree_map(lambda x: x.double() if x.is_floating_point() else x, tensors)


def disagreement(got: dict, expected: dict) -> float:
    """Relative Frobenius norm, outputs and gradients apart."""
    found = 0.0
    for kind in (False, True):
        a, b = (torch.cat([x[n].double().flatten() for n in expected if n.startswith("d ") == kind and x[n].is_floating_point()])
                for x in (got, expected))
        found = max(found, float((a - b).norm() / b.norm().clamp(min=1e-300)))
    return found


@pytest.mark.parametrize("backend", ["naive", "chunked"])
@cases
def test_l13_no_tokens(case, backend):
    """Shapes, the state given back, and gradients of rows, batches and contexts of nothing."""
    for tensors in (draw(case, 0), draw(case, 5, sizes={"B": 0}), *([draw(case, 5, sizes={"M": 0})] if not case.tied else [])):
        results = evaluate(case, tensors, backend=backend)
        first = next(x for n, x in tensors.items() if "L" in case.letters(n))
        assert results["y"].shape[:2] == first.shape[:2]
        assert all(x.isfinite().all() for x in results.values())
    if "state" in case.optional and case.causal:
        got = call(case, draw(case, 0), backend=backend)[1]
        assert all(map(torch.equal, tree_leaves(got), tree_leaves(draw(case, 0)["state"]))) or "prefix_B" in case.parameters


@cases
def test_l13_a_context_of_nothing_is_answered_by_zeros(case):
    counted = case.counts["M"]
    if counted not in ("context_B", "lengths_B") or case.tied or "state" in case.optional or along("M") is None:
        return
    if any("M" in case.letters(n) for n in case.tensors):
        assert not call(case, draw(case, 5, sizes={"M": 0}))[0].any()


@cases
def test_l14_fresh_memory_is_never_read(case):
    """NaN in it (as everywhere in this folder) or whatever lies there: the same bits."""
    for backend in ("naive", "chunked"):
        poisoned = evaluate(case, draw(case, 21), backend=backend)
        torch.utils.deterministic.fill_uninitialized_memory = False
        plain = evaluate(case, draw(case, 21), backend=backend)
        torch.utils.deterministic.fill_uninitialized_memory = True
        assert all(torch.equal(poisoned[name], plain[name]) for name in plain), backend


@cases
def test_l14_same_input_same_bits(case):
    one, two = (evaluate(case, draw(case, 70, torch.float32)) for _ in range(2))
    assert all(map(torch.equal, one.values(), two.values()))


@cases
def test_l14_bfloat16(case):
    """Outputs, state and gradients, against float64 on the same rounded numbers; states stay in float32."""
    tensors = draw(case, 70, torch.bfloat16)
    got, expected = evaluate(case, tensors), evaluate(case, double(tensors), backend="naive")
    assert got["y"].dtype == torch.bfloat16
    assert all(x.dtype in (torch.float32, torch.int64) for name, x in got.items() if name.startswith("state"))
    assert disagreement(got, expected) <= T16


@pytest.mark.parametrize("backend", ["naive", "chunked"])
@cases
def test_l14_autocast_rounds_no_sum(case, backend):
    tensors = draw(case, 40, torch.float32)
    expected = evaluate(case, double(tensors), backend="naive")
    got = evaluate(case, tensors, backend=backend, autocast=True)
    assert error(got, expected) <= TOLERANCE[torch.float32]


def forget(case: Case, tensors: dict, which: str) -> dict | None:
    """Decays of one strength, or of all strengths mixed; None where the operation has none."""
    found, generator = dict(tensors), torch.Generator().manual_seed(11)

    def pick(x):
        index = torch.randint(len(DECAYS), x.shape, generator=generator) if which == "mixed" else torch.full(x.shape, int(which))
        return torch.tensor(DECAYS, dtype=x.dtype)[index]

    for name, x in tensors.items():
        if name.startswith("log_decay"):
            found[name] = pick(x)
        elif name.startswith("delta_"):
            found[name] = -pick(x)  # times A = -1
        elif name.startswith("A_"):
            found[name] = torch.full_like(x, -1.0)
        elif name.startswith("decay"):
            found[name] = pick(x).exp().clamp(min=1e-30)
    return None if all(found[n] is tensors[n] for n in tensors) else found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("which", ["0", "1", "2", "3", "mixed"])
@pytest.mark.parametrize("case", [case for case in BOTH + [c for c in CASES if "BLH" in dict(c.shapes).values()]
                                  if forget(case, draw(case, 3), "0")], ids=str)
def test_l14_decays_of_every_strength(case, which, dtype):
    tensors = forget(case, draw(case, 70, dtype), which)
    got, expected = evaluate(case, tensors), evaluate(case, double(tensors), backend="naive")
    assert all(x.isfinite().all() for x in got.values())
    assert error(got, expected) <= TOLERANCE[dtype]


@cases
def test_l14_large_inputs_stay_finite(case):
    """|x| up to 1e3 in queries, keys, values and inputs, float32."""
    tensors = draw(case, 40, torch.float32)
    for name, x in tensors.items():
        if name.startswith(("q_", "k_", "v_", "x_")) and not (name == "k_BLHK" and "beta_BLH" in tensors):
            tensors[name] = (x * 1e3 / x.abs().max()) if x.numel() else x
    for backend in ("naive", "chunked"):
        assert all(x.isfinite().all() for x in evaluate(case, tensors, backend=backend).values()), backend


@pytest.mark.parametrize("case", [case for case in PLAIN if "return_state" in case.parameters and case.causal], ids=str)
def test_l14_states_of_long_rows_keep_float32_precision(case):
    small = {"B": 1, "H": 1, "D": 1, "K": 2, "V": 1, "R": 2, "F": 2, "N": 1}
    tensors = draw(case, 2**15, torch.float32, sizes=small)
    with torch.no_grad():
        y, state = call(case, tensors)
        y64, state64 = call(case, double(tensors))
    assert error(named(real_outputs(case, tensors, y), state), named(real_outputs(case, tensors, y64), state64)) <= TOLERANCE[torch.float32]
