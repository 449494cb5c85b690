"""Cost and state as the history grows (LAVO's appendix A): counted by each mixer's `cost`, and measured on its state.

Every registered mixer that streams takes part by itself. Kinds that the published analysis names and this build lacks are
listed, not guessed.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch

from kernels.errors import RereadError
from models import Layout, registry
from models.mixer import Mixer
from tasks.benchmarks import refusals
from tasks.benchmarks.conditions import Conditions
from tasks.benchmarks.rows import relative, row, timed
from tasks.benchmarks.sections import STEP, Growth
from tasks.timing import observed

# kind -> what LAVO §2.2 and appendix A say of its cost in the history n
PUBLISHED = {"long_short": "LongShort: O(n^2 / l) in all, so each step grows with n", "eva": "EVA: O(n c), c grows with n",
             "rfa": "RFA: linear in all, constant a step", "abc": "ABC: linear in all, constant a step",
             "lavo": "LAVO: O(n (r + w)) in all, constant a step", "attention": "attention: each step grows with n"}
FORWARD_TOKENS = 512               # up to here a step is held against the forward pass, beyond against float64 streaming
TOLERANCE = 1e-4


def streams(kind: str) -> bool:
    config = config_of(kind, Growth.width, heads=Growth.heads)
    able = None if config is None else registry.abilities(config)
    return able is not None and able.streaming and able.causal


def config_of(kind: str, width: int, **wanted: Any) -> Any:
    """The kind's default config with those of `wanted` that it has; failing that its first case that fits the width.

    Slots along a basis are at most as many as the width of a head.
    """
    fields = registry.config_class(kind)
    known = {name: value for name, value in wanted.items() if name in fields.model_fields}
    slots = fields.model_fields.get("slots")
    if slots is not None and "heads" in known:
        known["slots"] = min(known.get("slots", slots.default), width // known["heads"])
    return next((config for config in (_default(fields, known), *fields.cases().values()) if fits(config, width)), None)


def _default(fields: type, known: dict[str, Any]) -> Any:
    try:
        return fields(**known)
    except ValueError:
        return None


def fits(config: Any, width: int) -> bool:
    """Whether a mixer of that width can be built."""
    if config is None:
        return False
    try:
        with torch.device("meta"):
            registry.build(config, width)
    except (RereadError, ValueError, RuntimeError):
        return False
    return True


def points(section: Growth, conditions: Conditions) -> list[str]:
    """Kinds of mixers: those of the published analysis first, then every other one that streams."""
    return sorted((kind for kind in registry.kinds() if streams(kind)),
                  key=lambda kind: (kind not in PUBLISHED, list(PUBLISHED).index(kind) if kind in PUBLISHED else 0, kind))


def absent(section: Growth, conditions: Conditions) -> list[str]:
    """A sentence for each kind of the published analysis that this build lacks."""
    return [f"{kind}: not in this build ({said})" for kind, said in PUBLISHED.items() if kind not in registry.kinds()]


@torch.no_grad()
def measure(section: Growth, kind: str, conditions: Conditions) -> list[dict]:
    """One row a history."""
    known = {"op": kind, "backend": "auto", "measure": STEP, "batch": 1, **conditions.label, "dtype": "float32",
             "tolerance": TOLERANCE, "note": PUBLISHED.get(kind)}
    rows = [row(**known, n=n, heads=section.heads) for n in section.histories]
    try:
        config = config_of(kind, section.width, heads=section.heads)
        mixer = registry.build(config, section.width, seed=conditions.seed).eval().to(conditions.device)
        exact = copy.deepcopy(mixer).double()
        generator = torch.Generator().manual_seed(conditions.seed)
        longest = max(section.histories)
        x_BLD = torch.randn(1, longest + 1, section.width, generator=generator).to(conditions.device)
    except Exception as problem:  # noqa: BLE001 - one broken mixer must not take the others' figures with it
        for one in rows:
            refusals.refuse(one, problem, conditions.device)
        return rows
    rows = [one for one in rows if mixer.able.max_length is None or one["n"] < mixer.able.max_length]
    for one in rows:
        refusals.attempt(one, partial(_fill, one, section, mixer, exact, x_BLD[:, :one["n"] + 1], conditions), conditions.device)
    return rows


def _fill(found: dict, section: Growth, mixer: Mixer, exact: Mixer, x_BLD: torch.Tensor, conditions: Conditions) -> None:
    n = x_BLD.shape[1] - 1
    cost = mixer.cost(n)
    found |= {"heads": getattr(mixer.config, "heads", None), "flops": cost.step_flops, "state_bytes": cost.state_bytes}
    refusals.hold(found, *check(mixer, exact, x_BLD))
    held = [prefilled(mixer, x_BLD[:, :n])]
    found["state_bytes_measured"] = held[0].nbytes
    token = x_BLD[:, n]

    def step() -> torch.Tensor:
        y, held[0] = mixer.step(token, held[0])
        return y

    _, found["peak_bytes"], _ = observed(step, conditions.device)
    limit = mixer.able.max_length
    most = 40 if limit is None else max(1, min(40, limit - n - 3))
    found |= timed(conditions.clock({"step": step}, seconds=section.seconds, fewest=min(section.fewest, most),
                                    warm_up=1, most=most)["step"])


def prefilled(mixer: Mixer, x_BLD: torch.Tensor):
    """The state after these tokens, none of them a prefix."""
    return mixer.prefill(x_BLD, Layout.dense(1, x_BLD.shape[1], device=x_BLD.device))[1]


def check(mixer: Mixer, exact: Mixer, x_BLD: torch.Tensor) -> tuple[float, str]:
    """(error of one step after the history, what it was compared with)."""
    n = x_BLD.shape[1] - 1
    y, _ = mixer.step(x_BLD[:, n], prefilled(mixer, x_BLD[:, :n]))
    double = x_BLD.double()
    if n <= FORWARD_TOKENS:
        wanted = exact(double, Layout.dense(1, n + 1, device=double.device))[:, -1]
        return relative(y, wanted), "forward pass, float64"
    wanted, _ = exact.step(double[:, n], prefilled(exact, double[:, :n]))
    return relative(y, wanted), "prefill and step, float64"
