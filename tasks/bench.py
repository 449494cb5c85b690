"""Bench stage: how fast the kernels are on this CPU, each against its truth first. Produces `timings.json`.

One row per operation and length. Rules: an operation is compared with its naive form in float64 on the very inputs that
are timed, and a row whose error is above the tolerance carries the error (null: not finite) and no time. Competitors
run in turns in one process; `ms` is the thread's own CPU time, best of the repetitions. `ratio_to_sdpa` and
`ratio_to_peer` say how many times faster than torch's causal attention (head dim 64) or than the peer the operation is:
above 1 is faster. Ratios carry over between machines, milliseconds do not.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from kernels.prefix import prefix
from kernels.taylor import taylor
from storage import logs
from storage.artifacts import Store, artifact_id
from storage.identity import code_hash
from storage.progress import progress
from tasks.specs import BenchSpec
from tasks.timing import peak_bytes, take_turns

KIND = "timings"
FILE = "timings.json"
HEADS, FEATURES, VALUES = 8, 16, 64
LENGTHS = {"quick": (512, 1024, 2048), "gate": (512, 1024, 2048, 4096, 8192)}
TOLERANCE = 2e-5  # largest difference over the largest value, float32 against float64
SAMPLED = 64  # queries at which attention, which is quadratic, is checked
SECONDS = 1.0  # of timing at each length
PEER = "fla.naive_chunk_based"

log = logs.get("tasks.bench")


def plan(spec: BenchSpec, store: Store | None = None) -> str:
    """The id that `run` would return on this machine."""
    return artifact_id(KIND, resolve(spec), {}, code_hash([__name__]))


def run(spec: BenchSpec, store: Store) -> str:
    """Make the timings of this machine unless they are there, and return their id."""
    return store.produce(KIND, resolve(spec), {}, code_hash([__name__]), lambda folder: build(spec, folder))


def resolve(spec: BenchSpec) -> dict[str, Any]:
    """What is hashed: the spec, and what a time depends on besides the code."""
    return {**spec.model_dump(mode="json"), "processor": processor(), "torch": torch.__version__, "peer": peer_version()}


def processor() -> str:
    """Name of this machine's CPU."""
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def peer_version() -> str | None:
    """Version of the installed peer (flash-linear-attention), or None."""
    try:
        return metadata.version("flash-linear-attention")
    except metadata.PackageNotFoundError:
        return None


def build(spec: BenchSpec, folder: Path) -> dict[str, Any]:
    """Measure and write the rows; returns counts."""
    rows = measure(spec)
    (folder / FILE).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return {"rows": len(rows), "refused": sum(row["ms"] is None for row in rows),
            "contended": sum(row["contended"] for row in rows)}


@torch.no_grad()
def measure(spec: BenchSpec) -> list[dict[str, Any]]:
    """All rows of a preset. Sets torch's threads for the time being."""
    before = torch.get_num_threads()
    torch.set_num_threads(spec.threads)
    try:
        rows: list[dict[str, Any]] = []
        with progress(len(LENGTHS[spec.preset]), "bench", "lengths") as bar:
            for n in LENGTHS[spec.preset]:
                rows += measure_length(n, spec)
                bar.advance()
        return rows
    finally:
        torch.set_num_threads(before)


def measure_length(n: int, spec: BenchSpec) -> list[dict[str, Any]]:
    """The rows of one length: check each operation, then time in turns those that passed."""
    inputs = make_inputs(n, spec.seed)
    operations = make_operations(inputs)
    errors = {name: check(inputs) for name, (_, _, check) in operations.items()}
    passed = {name: function for name, (_, function, _) in operations.items() if errors[name] <= TOLERANCE}
    for name in errors.keys() - passed.keys():
        log.error("%s at %d tokens: error %.1e is above %.0e; no time is reported", name, n, errors[name], TOLERANCE)
    peer = make_peer(inputs) if "taylor" in passed else None
    competitors = passed | ({PEER: peer} if peer else {})
    times = take_turns(competitors, threads=spec.threads, seconds=SECONDS, fewest=3)
    rows = []
    for name, (backend, function, _) in operations.items():
        row: dict[str, Any] = {"op": name, "backend": backend, "n": n, "heads": HEADS, "dtype": "float32",
                               "threads": spec.threads, "ms": None, "ms_median": None, "wall_ms": None,
                               "error": errors[name] if math.isfinite(errors[name]) else None, "ratio_to_sdpa": None, "ratio_to_peer": None, "peer": None,
                               "peak_bytes": None, "contended": False}
        if name in times:
            own = times[name]
            row |= {"ms": own.best * 1e3, "ms_median": own.median * 1e3, "wall_ms": min(own.wall) * 1e3,
                    "contended": own.contended, "peak_bytes": peak_bytes(function)}
            if "sdpa" in times:
                row["ratio_to_sdpa"] = times["sdpa"].best / own.best
            if name == "taylor" and PEER in times:
                row |= {"ratio_to_peer": times[PEER].best / own.best, "peer": PEER}
        rows.append(row)
    return rows


