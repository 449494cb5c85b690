"""Compiles every Triton kernel for GPUs that are not here, and says what each needs: registers, stack, shared memory.

    python -m kernels.compile [--json FILE] [--only PATTERN] [OPERATION ...]

A stack above 0 is a spill (`LOCAL` stays 0 for these compilers). Registers move by tens between Triton versions, so only
stack and shared memory have limits here. Must run in a process without TRITON_INTERPRET.

An operation's module `kernels/<op>/triton*.py` takes part by defining `variants(target) -> list[Variant]`.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import importlib
import itertools
import json
import multiprocessing
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kernels

TARGETS: tuple[int | str, ...] = (80, 90, 100, "gfx942")
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024, "gfx942": 64 * 1024}  # bytes a block may have
MATRIX_UNITS = ("HMMA", "HGMMA", "UTCHMMA", "MFMA")


@dataclass(frozen=True)
class Variant:
    """One kernel with the constants and options it is launched with on a target."""

    name: str
    kernel: Any  # what @triton.jit returns
    types: dict[str, str]  # of run-time arguments: "*bf16", "*fp32", "i32", "i64", "fp32"
    constants: dict[str, Any]  # of all others
    options: dict[str, int] = field(default_factory=dict)  # num_warps, num_stages


def operations() -> dict[str, list[Any]]:
    """Operation -> its modules that define `variants`."""
    found: dict[str, list[Any]] = {}
    for package in pkgutil.iter_modules(kernels.__path__):
        if not package.ispkg:
            continue
        folder = importlib.import_module(f"kernels.{package.name}").__path__
        for module in pkgutil.iter_modules(folder):
            if module.name.startswith("triton"):
                loaded = importlib.import_module(f"kernels.{package.name}.{module.name}")
                if hasattr(loaded, "variants"):
                    found.setdefault(package.name, []).append(loaded)
    return found


def compile_variant(variant: Variant, target: int | str) -> dict[str, Any]:
    """Resources of one kernel on one target.

    Returns:
        {kernel, target, triton, warps, stages, registers, stack, shared, matrix: {unit: instructions}, limit}; bytes.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = variant.kernel.arg_names
    if variant.types.keys() & variant.constants.keys() or set(names) != variant.types.keys() | variant.constants.keys():
        raise ValueError(f"{variant.name}: arguments {names} are not exactly types and constants together")
    source = ASTSource(
        fn=variant.kernel,
        signature={name: variant.types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in variant.constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if variant.types.get(name, "").startswith("*")})
    gpu = GPUTarget("hip", target, 64) if isinstance(target, str) else GPUTarget("cuda", target, 32)
    compiled = triton.compile(source, target=gpu, options=dict(variant.options))
    read = _amd if isinstance(target, str) else _nvidia
    return {"kernel": variant.name, "target": target if isinstance(target, str) else f"sm_{target}",
            "triton": triton.__version__, "warps": compiled.metadata.num_warps,
            "stages": variant.options.get("num_stages"), **read(compiled), "shared": compiled.metadata.shared,
            "limit": SHARED_LIMIT[target]}


def _nvidia(compiled: Any) -> dict[str, Any]:
    import triton

    dump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(compiled.asm["cubin"])
        usage, listing = (subprocess.run([dump, option, file], capture_output=True, text=True, check=True).stdout
                          for option in ("--dump-resource-usage", "--dump-sass"))
    numbers = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if numbers is None:
        raise ValueError(f"cuobjdump named no registers: {usage[-300:]}")
    counts = collections.Counter(re.findall(rf"\b({'|'.join(MATRIX_UNITS)})\b", listing))
    return {"registers": int(numbers[1]), "stack": int(numbers[2]), "matrix": dict(sorted(counts.items()))}


