"""Bench stage: how fast operations, mixers and models are on this machine, each against its truth first.

Produces `timings.json`, a list of flat rows (`tasks.benchmarks.rows.KEYS`), with plots and a page for people. Rules: what
is timed is compared with float64 on the very inputs that are timed, and a row whose error is above the tolerance carries
the error (null: not finite) and no time. A call that raises takes no other row with it: its own says what was raised.
Competitors run in turns in one process; `ms` is the best repetition, on a CPU
the thread's own CPU time. `ratio_to_sdpa` and `ratio_to_peer` say how many times faster than torch's causal attention or
than the quickest peer the row is: above 1 is faster. Ratios carry over between machines, milliseconds do not. What is
not installed, or not in this build, is absent from the rows and named on the page; nothing is filled in.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from storage import logs
from storage.artifacts import Store, artifact_id
from storage.errors import SpecError
from storage.identity import code_hash
from storage.progress import progress
from tasks.benchmarks import machine, operations, presets, published, refusals, registry
from tasks.benchmarks.conditions import Conditions
from tasks.benchmarks.presets import Preset
from tasks.benchmarks.sections import Decode, Section, Sweep
from tasks.specs import BenchSpec

KIND = "timings"
FILE, NOTES = "timings.json", "notes.json"

log = logs.get("tasks.bench")


def plan(spec: BenchSpec, store: Store | None = None) -> str:
    """The id that `run` would return on this machine. SpecError for a preset that its device cannot run."""
    return artifact_id(KIND, resolve(spec), {}, code_hash(modules(spec)))


def run(spec: BenchSpec, store: Store) -> str:
    """Make the timings of this machine unless they are there, and return their id."""
    return store.produce(KIND, resolve(spec), {}, code_hash(modules(spec)), lambda folder: build(spec, folder))


def placed(spec: BenchSpec) -> BenchSpec:
    """The spec with the machine named, so that whoever plans and whoever measures mean the same artifact."""
    return spec if spec.machine else spec.model_copy(update={"machine": machine.name(spec.device)})


def resolve(spec: BenchSpec) -> dict[str, Any]:
    """What is hashed: the spec, and what a time depends on besides the code."""
    chosen(spec)
    return {**placed(spec).model_dump(mode="json"), "dtype": dtype_of(spec), "versions": machine.versions()}


def chosen(spec: BenchSpec) -> Preset:
    """The preset of the spec on its device. SpecError for a preset or a name that does not fit."""
    preset = presets.choose(spec.preset, spec.device)
    known = {name for section in preset.sections if isinstance(section, Sweep | Decode) for name in section.operations}
    unknown = [name for name in spec.operations if name not in known]
    if unknown:
        raise SpecError(f"operations: preset {spec.preset} does not time {', '.join(unknown)}; it times "
                        f"{', '.join(sorted(known)) or 'no single operation'}")
    lengths = {n for section in preset.sections if isinstance(section, Sweep | Decode) for n in section.sizes}
    if spec.lengths and not lengths & set(spec.lengths):
        raise SpecError(f"lengths: preset {spec.preset} times {', '.join(map(str, sorted(lengths))) or 'no single length'}; "
                        f"got {', '.join(map(str, spec.lengths))}")
    if (spec.operations or spec.lengths) and not any(_selected(section, spec) for section in preset.sections):
        raise SpecError(f"preset {spec.preset} times none of {', '.join(spec.operations or sorted(known))}"
                        + (f" at {', '.join(map(str, spec.lengths))}" if spec.lengths else "") + "; it times "
                        + "; ".join(f"{name} at {', '.join(map(str, sizes)) or 'no length, as this build lacks it'}"
                                    for name, sizes in _offer(preset, spec.operations or sorted(known)).items()))
    return preset


def _selected(section: Section, spec: BenchSpec) -> bool:
    """Whether the selection leaves something of a section that can be selected from."""
    return (isinstance(section, Sweep | Decode) and (not spec.lengths or not set(section.sizes).isdisjoint(spec.lengths))
            and any(not spec.operations or name in spec.operations for name in _timed(section)))


def _timed(section: Sweep | Decode) -> list[str]:
    """Operations of the section that this build has, and that have a step where steps are timed."""
    return [one.name for one in registry.choose(section.operations) if isinstance(section, Sweep) or one.step is not None]


def _offer(preset: Preset, names: Sequence[str]) -> dict[str, list[int]]:
    """Lengths at which the preset times each operation."""
    chosen = [section for section in preset.sections if isinstance(section, Sweep | Decode)]
    return {name: sorted({n for section in chosen if name in _timed(section) for n in section.sizes}) for name in names}


def modules(spec: BenchSpec) -> list[str]:
    """The sources that decide a preset's figures: what measures its sections, and what they find by name."""
    sections = chosen(spec).sections
    found = {__name__, *(section.module for section in sections)}
    if any(isinstance(section, Sweep | Decode) for section in sections):
        found |= {f"{operations.__name__}.{info.name}" for info in pkgutil.iter_modules(operations.__path__)}
    if any(not isinstance(section, Sweep | Decode) for section in sections):
        from models import mixers

        found |= {f"{mixers.__name__}.{info.name}" for info in pkgutil.iter_modules(mixers.__path__)
                  if info.name[0] != "_"}
    return sorted(found)


def dtype_of(spec: BenchSpec) -> str:
    """float32 on a CPU, bfloat16 on a GPU, unless asked for."""
    return spec.dtype or ("bfloat16" if spec.device == "cuda" else "float32")


def build(spec: BenchSpec, folder: Path) -> dict[str, Any]:
    """Measure, write the rows, draw; returns counts."""
    from tasks.benchmarks import figures, page

    machine.check(spec.device)
    rows, absent = measure(spec)
    (folder / FILE).write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    facts = {"preset": spec.preset, "machine": machine.name(spec.device), "versions": machine.versions(), "absent": absent}
    (folder / NOTES).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    plots = figures.draw(rows, folder)
    (folder / "report.md").write_text(page.markdown(rows, facts, plots), encoding="utf-8")
    return {"rows": len(rows), "refused": sum(row["ms"] is None for row in rows), "broken": len(refusals.broken(rows)),
            "contended": sum(bool(row["contended"]) for row in rows), "plots": len(plots)}


def measure(spec: BenchSpec) -> tuple[list[dict[str, Any]], list[str]]:
    """(all rows of a preset, sentences about what is not here). Sets torch's threads for the time being."""
    preset = chosen(spec)
    conditions = Conditions(spec.device, dtype_of(spec), spec.threads, spec.seed,
                            None if preset.seconds is None else time.perf_counter() + preset.seconds,
                            spec.operations, spec.lengths)
    before = torch.get_num_threads()
    torch.set_num_threads(spec.threads)
    try:
        work = [(section, importlib.import_module(section.module)) for section in preset.sections]
        planned = [(section, module, module.points(section, conditions)) for section, module in work]
        rows: list[dict[str, Any]] = []
        with progress(sum(len(points) for _, _, points in planned), f"bench {spec.preset}", "points") as bar:
            for section, module, points in planned:
                rows += _section(section, module, points, conditions, bar)
        published.link(rows)
        return rows, [sentence for section, module in work if hasattr(module, "absent")
                      for sentence in module.absent(section, conditions)]
    finally:
        torch.set_num_threads(before)


def _section(section: Section, module, points: list, conditions: Conditions, bar) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for point in points:
        bar.note(f"{section.about().partition(':')[0]} {point}")
        rows += module.measure(section, point, conditions)
        bar.advance()
    if hasattr(module, "finish"):
        module.finish(rows)
    return rows
