"""L1 padding, L3 batch, L4 causality and L5 dependence for every operation of kernels/, on rows of their own length."""

import pytest
import torch
from torch.utils._pytree import tree_map

from tests.contracts.operation_cases import CASES
from tests.contracts.operation_inputs import BOUNDED, B, Tensors, along, draw, fill_pads, is_real, real, row
from tests.contracts.operation_runs import TOLERANCE, call, error, evaluate, row_of, shared_gradients
from tests.contracts.operations import Case

PADDED = [case for case in CASES if not case.tuned and ("lengths_B" in case.optional or "context_B" in case.optional)]
BATCHED = [case for case in CASES if not case.optional or case in PADDED or "past_BPD" in case.optional]
CAUSAL = [case for case in CASES if case.causal and not case.tuned]
BACKENDS = ("naive", "chunked")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", PADDED, ids=str)
def test_l1_a_padded_row_is_the_row_alone(case, backend):
    """Outputs, gradients and states, for whatever finite value stands at pads; no gradient arrives there."""
    tensors = draw(case, 13, lengths=(13, 6, 0))
    alone = [evaluate(case, row(case, tensors, b), backend=backend, first_row=b) for b in range(B)]
    shared = [shared_gradients(case, results) for results in alone]
    summed = {name: sum(one[name] for one in shared) for name in shared[0]}
    for value in (0.0, -7.0, 1e30) if backend == "chunked" else (1e30,):
        got = evaluate(case, fill_pads(case, tensors, value), backend=backend)
        for b, expected in enumerate(alone):
            assert error(row_of(case, got, tensors, b), {n: x for n, x in expected.items() if n not in summed}
                         ) <= TOLERANCE[torch.float64], (value, b)
        assert error(shared_gradients(case, got), summed) <= TOLERANCE[torch.float64], value
        for name, gradient in at_pads(case, got, tensors).items():
            assert not gradient.any(), (value, name)


def at_pads(case: Case, results: Tensors, tensors: Tensors) -> Tensors:
    """Gradients into pads."""
    found = {}
    for name, x in results.items():
        letters = case.letters(name[2:]) if name.startswith("d ") and "state" not in name else ""
        counted = real(case, tensors, along(letters)) if along(letters) else None
        if counted is not None:
            found[name] = torch.where(is_real(x, counted), 0, x)
    return found


@pytest.mark.parametrize("case", [case for case in CASES if case.operation == "short_conv" or (
    case.causal and "lengths_B" not in case.optional and not case["return_state"])], ids=str)
def test_l1_causal_outputs_ignore_what_comes_after_them(case):
    """Pads that nobody counts stand behind every real token: y and gradients are the shorter row's."""
    tensors = draw(case, 13)
    names = [n for n in tensors if n != "state" and along(case.letters(n)) and (case.tied or "L" in case.letters(n))]
    short = {**tensors, **{n: tensors[n][:, :8] for n in names}}
    filled = {n: x.clone() for n, x in tensors.items() if n in names}
    for n, x in filled.items():
        if x.is_floating_point():
            x[:, 8:] = -1e4 if n.startswith("log_decay") else 1e4
    with torch.no_grad():
        got, expected = ({"y": call(case, tree_map(torch.clone, x))[0][:, :8]} for x in ({**tensors, **filled}, short))
    assert error(got, expected) <= TOLERANCE[torch.float64]


@pytest.mark.parametrize("case", BATCHED, ids=str)
def test_l3_a_row_alone_is_the_row_in_a_batch(case):
    """Beside rows a hundred times as large."""
    tensors = draw(case, 21, lengths=(21, 6, 0))
    gates = [n for n in tensors if n == "state" or n.rpartition("_")[0] in BOUNDED or not n.startswith(("q", "k", "v", "x", "past"))]
    for b in range(B):
        loud = torch.full((B,), 100.0, dtype=torch.float64)
        loud[b] = 1
        mixed = {n: x if n in gates or not x.is_floating_point() or not case.letters(n).startswith("B") or (
            n.startswith("k_") and "beta_BLH" in tensors) else x * loud.view(-1, *[1] * (x.dim() - 1)) for n, x in tensors.items()}
        expected = evaluate(case, row(case, tensors, b), first_row=b)
        got = row_of(case, evaluate(case, mixed), tensors, b)
        assert error(got, {n: expected[n] for n in got}) <= TOLERANCE[torch.float64], b


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CAUSAL, ids=str)
def test_l4_the_future_changes_nothing(case, backend):
    """Tokens from t on redrawn fifty times as large: earlier outputs stay, and no gradient goes there."""
    L = 8
    tensors, other = draw(case, L, lengths=(L,) * B), draw(case, L, lengths=(L,) * B, seed=7)
    for t in (1, 5):
        changed = {n: redrawn(case, n, x, other[n], t) for n, x in tensors.items()}
        leaves = {n: x.clone().requires_grad_() if n != "state" and x.is_floating_point() else x for n, x in tensors.items()}
        y = call(case, leaves, backend=backend)[0][:, :t]
        got = call(case, changed, backend=backend)[0][:, :t]
        assert error({"y": got}, {"y": y.detach()}) <= 1e-12, t
        wanted = [n for n in leaves if tokens(case, n)]
        for name, gradient in zip(wanted, torch.autograd.grad(y.sum(), [leaves[n] for n in wanted], materialize_grads=True)):
            assert not gradient[:, t:].any(), (t, name)


def tokens(case: Case, name: str) -> bool:
    """Whether a real-valued argument runs along the row's own tokens."""
    letters = case.letters(name)
    return name not in ("state", "position_BL") and ("L" in letters or ("M" in letters and case.tied))


def redrawn(case: Case, name: str, x: torch.Tensor, other: torch.Tensor, t: int) -> torch.Tensor:
    if not tokens(case, name):
        return x
    factor = 1 if name.rpartition("_")[0] in ("beta", "decay") or ("beta_BLH" in case.parameters and name == "k_BLHK") else 50
    return torch.cat((x[:, :t], factor * other[:, t:]), dim=1)


@pytest.mark.parametrize("case", [case for case in CAUSAL if "state" not in case.optional and "position_BL" not in case.optional
                                  and not any(n.startswith("past") for n in case.optional)], ids=str)
def test_l5_the_last_output_depends_on_every_token_within_reach(case):
    """And on no other."""
    L = 11
    tensors = draw(case, L, lengths=(L,) * B)
    names = [n for n in tensors if tokens(case, n)]
    leaves = {n: x.clone().requires_grad_() if n in names else x for n, x in tensors.items()}
    y = call(case, leaves)[0][0, -1]
    found = torch.autograd.grad((y * torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(3))).sum(),
                                [leaves[n] for n in names], materialize_grads=True)
    seen = {j for j in range(L) if any(gradient[0, j].abs().max() > 1e-9 for gradient in found)}
    exactly = {j for j in range(L) if any(gradient[0, j].any() for gradient in found)}
    expected = readable(case, L - 1)
    assert expected <= seen and exactly <= expected | {L - 1}
    assert not any(gradient[1:].any() for gradient in found), "another row"


def readable(case: Case, p: int) -> set[int]:
    """Tokens that the output at position p may depend on."""
    if case.operation == "window":
        return set(range(max(0, p - case["window"] + 1), p + 1))
    if case.operation == "short_conv":
        return set(range(p - 2, p + 1))
    if case["closed"]:
        return set(range(p // case["closed"] * case["closed"]))
    return set(range(p + 1))
