"""LAVO's two efficiency protocols: a whole language model's forward, and the simulation of a generation.

`forward`: batch 1, no gradients, all logits, peak memory. `prefixes`: the published simulation, a forward pass over every
prefix length 1..L and the sum of their times; only every `stride`-th prefix is run, the times between follow a straight
line (trapezoid rule). `incremental`: what a decoder does, one step after every length, summed by the same rule.
Each has a check of its own: logits of the very call that is timed, or of the first steps after each length.

"Vanilla" is softmax attention with its scores in memory; what torch calls with a fused kernel stands for FlashAttention.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from models import Layout, ModelConfig, build, registry
from models.language_model import LanguageModel
from tasks.benchmarks import refusals
from tasks.benchmarks.conditions import Conditions
from tasks.benchmarks.growth import config_of
from tasks.benchmarks.rows import Red, relative, row, timed
from tasks.benchmarks.sections import INCREMENTAL, MODEL_FORWARD, PREFIXES, Efficiency
from tasks.timing import Times, observed

# the paper's name -> (kind of mixer here, its settings)
SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "Vanilla": ("attention", {"rotary_fraction": 0.0}),
    "FlashAttention": ("attention", {"rotary_fraction": 0.0}),
    "FlashAttention + RoPE": ("attention", {"rotary_fraction": 1.0}),
    "LongShort": ("long_short", {}),
    "S4D": ("s4d", {}),
    "ABC": ("abc", {}),
    "Local": ("sliding_window", {"window": 64}),
    "LAVO": ("lavo", {"window": 64, "slots": 64}),
    "Based": ("based", {}),
}
TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}
CHECKED = 1056       # tokens that the float64 copy reads; what comes later must be finite
STEPS = 3            # after each length, checked


@dataclass
class Subject:
    """A model, what it reads, and the logits (1, tokens, E) of its float64 copy for the first `CHECKED` tokens."""

    model: LanguageModel
    ids: torch.Tensor
    exact: torch.Tensor

    def error(self, logits: torch.Tensor, at: int) -> float:
        """Difference of the logits (1, E) after token `at`; beyond what the copy read 0 if they are finite."""
        wanted = self.exact[:, min(at, self.exact.shape[1] - 1)]
        found = relative(logits, wanted)
        return found if at < self.exact.shape[1] or math.isinf(found) else 0.0


def subject_of(system: str, section: Efficiency, conditions: Conditions) -> Subject:
    """The model of a system beside its float64 copy's logits."""
    model = model_of(system, section, conditions)
    generator = torch.Generator().manual_seed(conditions.seed)
    longest = max((*section.lengths, *section.simulated))
    ids = torch.randint(section.vocabulary, (1, longest + STEPS), generator=generator).to(conditions.device)
    read = ids[:, :CHECKED]
    return Subject(model, ids, copy.deepcopy(model).double()(read, Layout.dense(1, read.shape[1], device=ids.device)))


def model_of(system: str, section: Efficiency, conditions: Conditions) -> LanguageModel:
    """A language model of that mixer alone."""
    kind, settings = SYSTEMS[system]
    mixer = config_of(kind, section.width, heads=section.heads, **settings)
    config = ModelConfig.model_validate({"width": section.width, "vocabulary": section.vocabulary,
                                         "mixers": {kind: mixer.model_dump()}, "plan": [f"{kind}*{section.layers}"]})
    return build(config).eval().to(conditions.device, conditions.torch_dtype)


@contextmanager
def attention_of(system: str) -> Iterator[None]:
    """Vanilla keeps its scores in memory; the others take torch's choice."""
    if system == "Vanilla":
        with sdpa_kernel(SDPBackend.MATH):
            yield
    else:
        yield


def points(section: Efficiency, conditions: Conditions) -> list[str]:
    """Systems whose mixer is in this build, vanilla first: the others are compared with it."""
    return [system for system, (kind, _) in SYSTEMS.items() if kind in registry.kinds()]


def absent(section: Efficiency, conditions: Conditions) -> list[str]:
    """A sentence for each system of the paper that this build lacks."""
    return [f"{system}: no mixer of kind {kind!r} in this build"
            for system, (kind, _) in SYSTEMS.items() if kind not in registry.kinds()]


@torch.no_grad()
def measure(section: Efficiency, system: str, conditions: Conditions) -> list[dict]:
    """Rows of one system: a forward row a length, and two simulations."""
    kind = SYSTEMS[system][0]
    known = {"op": system, "backend": f"{kind}, unfused" if system == "Vanilla" else kind, "batch": 1,
             "heads": section.heads, **conditions.label, "tolerance": TOLERANCE[conditions.dtype],
             "note": f"{section.layers} layers, width {section.width}"}
    rows = [row(**known, measure=MODEL_FORWARD, n=n) for n in section.lengths] + [
        row(**known, measure=mode, n=n) for mode in (PREFIXES, INCREMENTAL) for n in section.simulated]
    with attention_of(system):
        try:
            subject = subject_of(system, section, conditions)
        except Exception as problem:  # noqa: BLE001 - one broken system must not take the others' figures with it
            for one in rows:
                refusals.refuse(one, problem, conditions.device)
            return rows
        for one in rows:
            fill = _forward if one["measure"] == MODEL_FORWARD else _simulated
            refusals.attempt(one, partial(fill, one, subject, section, conditions), conditions.device)
    return rows


