"""L11 chunk size and L12 gradient for every operation of kernels/: all forms against naive, forward and backward.

Operations are discovered: a folder kernels/<op>/ whose function <op> takes a `backend`. Inputs are drawn from the
parameters' shape letters, so a new operation needs no line here.
"""

import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kernels
from kernels.errors import UnsupportedUse
from kernels.taylor.state import empty_state
from tests.contracts.batches import T32, T64, error

SIZES = {"B": 2, "M": 4, "H": 2, "K": 3, "V": 5, "D": 6, "R": 3, "C": 4, "P": 2, "W": 3, "E": 7, "F": 10}
LENGTHS = (1, 5, 63, 130)


def operations() -> dict[str, Callable]:
    found = {}
    for info in pkgutil.iter_modules(kernels.__path__):
        if info.ispkg:
            function = getattr(importlib.import_module(f"kernels.{info.name}"), info.name, None)
            if callable(function) and "backend" in inspect.signature(function).parameters:
                found[info.name] = function
    return found


OPERATIONS = operations()


def draw(name: str, L: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """A tensor for a parameter such as `q_BLHK`; integers for lengths and positions, (0, 1) for decays."""
    letters = name.rsplit("_", 1)[1]
    shape = [L if letter == "L" else SIZES[letter] for letter in letters]
    if name.startswith("lengths"):
        return torch.tensor([L, max(L - 3, 0)])
    if name.startswith("prefix"):
        return torch.tensor([SIZES["M"], 1])
    if name.startswith("position"):
        return torch.arange(L).repeat(SIZES["B"], 1) % 7
    value = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return value.sigmoid() * 0.3 + 0.7 if name.startswith("decay") else value


def optional(function: Callable) -> list[str]:
    names = inspect.signature(function).parameters
    return [name for name, p in names.items() if p.default is None and name.rsplit("_", 1)[-1].isupper()] + [
        name for name in ("state", "past_k") if name in names]


def inputs(function: Callable, extra: str, L: int, dtype: torch.dtype, seed: int = 0) -> tuple[list[Any], dict[str, Any]]:
    """Required arguments, and one optional one."""
    generator = torch.Generator().manual_seed(seed + L)
    positional, named = [], {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not parameter.empty and name != extra:
            continue
        if name == "state":
            state = empty_state(SIZES["B"], SIZES["H"], SIZES["K"], SIZES["V"], dtype)
            named[name] = type(state)(*(torch.randn(t.shape, generator=generator, dtype=torch.float64).to(dtype).abs() for t in state))
        elif name == "past_k":
            tokens = (SIZES["B"], 4, SIZES["H"])
            named["past_k"] = torch.randn(*tokens, SIZES["K"], generator=generator, dtype=torch.float64).to(dtype)
            named["past_v"] = torch.randn(*tokens, SIZES["V"], generator=generator, dtype=torch.float64).to(dtype)
            named["past_B"] = torch.tensor([4, 1])
        elif name.rsplit("_", 1)[-1].isupper():
            value = draw(name, L, dtype, generator)
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                positional.append(value)
            else:
                named[name] = value
        else:
            named[name] = SIZES["W"]
    return positional, named


def evaluate(function: Callable, positional: list[Any], named: dict[str, Any], **options: Any) -> list[torch.Tensor]:
    """Outputs and gradients. Pads at the end of a row, where `lengths_B` is given, mean nothing in y."""
    leaves = [value.clone().requires_grad_() if value.is_floating_point() else value for value in positional]
    named = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in named.items()}
    if "state" in named:
        named["state"] = type(named["state"])(*(t.clone() for t in named["state"]))
    extra = [value.requires_grad_() for value in named.values() if isinstance(value, torch.Tensor) and value.is_floating_point()]
    if "return_state" in inspect.signature(function).parameters:
        y, state = function(*leaves, **named, **options, return_state=True)
        outputs = [y, *state]
        plain = function(*leaves, **{k: v for k, v in named.items() if k != "state"}, **options) if "state" not in named else None
        if plain is not None:
            assert error([_real(plain, named)], [_real(y, named)]) <= tolerance(y.dtype)
    else:
        outputs = [function(*leaves, **named, **options)]
    outputs[0] = _real(outputs[0], named)
    generator = torch.Generator().manual_seed(1)
    loss = sum((o * torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.dtype)).sum() for o in outputs)
    wanted = [leaf for leaf in leaves if leaf.requires_grad] + extra
    gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
    return outputs + [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, gradients)]


