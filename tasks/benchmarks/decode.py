"""Decode steps against context: one token for every row, from a state such as that context leaves.

The state is made, not read: a state of fixed size costs the same whatever it holds, and a cache of keys and values costs
what its length says.
"""

from __future__ import annotations

import copy

import torch

from tasks.benchmarks import machine, refusals, registry
from tasks.benchmarks.conditions import Conditions
from tasks.benchmarks.operation import TOLERANCE, Operation, Setting, Step
from tasks.benchmarks.rows import relative, row, timed
from tasks.benchmarks.sections import DECODE, Decode
from tasks.benchmarks.sweep import compare
from tasks.timing import observed


def points(section: Decode, conditions: Conditions) -> list[int]:
    """The contexts."""
    contexts = [n for n in section.contexts if not conditions.lengths or n in conditions.lengths]
    return contexts if conditions.wanted(section.operations) else []


@torch.no_grad()
def measure(section: Decode, context: int, conditions: Conditions) -> list[dict]:
    """The rows of one context."""
    setting = Setting(context, section.batch, section.heads, conditions.torch_dtype, conditions.device, conditions.seed, False)
    rows = []
    for operation in registry.choose(conditions.wanted(section.operations)):
        if operation.step is not None:
            rows.append(_row(operation, setting, section, conditions))
    return compare(rows)


def _row(operation: Operation, setting: Setting, section: Decode, conditions: Conditions) -> dict:
    step = operation.step
    found = row(op=operation.name, backend=step.backend, measure=DECODE, n=setting.n, batch=setting.batch,
                heads=setting.heads, **conditions.label, tolerance=TOLERANCE[setting.dtype], truth=step.truth_name)
    refusals.attempt(found, lambda: _fill(found, step, setting, section, conditions), setting.device)
    return found


def _fill(found: dict, step: Step, setting: Setting, section: Decode, conditions: Conditions) -> None:
    parts, state_bytes = step.prepare(setting)
    wanted = step.truth(_doubled(parts))
    y, peak, _ = observed(lambda: step.call(parts), setting.device)
    found |= {"state_bytes": state_bytes, "bytes": state_bytes}
    refusals.hold(found, relative(y, wanted))
    times = conditions.clock({"step": lambda: step.call(parts)}, seconds=section.seconds, fewest=section.fewest,
                             warm_up=3, most=400)["step"]
    found |= {**timed(times), "peak_bytes": peak, "tokens_per_second": setting.batch / times.best}
    bandwidth = machine.bandwidth(setting.device)
    if bandwidth:
        found["floor_fraction"] = state_bytes / bandwidth / times.best


def _doubled(value: object) -> object:
    """A copy in float64 of whatever a step holds: tensors, tuples of them, counts."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value.clone()
    if isinstance(value, dict):
        return {name: _doubled(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return type(value)(*map(_doubled, value)) if hasattr(value, "_fields") else tuple(map(_doubled, value))
    return copy.copy(value)
