"""LAVO's two efficiency protocols: a whole language model's forward, and the simulation of a generation.

`forward`: batch 1, no gradients, all logits, peak memory. `prefixes`: the published simulation, a forward pass over every
prefix length 1..L and the sum of their times; only every `stride`-th prefix is run, the times between follow a straight
line (trapezoid rule). `incremental`: what a decoder does, one step after every length, summed by the same rule.

"Vanilla" is softmax attention with its scores in memory; what torch calls with a fused kernel stands for FlashAttention.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from models import Layout, ModelConfig, build, registry
from models.language_model import LanguageModel
from storage import logs
from tasks.benchmarks.conditions import Conditions
from tasks.benchmarks.growth import config_of
from tasks.benchmarks.rows import relative, row, shown, timed
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
CHECKED = 512        # tokens that the float64 copy reads

log = logs.get("tasks.bench")


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
    model = model_of(system, section, conditions)
    generator = torch.Generator().manual_seed(conditions.seed)
    longest = max((*section.lengths, *section.simulated))
    ids = torch.randint(section.vocabulary, (1, longest + 1), generator=generator).to(conditions.device)
    kind = SYSTEMS[system][0]
    known = {"op": system, "backend": f"{kind}, unfused" if system == "Vanilla" else kind, "batch": 1,
             "heads": section.heads, **conditions.label, "tolerance": TOLERANCE[conditions.dtype],
             "truth": f"the model in float64, {CHECKED} tokens", "note": f"{section.layers} layers, width {section.width}"}
    with attention_of(system):
        known["error"] = shown(error := check(model, ids))
        rows = [row(**known, measure=MODEL_FORWARD, n=n) for n in section.lengths] + [
            row(**known, measure=mode, n=n) for mode in (PREFIXES, INCREMENTAL) for n in section.simulated]
        if not error <= TOLERANCE[conditions.dtype]:
            log.error("%s: logits differ from those in float64 by %.1e; no time is reported", system, error)
            return rows
        for one in rows:
            if one["measure"] == MODEL_FORWARD:
                one |= _forward(model, ids[:, :one["n"]], section, conditions)
            else:
                one |= _simulated(model, ids, one, section, conditions)
    return rows


def finish(rows: list[dict]) -> None:
    """Ratios to vanilla and to torch's fused attention, at equal length and protocol."""
    for key, system in (("ratio_to_vanilla", "Vanilla"), ("ratio_to_sdpa", "FlashAttention")):
        base = {(one["measure"], one["n"]): one["ms"] for one in rows if one["op"] == system}
        for one in rows:
            other = base.get((one["measure"], one["n"]))
            if one["ms"] is not None and other is not None:
                one[key] = other / one["ms"]


def check(model: LanguageModel, ids: torch.Tensor) -> float:
    """Largest difference of the logits from those of a float64 copy."""
    ids = ids[:, :CHECKED]
    layout = Layout.dense(1, ids.shape[1], device=ids.device)
    return relative(model(ids, layout), copy.deepcopy(model).double()(ids, layout))


def _forward(model: LanguageModel, ids: torch.Tensor, section: Efficiency, conditions: Conditions) -> dict:
    layout = Layout.dense(1, ids.shape[1], device=ids.device)
    function = lambda: model(ids, layout)  # noqa: E731
    _, peak, _ = observed(function, conditions.device)
    times = conditions.clock({"": function}, seconds=section.seconds, fewest=section.fewest)[""]
    cost = model.cost(ids.shape[1])
    return {**timed(times), "peak_bytes": peak, "flops": cost.flops, "state_bytes": cost.state_bytes,
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


def _simulated(model: LanguageModel, ids: torch.Tensor, one: dict, section: Efficiency, conditions: Conditions) -> dict:
    call = _prefix if one["measure"] == PREFIXES else _step
    found = {n: call(model, ids, n, section, conditions) for n in lengths_of(one["n"], section.stride)}
    total = summed({n: times.best for n, times in found.items()})
    spread = [summed({n: times.percentile(p) for n, times in found.items()}) * 1e3 for p in (20, 50, 80)]
    contended = [times.contended for times in found.values()]
    return {"ms": total * 1e3, "p20": spread[0], "ms_median": spread[1], "p80": spread[2],
            "repetitions": min(len(times.work) for times in found.values()),
            "contended": None if None in contended else sum(contended) > len(contended) / 2,
            "tokens_per_second": one["n"] / total,
            "note": f"{one['note']}; {len(found)} of {one['n']:,} lengths run (stride {section.stride}), trapezoid rule"}


def _prefix(model: LanguageModel, ids: torch.Tensor, n: int, section: Efficiency, conditions: Conditions) -> Times:
    layout = Layout.dense(1, n, device=ids.device)
    function = lambda: model.head(model.hidden(ids[:, :n], layout)[:, -1])  # noqa: E731
    return conditions.clock({"": function}, seconds=section.seconds / 8, fewest=2, warm_up=1)[""]


def _step(model: LanguageModel, ids: torch.Tensor, n: int, section: Efficiency, conditions: Conditions) -> Times:
    held = [model.prefill(ids[:, :n], Layout.dense(1, n, device=ids.device))[1]]

    def step() -> None:
        _, held[0] = model.step(ids[:, n], held[0])

    return conditions.clock({"": step}, seconds=section.seconds / 8, fewest=2, warm_up=1)[""]
