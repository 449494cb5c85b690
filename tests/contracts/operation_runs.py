"""One call of an operation with all its gradients, named, and the measure of agreement between two such results."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from tests.contracts.batches import T32, T64
from tests.contracts.operation_inputs import Tensors, along, is_real, real
from tests.contracts.operations import Case

Results = dict[str, torch.Tensor]  # "y", "state.0", …, and "d <argument>" for gradients
TOLERANCE = {torch.float64: T64, torch.float32: T32}


def leaf(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone(memory_format=torch.preserve_format).requires_grad_(x.is_floating_point())


def weights(x: torch.Tensor, first_row: int = 0) -> torch.Tensor:
    """A cotangent for (B, tokens, …): irregular, and the same for a row wherever it stands."""
    total = torch.ones((), dtype=torch.float64)
    for axis, length in enumerate(x.shape):
        index = torch.arange(length, dtype=torch.float64) + (first_row if axis == 0 else 0)
        total = total.unsqueeze(-1) + index * (1.7, 0.31, 2.3, 0.77)[axis]
    return torch.sin(total.square()).to(x.dtype)


def call(case: Case, tensors: Tensors, **options: Any) -> tuple[torch.Tensor, Any]:
    """(y, state or None)."""
    if "return_state" in case.parameters:
        return case.function(**tensors, **dict(case.settings), **options, return_state=True)
    return case.function(**tensors, **dict(case.settings), **options), None


def named(y: torch.Tensor, state: Any) -> Results:
    return {"y": y, **{f"state.{i}": part for i, part in enumerate(tree_leaves(state)) if part is not None}}


def real_outputs(case: Case, tensors: Tensors, y: torch.Tensor) -> torch.Tensor:
    """y with zeros at pads, where it means nothing."""
    counted = real(case, tensors, "L")
    return y if counted is None else torch.where(is_real(y, counted), y, 0)


def gradients(outputs: Results, leaves: Tensors, first_row: int = 0) -> Results:
    """Of a weighted sum of all real-valued outputs, with respect to every real-valued leaf."""
    loss = sum((x * weights(x, first_row)).sum() for x in outputs.values() if x.is_floating_point())
    wanted = {f"d {name}{f'.{i}' if name == 'state' else ''}": x for name, value in leaves.items()
              for i, x in enumerate(tree_leaves(value)) if x.is_floating_point()}
    if not loss.requires_grad:  # rows of no tokens may be answered without a graph
        return {name: torch.zeros_like(x) for name, x in wanted.items()}
    found = torch.autograd.grad(loss, list(wanted.values()), materialize_grads=True)
    return dict(zip(wanted, found))


def evaluate(case: Case, tensors: Tensors, *, first_row: int = 0, autocast: bool = False, **options: Any) -> Results:
    """Outputs at real tokens, the state left behind, and gradients that arrive through both."""
    leaves = {name: tree_map(leaf, x) for name, x in tensors.items()}
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):  # the backward pass belongs outside
        y, state = call(case, leaves, **options)
    outputs = named(real_outputs(case, tensors, y), state)
    return {name: x.detach() for name, x in outputs.items()} | gradients(outputs, leaves, first_row)


def error(got: Results, expected: Results) -> float:
    """The largest max|a - b| / max|b| of a tensor. max|b| counts as at least a tenth of the greatest gradient or
    output: some gradients are zero by their nature. Integers must be equal."""
    assert got.keys() == expected.keys()
    worst = 0.0
    for kind in (False, True):  # outputs, gradients
        names = [name for name in expected if name.startswith("d ") == kind]
        greatest = max((float(expected[n].abs().max()) for n in names if _real(expected[n])), default=0.0)
        for name in names:
            a, b = got[name], expected[name]
            assert a.shape == b.shape, (name, a.shape, b.shape)
            if not b.is_floating_point():
                assert torch.equal(a, b), name
            elif b.numel():
                difference = float((a.double() - b.double()).abs().max())
                assert difference == difference, f"NaN in {name}"
                scale = max(float(b.abs().max()), greatest / 10, 1e-300)
                worst = max(worst, difference / scale)
    return worst


def _real(x: torch.Tensor) -> bool:
    return x.is_floating_point() and x.numel() > 0


def row_of(case: Case, results: Results, tensors: Tensors, b: int) -> Results:
    """Row b's part of a batch's results, pads cut off; without gradients that all rows share."""
    found = {}
    for name, x in results.items():
        letters = "BL" if name == "y" else "B" if "state" in name else case.letters(name.removeprefix("d "))
        if letters.startswith("B"):
            axis = along(letters)
            counted = real(case, tensors, axis) if axis else None
            found[name] = x[b:b + 1] if counted is None else x[b:b + 1, :int(counted[b])]
    return found


def shared_gradients(case: Case, results: Results) -> Results:
    """Gradients of tensors that all rows have in common."""
    return {name: x for name, x in results.items()
            if name.startswith("d ") and not name.startswith("d state") and not case.letters(name[2:]).startswith("B")}
