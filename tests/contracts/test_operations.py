"""L11 chunk size, L12 gradient and L16 refusal for every operation of kernels/: all forms against naive.

Operations and their cases are discovered (operations.py), so a new operation needs no line here.
"""

import inspect
import itertools
from functools import cache

import pytest
import torch
from torch.utils._pytree import tree_map

from kernels.errors import RereadError, UnsupportedUse
from kernels.triton_mode import interpreted
from tests.contracts.operation_cases import CASES, optional_groups, settings_of
from tests.contracts.operation_inputs import Tensors, draw, values
from tests.contracts.operation_runs import TOLERANCE, Results, call, error, evaluate, named, real_outputs
from tests.contracts.operations import OPERATIONS, Case

every_case = pytest.mark.parametrize("case", CASES, ids=str)
untuned = pytest.mark.parametrize("case", [case for case in CASES if not case.tuned], ids=str)
every_operation = pytest.mark.parametrize("name", OPERATIONS)
REPRESENTATIVE = [case for case in CASES if not case.optional or "state" in case.optional or "table" in case.optional]


def first(name: str) -> Case:
    return next(case for case in CASES if case.operation == name)


def fullest(name: str) -> Case:
    return max((case for case in CASES if case.operation == name), key=lambda case: len(case.optional))


@cache
def truth(case: Case, L: int) -> Results:
    return evaluate(case, draw(case, L), backend="naive")


@pytest.mark.parametrize(("case", "L"), [(case, L) for case in CASES for L in ((5,) if case.tuned else (1, 5, 63))], ids=str)
def test_l12_fast_is_naive(case, L):
    assert error(evaluate(case, draw(case, L), backend="chunked"), truth(case, L)) <= TOLERANCE[torch.float64]


@every_operation
def test_l12_fast_is_naive_on_long_rows(name):
    """Long enough for other forms than short rows take; the defaults alone, and with everything that goes with them."""
    for case in {first(name), fullest(name)}:
        assert error(evaluate(case, draw(case, 130)), truth(case, 130)) <= TOLERANCE[torch.float64], str(case)
    case = first(name)
    with torch.no_grad():
        got, expected = ({"y": call(case, draw(case, 700), backend=backend)[0]} for backend in ("auto", "naive"))
    assert error(got, expected) <= TOLERANCE[torch.float64]


@every_case
def test_l12_fast_is_naive_in_float32(case):
    for L in (1, 70):
        got = evaluate(case, draw(case, L, torch.float32), backend="chunked")
        expected = evaluate(case, tree_map(_double, draw(case, L, torch.float32)), backend="naive")
        assert error(got, expected) <= TOLERANCE[torch.float32], L