def finish(rows: list[dict]) -> None:
    """Ratios to vanilla and to torch's fused attention, at equal length and protocol."""
    for key, system in (("ratio_to_vanilla", "Vanilla"), ("ratio_to_sdpa", "FlashAttention")):
        base = {(one["measure"], one["n"]): one["ms"] for one in rows if one["op"] == system}
        for one in rows:
            other = base.get((one["measure"], one["n"]))
            if one["ms"] is not None and other is not None:
                one[key] = other / one["ms"]


def truth(last: int, checked: int, what: str) -> str:
    """What a row was held against, where the last token checked would be number `last`."""
    return f"the model in float64, {what}" + (f" up to {checked:,} tokens; finite beyond" if last > checked else "")


def _forward(one: dict, subject: Subject, section: Efficiency, conditions: Conditions) -> None:
    model, ids = subject.model, subject.ids[:, :one["n"]]
    layout = Layout.dense(1, ids.shape[1], device=ids.device)
    function = lambda: model(ids, layout)  # noqa: E731
    logits, peak, _ = observed(function, conditions.device)
    wanted = subject.exact[:, :ids.shape[1]]
    error = relative(logits[:, :wanted.shape[1]], wanted) if logits.isfinite().all() else math.inf
    if logits.shape[1] != ids.shape[1]:
        raise Red(f"logits of {logits.shape[1]} tokens, expected {ids.shape[1]}")
    refusals.hold(one, error, truth(ids.shape[1], wanted.shape[1], "logits of every token"))
    del logits
    times = conditions.clock({"": function}, seconds=section.seconds, fewest=section.fewest)[""]
    cost = model.cost(ids.shape[1])
    one |= {**timed(times), "peak_bytes": peak, "flops": cost.flops, "state_bytes": cost.state_bytes,
            "tokens_per_second": ids.shape[1] / times.best}


# ------------------------------------------------------------------------------------------------ generation simulation
def lengths_of(longest: int, stride: int) -> list[int]:
    """1, and every `stride`-th length up to `longest`, which is always among them."""
    return sorted({1, *range(stride, longest + 1, stride), longest})


def summed(values: dict[int, float]) -> float:
    """Sum over every whole number from the least to the greatest key, straight lines between: the trapezoid rule.

    Exact where the values follow a straight line between neighbours.
    """
    at = sorted(values)
    area = sum((right - left) * (values[left] + values[right]) / 2 for left, right in zip(at, at[1:]))
    return area + (values[at[0]] + values[at[-1]]) / 2


def _simulated(one: dict, subject: Subject, section: Efficiency, conditions: Conditions) -> None:
    check, call = (_prefix_error, _prefix) if one["measure"] == PREFIXES else (_step_error, _step)
    lengths = lengths_of(one["n"], section.stride)
    what = "logits after each length run" if one["measure"] == PREFIXES else f"logits of {STEPS} steps after each length run"
    last = one["n"] + (0 if one["measure"] == PREFIXES else STEPS)
    refusals.hold(one, max(check(subject, n) for n in lengths), truth(last, subject.exact.shape[1], what))
    found = {n: call(subject.model, subject.ids, n, section, conditions) for n in lengths}
    total = summed({n: times.best for n, times in found.items()})
    spread = [summed({n: times.percentile(p) for n, times in found.items()}) * 1e3 for p in (20, 50, 80)]
    contended = [times.contended for times in found.values()]
    one |= {"ms": total * 1e3, "p20": spread[0], "ms_median": spread[1], "p80": spread[2],
            "repetitions": min(len(times.work) for times in found.values()),
            "contended": None if None in contended else sum(contended) > len(contended) / 2,
            "tokens_per_second": one["n"] / total,
            "note": f"{one['note']}; {len(found)} of {one['n']:,} lengths run (stride {section.stride}), trapezoid rule"}


def _prefix_error(subject: Subject, n: int) -> float:
    layout = Layout.dense(1, n, device=subject.ids.device)
    return subject.error(subject.model.head(subject.model.hidden(subject.ids[:, :n], layout)[:, -1]), n - 1)


def _step_error(subject: Subject, n: int) -> float:
    """Of the steps that follow a prefill of n tokens, each with the token that really comes next."""
    _, state = subject.model.prefill(subject.ids[:, :n], Layout.dense(1, n, device=subject.ids.device))
    errors = []
    for at in range(n, n + STEPS):
        logits, state = subject.model.step(subject.ids[:, at], state)
        errors.append(subject.error(logits, at))
    return max(errors)


def _prefix(model: LanguageModel, ids: torch.Tensor, n: int, section: Efficiency, conditions: Conditions) -> Times:
    layout = Layout.dense(1, n, device=ids.device)
    function = lambda: model.head(model.hidden(ids[:, :n], layout)[:, -1])  # noqa: E731
    return conditions.clock({"": function}, seconds=section.seconds / 8, fewest=2, warm_up=1)[""]


def _step(model: LanguageModel, ids: torch.Tensor, n: int, section: Efficiency, conditions: Conditions) -> Times:
    held = [model.prefill(ids[:, :n], Layout.dense(1, n, device=ids.device))[1]]

    def step() -> None:
        _, held[0] = model.step(ids[:, n], held[0])

    return conditions.clock({"": step}, seconds=section.seconds / 8, fewest=2, warm_up=1)[""]