def _amd(compiled: Any) -> dict[str, Any]:
    listing = compiled.asm["amdgcn"]
    number = lambda name: int(re.search(rf"\.{name}:\s*(\d+)", listing)[1])  # noqa: E731
    return {"registers": number("vgpr_count"), "stack": 4 * number("vgpr_spill_count") + number("private_segment_fixed_size"),
            "matrix": {"MFMA": len(re.findall(r"\bv_mfma_", listing))}}


def plan(chosen: list[str], targets: tuple[int | str, ...] = TARGETS, only: str = "") -> list[tuple[str, int, int | str]]:
    """(module, place among its variants, target) of every kernel whose name contains the pattern."""
    found = operations()
    return [
        (module.__name__, place, target)
        for operation in chosen or sorted(found) for module in found[operation] for target in targets
        for place, variant in enumerate(module.variants(target)) if re.search(only, variant.name)]


def compile_planned(module: str, place: int, target: int | str) -> dict[str, Any]:
    """The row of one entry of the plan: what a worker process is handed."""
    variant = importlib.import_module(module).variants(target)[place]
    return {"operation": module.split(".")[1], **compile_variant(variant, target)}


def rows(planned: list[tuple[str, int, int | str]], processes: int) -> Iterator[dict[str, Any]]:
    """One row a kernel and target, in the plan's order, as they are compiled."""
    if processes == 1:
        yield from itertools.starmap(compile_planned, planned)
        return
    with concurrent.futures.ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(compile_planned, *zip(*planned))


def faults(row: dict[str, Any]) -> list[str]:
    """What is wrong with a kernel: spills, or more shared memory than a block may have."""
    wrong = [f"stack {row['stack']}"] if row["stack"] else []
    return wrong + ([f"shared {row['shared']} of {row['limit']}"] if row["shared"] > row["limit"] else [])


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if any kernel has a fault on a GPU it is meant for."""
    parser = argparse.ArgumentParser(prog="python -m kernels.compile", description=__doc__.splitlines()[0])
    parser.add_argument("operation", nargs="*", help="operations to compile (default: all)")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--target", action="append", choices=[str(target) for target in TARGETS], help="default: all")
    parser.add_argument("--only", default="", metavar="PATTERN", help="kernels whose name contains this regular expression")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: one a core)")
    options = parser.parse_args(arguments)
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET is set: the interpreter cannot compile; unset it")
    if unknown := set(options.operation) - operations().keys():
        parser.error(f"no Triton kernels for {', '.join(sorted(unknown))}; there are {', '.join(sorted(operations()))}")
    try:
        re.compile(options.only)
    except re.error as error:
        parser.error(f"--only {options.only!r} is not a regular expression: {error}")
    if options.json and (options.json.is_dir() or not options.json.absolute().parent.is_dir()):
        parser.error(f"--json {options.json}: expected a file in a folder that exists")
    targets = tuple(target for target in TARGETS if not options.target or str(target) in options.target)
    planned = plan(options.operation, targets, options.only)
    if not planned:
        parser.error(f"no kernel's name contains {options.only!r}")
    line = "{:<34}{:>8}{:>7}{:>10}{:>7}{:>9}  {}"
    out = sys.stdout.write
    out(line.format("kernel", "target", "warps", "registers", "stack", "shared", "matrix instructions") + "\n")
    table, bad = [], 0
    for row in rows(planned, max(options.jobs, 1)):
        table.append(row)
        # AMD's figures are shown; the kernels are tuned for NVIDIA's
        wrong = faults(row) if row["target"].startswith("sm_") else []
        bad += bool(wrong)
        matrix = " ".join(f"{name} {count}" for name, count in row["matrix"].items())
        out(line.format(row["kernel"], row["target"], row["warps"], row["registers"], row["stack"], row["shared"], matrix)
            + ("   <- " + ", ".join(wrong) if wrong else "") + "\n")
        sys.stdout.flush()
    if options.json:
        options.json.write_text("[\n" + ",\n".join(map(json.dumps, table)) + "\n]\n", encoding="utf-8")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