def make_inputs(n: int, seed: int) -> dict[str, torch.Tensor]:
    """Fresh random tensors: Taylor's q, k of 16 features, attention's of 64, values of 64; the prefix is half the row."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + n)
    draw = lambda *shape: torch.randn(1, *shape, generator=generator)  # noqa: E731
    M = n // 2
    return {
        "q": draw(n, HEADS, FEATURES), "k": draw(n, HEADS, FEATURES), "v": draw(n, HEADS, VALUES),
        "k_enc": draw(M, HEADS, FEATURES), "v_enc": draw(M, HEADS, VALUES), "prefix_B": torch.tensor([M]),
        "query": draw(HEADS, n, VALUES), "key": draw(HEADS, n, VALUES), "value": draw(HEADS, n, VALUES),
    }


def make_operations(inputs: dict[str, torch.Tensor]) -> dict[str, tuple[str, Callable[[], torch.Tensor], Callable]]:
    """Name -> (backend, the call that is timed, the check that gives its error on given inputs)."""
    taylor_inputs = [inputs[name] for name in ("q", "k", "v")]
    prefix_inputs = [inputs[name] for name in ("q", "k", "v", "k_enc", "v_enc", "prefix_B")]
    attention = [inputs[name] for name in ("query", "key", "value")]
    return {
        "sdpa": ("torch", lambda: F.scaled_dot_product_attention(*attention, is_causal=True), attention_error),
        "taylor": ("chunked", lambda: taylor(*taylor_inputs), lambda _: naive_error(taylor, taylor_inputs)),
        "prefix": ("chunked", lambda: prefix(*prefix_inputs), lambda _: naive_error(prefix, prefix_inputs)),
    }


def naive_error(operation: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> float:
    """Largest difference from the naive form in float64, over the naive form's largest value."""
    truth = operation(*(x.double() if x.is_floating_point() else x for x in inputs), backend="naive")
    return relative(operation(*inputs), truth)


def attention_error(inputs: dict[str, torch.Tensor]) -> float:
    """torch's attention against a written-out softmax in float64, at sampled queries."""
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    n = query.shape[2]
    at = torch.linspace(0, n - 1, min(SAMPLED, n)).long()
    scores = query[:, :, at].double() @ key.double().transpose(-1, -2) * VALUES**-0.5
    scores.masked_fill_(torch.arange(n) > at[:, None], float("-inf"))
    truth = scores.softmax(-1) @ value.double()
    return relative(F.scaled_dot_product_attention(query, key, value, is_causal=True)[:, :, at], truth)


def relative(got: torch.Tensor, truth: torch.Tensor) -> float:
    """max|a - b| / max|b|; infinite if anything is not finite."""
    error = float((got.double() - truth).abs().max() / truth.abs().max())
    return math.inf if math.isnan(error) else error


def make_peer(inputs: dict[str, torch.Tensor]) -> Callable[[], torch.Tensor] | None:
    """flash-linear-attention's chunked Based in plain torch, where it is installed and takes this length."""
    q, k, v = (inputs[name].transpose(1, 2).contiguous() for name in ("q", "k", "v"))
    if peer_version() is None or q.shape[2] % 256 or q.shape[2] > 4096:
        return None
    from fla.ops.based.naive import naive_chunk_based

    return lambda: naive_chunk_based(q, k, v)