def _real(y: torch.Tensor, named: dict[str, Any]) -> torch.Tensor:
    if "lengths_B" not in named:
        return y
    real_BL = torch.arange(y.shape[1]) < named["lengths_B"][:, None]
    return torch.where(real_BL[(..., *[None] * (y.dim() - 2))], y, 0)


def tolerance(dtype: torch.dtype) -> float:
    return T64 if dtype == torch.float64 else T32


RUNS = [(name, extra) for name, function in OPERATIONS.items() for extra in ["", *optional(function)]]
CHUNKED = [run for run in RUNS if "chunk" in inspect.signature(OPERATIONS[run[0]]).parameters]
every_run = pytest.mark.parametrize(("name", "extra"), RUNS, ids=[f"{name}-{extra or 'plain'}" for name, extra in RUNS])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@every_run
def test_l12_fast_is_naive(name, extra, dtype):
    function = OPERATIONS[name]
    for L in LENGTHS if dtype == torch.float64 else (1, 70):
        positional, named = inputs(function, extra, L, dtype)
        expected = evaluate(function, positional, named, backend="naive")
        for backend in ("auto", "chunked"):
            got = evaluate(function, positional, named, backend=backend)
            assert error(got[:1], expected[:1]) <= tolerance(dtype), (backend, L)
            assert error(got, expected) <= tolerance(dtype), (backend, L)
        # without gradients other code may run
        with torch.no_grad():
            y = function(*positional, **named, backend="auto")
        assert error([_real(y, named)], expected[:1]) <= tolerance(dtype), L


@pytest.mark.parametrize(("name", "extra"), CHUNKED, ids=[f"{name}-{extra or 'plain'}" for name, extra in CHUNKED])
def test_l11_the_chunk_changes_nothing(name, extra):
    function = OPERATIONS[name]
    for n in (13, 80):
        positional, named = inputs(function, extra, n, torch.float64)
        expected = evaluate(function, positional, named, backend="naive")
        for chunk in (1, 3, 16, 64, n + 5):
            got = evaluate(function, positional, named, chunk=chunk)
            assert error(got, expected) <= T64, (n, chunk)


@every_run
def test_l12_gradients_are_derivatives(name, extra):
    function = OPERATIONS[name]
    positional, named = inputs(function, extra, 5, torch.float64)
    floats = [i for i, value in enumerate(positional) if value.is_floating_point()]

    def forward(*values):
        arguments = list(positional)
        for i, value in zip(floats, values):
            arguments[i] = value
        return _real(function(*arguments, **named), named)

    with torch.enable_grad():
        leaves = [positional[i].clone().requires_grad_() for i in floats]
        assert torch.autograd.gradcheck(forward, leaves, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("name", OPERATIONS)
def test_long_rows_agree_in_all_forms(name):
    """Long enough for another form than short rows take."""
    function = OPERATIONS[name]
    positional, named = inputs(function, "", 700, torch.float64)
    with torch.no_grad():
        whole = function(*positional, **named)
        again = function(*positional, **named, backend="naive")
    assert error([whole], [again]) <= T64


@pytest.mark.parametrize("L", [9, 700])
@pytest.mark.parametrize("name", OPERATIONS)
def test_strides_do_not_matter(name, L):
    """Arguments in another memory order, and a cotangent that is one number expanded."""
    positional, named = inputs(OPERATIONS[name], "", L, torch.float64)
    results = []
    for turn in (False, True):
        leaves = [value.transpose(0, 1).clone().transpose(0, 1) if turn and value.dim() > 2 else value.clone() for value in positional]
        wanted = [leaf.requires_grad_() for leaf in leaves if leaf.is_floating_point()]
        results.append(torch.autograd.grad(OPERATIONS[name](*leaves, **named).sum(), wanted, allow_unused=True))
    assert error(list(results[1]), list(results[0])) <= T64


@pytest.mark.parametrize("name", OPERATIONS)
def test_unknown_backends_are_refused(name):
    positional, named = inputs(OPERATIONS[name], "", 5, torch.float64)
    with pytest.raises(UnsupportedUse, match="backend"):
        OPERATIONS[name](*positional, **named, backend="no_such_backend")


def test_some_operation_was_found():
    assert OPERATIONS
    assert len(set(itertools.chain.from_iterable(optional(function) for function in OPERATIONS.values()))) > 1
