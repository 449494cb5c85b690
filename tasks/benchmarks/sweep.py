"""Operations against length and batch, forward or forward and backward: check, then time in turns what passed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from tasks.benchmarks import machine, refusals, registry
from tasks.benchmarks.conditions import Conditions
from tasks.benchmarks.operation import (
    NAIVE_TOKENS,
    PROOF_TOLERANCE,
    TOLERANCE,
    Implementation,
    Inputs,
    Operation,
    Setting,
    Truth,
    doubled,
)
from tasks.benchmarks.rows import Red, relative, row, shown, timed
from tasks.benchmarks.sections import BACKWARD, FORWARD, Sweep
from tasks.timing import Times, observed


@dataclass
class Candidate:
    """One implementation at one point, and what its check found."""

    operation: Operation
    form: Implementation
    function: Callable[[], object]
    error: float = math.inf
    truth: str = ""
    problem: Exception | None = None       # what its call raised
    peak: int | None = None

    @property
    def key(self) -> str:
        return f"{self.operation.name}/{self.form.name}"


def points(section: Sweep, conditions: Conditions) -> list[tuple[int, int]]:
    """(batch, length) of every point."""
    lengths = [n for n in section.lengths if not conditions.lengths or n in conditions.lengths]
    return [(batch, n) for batch in section.batches for n in lengths] if conditions.wanted(section.operations) else []


def measure(section: Sweep, point: tuple[int, int], conditions: Conditions) -> list[dict]:
    """The rows of one point. On a CPU all operations take turns; on a GPU one after another, which spares memory."""
    batch, n = point
    setting = Setting(n, batch, section.heads, conditions.torch_dtype, conditions.device, conditions.seed, section.padded)
    names = conditions.wanted(section.operations)
    groups = [names] if conditions.device == "cpu" else [(name,) for name in names]
    rows: list[dict] = []
    with torch.set_grad_enabled(section.backward):
        for group in groups:
            rows += _together(section, group, setting, conditions)
    return compare(rows)


def _together(section: Sweep, names: tuple[str, ...], setting: Setting, conditions: Conditions) -> list[dict]:
    candidates = [candidate for operation in registry.choose(names)
                  for candidate in checked(operation, section, setting)]
    rows = {one.key: _row(one, setting, section, conditions) for one in candidates}
    passed = [one for one in candidates if refusals.attempt(rows[one.key], partial(_judge, one, rows[one.key]), setting.device)]
    failed: dict[str, Exception] = {}
    times = conditions.clock({one.key: one.function for one in passed}, seconds=section.seconds, fewest=section.fewest,
                             failed=failed)
    for key, problem in failed.items():
        refusals.refuse(rows[key], problem, setting.device)
    for one in passed:
        if one.key in times:
            rows[one.key] |= _timed(one, rows[one.key], setting, times[one.key])
    return list(rows.values())


def _judge(one: Candidate, found: dict) -> None:
    if one.problem is not None:
        found["error"] = shown(one.error)
        raise one.problem
    refusals.hold(found, one.error)


def _row(one: Candidate, setting: Setting, section: Sweep, conditions: Conditions) -> dict:
    count, times = one.operation.count(setting), 3 if section.backward else 1
    return row(op=one.operation.name, backend=one.form.name, measure=BACKWARD if section.backward else FORWARD,
               n=setting.n, batch=setting.batch, heads=setting.heads, **conditions.label, truth=one.truth,
               tolerance=TOLERANCE[setting.dtype], note=one.form.note, flops=count.flops * times, bytes=count.bytes * times)


def _timed(one: Candidate, found: dict, setting: Setting, times: Times) -> dict:
    bandwidth = machine.bandwidth(setting.device)
    return {**timed(times), "peak_bytes": one.peak, "tokens_per_second": setting.batch * setting.n / times.best,
            "floor_fraction": found["bytes"] / bandwidth / times.best if bandwidth else None}


def compare(rows: list[dict]) -> list[dict]:
    """Fill in the ratios of rows of one point: against torch's attention, and against the quickest peer of the same
    operation."""
    def quickest(chosen: list[dict]) -> dict | None:
        return min((one for one in chosen if one["ms"] is not None), key=lambda one: one["ms"], default=None)

    sdpa = quickest([one for one in rows if (one["op"], one["backend"]) == ("sdpa", "torch")])
    ours = {(operation.name, form.name) for operation in registry.every().values()
            for form in operation.implementations if form.ours}
    for one in rows:
        if one["ms"] is None:
            continue
        operation = registry.every().get(one["op"])
        if sdpa and not (operation and operation.whole):
            one["ratio_to_sdpa"] = sdpa["ms"] / one["ms"]
        peer = quickest([other for other in rows if other["op"] == one["op"] and (other["op"], other["backend"]) not in ours])
        if peer and (one["op"], one["backend"]) in ours and one["op"] != "sdpa":
            one |= {"ratio_to_peer": peer["ms"] / one["ms"], "peer": peer["backend"]}
    return rows


# ------------------------------------------------------------------------------------------------------------- checks
def checked(operation: Operation, section: Sweep, setting: Setting) -> list[Candidate]:
    """Every implementation that takes the setting, run once against the truth. All share what drawing or truth raise."""
    forms = [form for form in operation.running(setting, section.peers) if section.naive or form.name != "naive"]
    if not forms:
        return []
    prepare = _backward if section.backward else _forward
    difference = math.inf
    try:
        if setting.n > NAIVE_TOKENS and not (difference := operation.prove()) <= PROOF_TOLERANCE:
            raise Red("the formula itself differs from the naive form")
        return prepare(operation, forms, operation.draw(setting), setting)
    except Exception as problem:  # noqa: BLE001 - one operation without a truth must not take the others' figures with it
        error = difference if isinstance(problem, Red) else math.inf
        return [Candidate(operation, form, lambda: None, error, "formula", problem) for form in forms]


def _forward(operation: Operation, forms: list[Implementation], inputs: Inputs, setting: Setting) -> list[Candidate]:
    truth = operation.truth(doubled(inputs), setting)
    candidates = []
    for form in forms:
        one = Candidate(operation, form, lambda: None, truth=truth.name)
        try:
            arranged = form.arrange(inputs)
            one.function = partial(form.call, arranged)
            y, one.peak, _ = observed(one.function, setting.device)
            one.error = relative(truth.of(form.restore(y)), truth.y)
        except Exception as error:  # noqa: BLE001 - one broken form must not take the others' figures with it
            one.problem = error
        candidates.append(one)
    return candidates


def _backward(operation: Operation, forms: list[Implementation], inputs: Inputs, setting: Setting) -> list[Candidate]:
    """The check lets gradients flow from the checked positions alone, so that its truth is affordable; it is linear in
    them, and what is timed sends one from every position."""
    exact = _leaves(doubled(inputs), operation)
    truth = operation.truth(exact, setting)
    dy_at = torch.randn(truth.y.shape, generator=setting.generator(2), dtype=torch.float64, device=setting.device)
    wanted = torch.autograd.grad(truth.y, [exact[name] for name in operation.leaves], dy_at)
    return [_backward_candidate(Candidate(operation, form, lambda: None, truth=f"{truth.name}, and its gradients"), inputs,
                                setting, truth, dy_at, wanted) for form in forms]


def _backward_candidate(one: Candidate, inputs: Inputs, setting: Setting, truth: Truth, dy_at: torch.Tensor,
                        wanted: tuple[torch.Tensor, ...]) -> Candidate:
    form = one.form
    try:
        arranged = _leaves(form.arrange(inputs), one.operation)
        leaves = [arranged[name] for name in one.operation.leaves]
        (y, found), one.peak, _ = observed(lambda: _sparse(form, arranged, leaves, truth, dy_at), setting.device)
        one.error = max(relative(truth.of(form.restore(y)), truth.y.detach()), *(
            relative(form.restore(got) if got.dim() >= 3 else got, expected) for got, expected in zip(found, wanted)))
        dy = torch.randn_like(y)
        one.function = lambda: torch.autograd.grad(form.call(arranged), leaves, dy)
    except Exception as error:  # noqa: BLE001 - one broken form must not take the others' figures with it
        one.problem = error
    return one


def _sparse(form: Implementation, arranged: Inputs, leaves: list[torch.Tensor], truth: Truth, dy_at: torch.Tensor):
    """(y, gradients) where only what is checked sends one back."""
    y = form.call(arranged)
    restored = form.restore(y)
    truth.of(restored)
    dy = torch.zeros_like(restored)
    dy[truth.rows[:, None], truth.at] = dy_at.to(y.dtype)
    return y.detach(), torch.autograd.grad(y, leaves, form.restore(dy))


def _leaves(inputs: Inputs, operation: Operation) -> Inputs:
    """The inputs, those that get gradients as leaves of their own."""
    return {name: x.detach().clone().requires_grad_() if name in operation.leaves else x for name, x in inputs.items()}