def _double(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


@untuned
def test_without_gradients_and_without_state_the_result_is_the_same(case):
    """Other code may run then."""
    tensors = draw(case, 63)
    with torch.no_grad():
        y, state = call(case, draw(case, 63))
        alone = case.function(**draw(case, 63), **dict(case.settings))
    got = named(real_outputs(case, tensors, y), state)
    assert error(got, {name: truth(case, 63)[name] for name in got}) <= TOLERANCE[torch.float64]
    assert error({"y": real_outputs(case, tensors, alone)}, {"y": truth(case, 63)["y"]}) <= TOLERANCE[torch.float64]


@pytest.mark.parametrize("case", [case for case in REPRESENTATIVE if "chunk" in case.parameters and not case.tuned], ids=str)
def test_l11_the_chunk_changes_nothing(case):
    for L, chunks in ((13, (1, 3, 18)), (63, (16, 64))):
        for chunk in chunks:
            got = evaluate(case, draw(case, L), chunk=chunk, backend="chunked")
            assert error(got, truth(case, L)) <= TOLERANCE[torch.float64], (L, chunk)


@every_operation
def test_l12_gradients_are_derivatives(name):
    """Central differences in float64 over every real-valued argument, with state."""
    case, tensors = fullest(name), draw(fullest(name), 4, lengths=(4, 2, 0))
    floats = [n for n, x in tensors.items() if n != "state" and x.is_floating_point()]

    def forward(*leaves):
        y, state = call(case, {**tensors, **dict(zip(floats, leaves))})
        outputs = named(real_outputs(case, tensors, y), state)
        return tuple(x for x in outputs.values() if x.is_floating_point() and x.requires_grad)

    leaves = [tensors[n].clone().requires_grad_() for n in floats]
    assert torch.autograd.gradcheck(forward, leaves, atol=1e-7, rtol=1e-5, fast_mode=True)


@pytest.mark.parametrize("L", [9, 300])
@every_operation
def test_strides_do_not_matter(name, L):
    """Arguments in another memory order, and a cotangent that is one number expanded."""
    case = fullest(name)
    found = []
    for turn in (_kept, _turned):
        leaves = {n: tree_map(lambda x: turn(x).requires_grad_(x.is_floating_point()), x)  # noqa: B023
                  for n, x in draw(case, L).items()}
        y, state = call(case, leaves)
        outputs = {n: x for n, x in named(y, state).items() if x.is_floating_point()}
        wanted = [x for n, x in leaves.items() if n != "state" and x.is_floating_point()]
        total = sum(x.sum() for x in outputs.values())
        found.append(outputs | dict(zip(map(str, range(99)), torch.autograd.grad(total, wanted, materialize_grads=True))))
    assert error(*map(_detached, found)) <= TOLERANCE[torch.float64]


def _kept(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def _turned(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, every axis elsewhere in memory, with gaps between."""
    axes = list(reversed(range(x.dim())))
    wide = x.permute(axes).repeat_interleave(2, dim=-1)
    return wide[..., ::2].permute(axes)


def _detached(results: Results) -> Results:
    return {("d " if n.isdigit() else "") + n: x.detach() for n, x in results.items()}


@pytest.mark.parametrize("mode", ["off", "on", "used"])
@pytest.mark.parametrize("case", REPRESENTATIVE, ids=str)
def test_arguments_are_never_modified(case, mode):
    """At most a state, and that when gradients are off only."""
    for backend in ("naive", "chunked"):
        tensors, before = draw(case, 13), draw(case, 13)
        with torch.set_grad_enabled(mode != "off"):
            if mode == "used":
                evaluate_in_place(case, tensors, backend)
            else:
                call(case, tensors, backend=backend)
        for name in set(tensors) - ({"state"} if mode == "off" else set()):
            assert _same(tensors[name], before[name]), (backend, name)


def evaluate_in_place(case: Case, tensors: Tensors, backend: str) -> None:
    """Forward and backward with the tensors themselves as leaves; a state takes no gradient."""
    leaves = [x.requires_grad_() for name, x in tensors.items() if name != "state" and x.is_floating_point()]
    y, state = call(case, tensors, backend=backend)
    sum(x.sum() for x in named(y, state).values()).backward(inputs=leaves)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return all(map(torch.equal, a, b))


@every_operation
def test_l16_unknown_backends_are_refused(name):
    case = first(name)
    with pytest.raises(UnsupportedUse, match=r"unknown backend 'no_such_backend'; choose .*'chunked'"):
        call(case, draw(case, 5), backend="no_such_backend")


@pytest.mark.skipif(interpreted(), reason="Triton runs on CPUs in its interpreter")
@pytest.mark.parametrize("backend", ["triton", "fla", "mamba_ssm"])
@every_operation
def test_l16_gpu_forms_are_refused_on_cpus_with_a_remedy(name, backend):
    case = first(name)
    with pytest.raises(UnsupportedUse, match=r"choose 'auto'|[Uu]se backend='auto'"):
        call(case, draw(case, 5, torch.float32), backend=backend)


def tied_axes(case: Case) -> list[tuple[str, int]]:
    """(argument, axis) whose length another argument has as well."""
    names = [name for name in case.tensors if name != "state"]
    lengths = {name: case.letters(name).replace("M", "L" if case.tied else "M") for name in names}
    return [(name, axis) for name in names for axis, letter in enumerate(lengths[name])
            if letter not in "1PT" and sum(letter in other for other in lengths.values()) > 1]


@every_operation
def test_l16_shapes_that_do_not_belong_together_are_refused(name):
    """One row, token, head or channel too many in any one argument: our own error, before any arithmetic."""
    taken = []
    for case, backend in itertools.product({first(name), fullest(name)}, ("naive", "chunked")):
        for argument, axis in tied_axes(case):
            tensors = draw(case, 5)
            tensors[argument] = torch.cat((tensors[argument], tensors[argument].narrow(axis, 0, 1)), dim=axis)
            try:
                call(case, tensors, backend=backend)
            except RereadError:
                continue
            except (RuntimeError, IndexError, ValueError) as error:
                taken.append(f"{case}, {backend}: {argument} too long along {axis}: {type(error).__name__}, not ours")
            else:
                taken.append(f"{case}, {backend}: {argument} too long along {axis}: taken")
    assert not taken, "\n".join(taken)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if "state" in first(name).parameters])
def test_l16_states_of_another_shape_or_type_are_refused(name):
    case = first(name).with_optional("state")
    for change in (lambda x: torch.cat((x, x[:1])), lambda x: x.float() if x.is_floating_point() else x):
        tensors = draw(case, 5)
        tensors["state"] = tree_map(change, tensors["state"])
        with pytest.raises(RereadError):
            call(case, tensors)


def test_every_setting_and_optional_argument_is_in_a_case():
    assert len(OPERATIONS) > 1
    for name, function in OPERATIONS.items():
        cases = [case for case in CASES if case.operation == name]
        for setting in {item for settings in settings_of(name) for item in settings.items()}:
            assert any(setting in case.settings for case in cases), setting
        for group in optional_groups(function):
            assert any(set(group) <= set(case.optional) for case in cases), group
        unknown = [n for n, p in inspect.signature(function).parameters.items()
                   if "Tensor" in str(p.annotation) and n not in {x for case in cases for x in case.tensors}]
        assert not unknown, f"{name}: no rule to draw {unknown}"


def test_drawn_values_keep_what_methods_ask_for():
    for case in CASES:
        tensors = draw(case, 9)
        for name, x in tensors.items():
            if name.startswith("log_decay"):
                assert x.max() <= 0
    assert values(CASES[0], "beta_BLH", [50], torch.Generator()).max() <= 1
