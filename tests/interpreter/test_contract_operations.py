"""The contract's laws for the Triton form of every operation that has one: float32, interpreted, against naive in float64.

Operations and cases are those of tests/contracts/operation_cases.py; what refuses backend="triton" is left out, a case
that is refused for one of its optional tensors is tried without it.
"""

import pytest
import torch
from torch.utils._pytree import tree_map

from kernels.errors import UnsupportedUse
from tests.contracts.operation_cases import CASES, optional_groups
from tests.contracts.operation_inputs import draw, fill_pads, row
from tests.contracts.operation_pieces import begins, pieces, stripped
from tests.contracts.operation_runs import TOLERANCE, call, error, evaluate, named, real_outputs, row_of
from tests.contracts.operations import Case


def runs(case: Case) -> bool:
    try:
        with torch.no_grad():
            call(case, draw(case, 1, torch.float32, sizes={"B": 1, "H": 1}), backend="triton")
    except UnsupportedUse:
        return False
    except Exception:  # noqa: BLE001 - the laws will show it
        return True
    return True


def interpretable() -> list[Case]:
    """The plainest case of each operation, and each setting with every optional tensor that its kernels take."""
    found: dict[Case, None] = {}
    for name in dict.fromkeys(case.operation for case in CASES):
        mine = [case for case in CASES if case.operation == name and not any(isinstance(v, float) for _, v in case.settings)]
        plain = next((case for case in mine if not case.optional and runs(case)), None)
        if plain is None:
            continue
        found[plain] = None
        refused = {n for group in optional_groups(plain.function) if not runs(plain.with_optional(*group)) for n in group}
        for settings in dict.fromkeys(case.settings for case in mine if len(case.settings) <= len(plain.settings) + 1):
            full = max((case for case in mine if case.settings == settings), key=lambda case: len(case.optional))
            kept = tuple(name for name in full.optional if name not in refused)
            if settings == plain.settings or runs(full):
                found[Case(name, settings, kept, full.shapes)] = None
    return list(found)


@pytest.fixture(autouse=True)
def poisoned_memory():
    """NaN in fresh memory: what a kernel forgets to write is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


FORMS = interpretable()
BY_OPERATION = [[case for case in FORMS if case.operation == name] for name in dict.fromkeys(case.operation for case in FORMS)]
FULL = [max(cases, key=lambda case: len(case.optional)) for cases in BY_OPERATION]
SPLIT = [case for case in map(stripped, FULL) if begins(case)]
SMALL = {"B": 2, "H": 1}
T = TOLERANCE[torch.float32]


def inputs(case, L, dtype=torch.float32, **options):
    return draw(case, L, dtype, sizes=SMALL, **options)


def wide(tensors):
    return tree_map(lambda x: x.double() if x.is_floating_point() else x, tensors)


@pytest.mark.parametrize("case", FORMS, ids=str)
def test_l12_triton_is_naive(case):
    """Outputs, state and all gradients; the fullest case of an operation on one token and on more than a block of 64."""
    for L in (1, 70) if case in FULL else (5,):
        tensors = inputs(case, L)
        assert error(evaluate(case, tensors, backend="triton"), evaluate(case, wide(tensors), backend="naive")) <= T, L


@pytest.mark.parametrize("case", [case for case in FULL if "lengths_B" in case.optional], ids=str)
def test_l1_l3_a_padded_row_is_the_row_alone(case):
    """Whatever finite value stands at pads, beside a row of no tokens and one that is longer."""
    tensors = draw(case, 13, torch.float32, lengths=(13, 6, 0), sizes={"H": 1})
    quiet = evaluate(case, fill_pads(case, tensors, 0.0), backend="triton")
    loud = evaluate(case, fill_pads(case, tensors, 1e10), backend="triton")  # 1e30 squared is inf in float32
    for b in range(3):
        expected = evaluate(case, wide(row(case, tensors, b)), backend="naive", first_row=b)
        got = row_of(case, quiet, tensors, b)
        assert error(got, {name: expected[name] for name in got}) <= T, b
    for name in quiet:
        assert torch.equal(quiet[name], loud[name]), f"{name} depends on what stands at pads"


@pytest.mark.parametrize("case", [case for case in FULL if case.causal], ids=str)
def test_l4_the_future_changes_nothing(case):
    first, other = (inputs(case, 21, seed=seed, lengths=(21, 21)) for seed in (0, 7))
    t, changed = 9, dict(first)
    for name, x in first.items():
        if name != "state" and name.startswith(("q", "k_B", "v_B", "x")) and ("L" in case.letters(name) or case.tied):
            changed[name] = torch.cat((x[:, :t], (1 if "beta_BLH" in first else 50) * other[name][:, t:]), dim=1)
    with torch.no_grad():
        one, two = (call(case, tree_map(torch.clone, x), backend="triton")[0][:, :t] for x in (first, changed))
    assert error({"y": two}, {"y": one}) <= 1e-6


@pytest.mark.parametrize("case", SPLIT, ids=str)
def test_l7_pieces_are_the_whole(case):
    """Rows cut where they like, one piece of no tokens among them."""
    lengths = (13, 10) if "lengths_B" in case.optional else (13, 13)
    tensors = inputs(case, 13, lengths=lengths)
    prefix = tensors.get("prefix_B", torch.zeros(2, dtype=torch.int64)).tolist()
    cut = tuple(max(n, m) for n, m in zip((5, 0) if "lengths_B" in case.optional else (7, 7), prefix))
    expected = evaluate(case, wide(tensors), backend="naive")
    got = pieces(case, 13, lengths, [cut], "triton", torch.float32, SMALL)
    assert error({name: got[name] for name in expected}, expected) <= T


@pytest.mark.parametrize("case", FULL, ids=str)
def test_strides_do_not_matter_and_arguments_stay(case):
    plain = inputs(case, 9)
    turned = tree_map(lambda x: x.transpose(0, -1).repeat_interleave(2, dim=-1)[..., ::2].transpose(0, -1), plain)
    before = tree_map(torch.clone, turned)
    results = []
    for x in (turned, plain):
        y, state = call(case, x, backend="triton")
        results.append(named(real_outputs(case, plain, y), state))
    assert error(*results) <= T
    for name in turned:
        tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), turned[name], before[name])


@pytest.mark.parametrize("case", FULL, ids=str)
def test_l13_no_tokens(case):
    for tensors in (inputs(case, 0), draw(case, 5, torch.float32, sizes={"B": 0})):
        assert all(x.isfinite().all() for x in evaluate(case, tensors, backend="triton").values())


def test_forms_were_found():
    assert {"taylor", "prefix", "window"} <= {case.operation for case in FORMS} & {case.operation for case in SPLIT}
