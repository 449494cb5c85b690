"""One command for a machine with a GPU: are the Triton kernels right there, do repeated runs agree, how fast are they.

    python -m kernels.gpu_check --out tests/golden/gpu

First every kernel against float64 on the CPU (odd lengths, padded rows, gradients, states), in bfloat16 and float32;
then the same call again and again, which must give the same bits (a race would not); then times. An operation with a red
check gets no time. Everything goes to <out>/<card>.json with card, driver and versions.

On a CPU, under TRITON_INTERPRET=1, the checks run at toy sizes and nothing is timed: that tests this file, so without
--out its JSON goes to a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from kernels.orthogonal_memory import orthogonal_memory
from kernels.prefix import prefix
from kernels.taylor import taylor, taylor_step
from kernels.triton_mode import interpreted, triton_version
from kernels.window import window

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}  # relative Frobenius norm against float64
KEPT = Path("tests/golden/gpu")
REPEATS = 10
BATCH, HEADS, K, V, R, W = 16, 16, 16, 64, 64, 64  # JRT Table 5's shape; LAVO's memory and window
LENGTHS = (2048, 8192, 16384, 32768)
LONGEST_TRAINED = 8192
TOY = {"lengths": (2, 70), "heads": 1, "race": 65, "repeats": 1}
REAL = {"lengths": (2, 63, 200, 1025, 4096), "heads": 4, "race": 8192, "repeats": REPEATS}

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """An operation, the inputs it takes and the bytes that any implementation must move for one token and head."""

    name: str
    inputs: tuple[tuple[str, str], ...]  # (name, shape letters) of tensors of the tested dtype
    call: Callable[..., Any]  # (tensors, lengths_B, backend) -> outputs: y, then the parts of a state
    elements: int  # read and written once, each token and head


def _taylor(t: Tensors, lengths_B, backend):
    y, state = taylor(t["q"], t["k"], t["v"], lengths_B=lengths_B, backend=backend, return_state=True)
    return y, *state


def _prefix(t: Tensors, lengths_B, backend):
    prefix_B = lengths_B // 2
    y, state = prefix(t["q"], t["k"], t["v"], t["ke"], t["ve"], prefix_B, lengths_B=lengths_B, backend=backend,
                      return_state=True)
    return y, *state


def _window(t: Tensors, lengths_B, backend):
    return (window(t["query"], t["key"], t["value"], window=W, table=t["table"], backend=backend),)


def _memory(t: Tensors, lengths_B, backend):
    y, state = orthogonal_memory(t["query"], t["value"], t["basis"], lengths_B=lengths_B, backend=backend, return_state=True)
    return y, state.sum_BHR


FEATURES = (("q", "BLHK"), ("k", "BLHK"), ("v", "BLHV"))
HEAD = (("query", "BLHV"), ("key", "BLHV"), ("value", "BLHV"))
CASES = (
    Case("taylor", FEATURES, _taylor, 2 * K + 2 * V),
    Case("prefix", (*FEATURES, ("ke", "BMHK"), ("ve", "BMHV")), _prefix, 2 * K + 2 * V + (K + V) // 2),
    Case("window", (*HEAD, ("table", "1T")), _window, 4 * V),
    Case("orthogonal_memory", (HEAD[0], HEAD[2], ("basis", "HRV")), _memory, 3 * V),
)


def draw(case: Case, B: int, L: int, H: int, dtype: torch.dtype, device: str, seed: int = 0) -> Tensors:
    """Fresh random inputs; an encoder is half as long as its row. Tables and bases stay float32."""
    sizes = {"B": B, "L": L, "M": max(L // 2, 1), "H": H, "K": K, "V": V, "R": R, "T": 2 * W - 1, "1": 1}
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, letters in case.inputs:
        value = torch.randn([sizes[letter] for letter in letters], generator=generator)
        value = torch.linalg.qr(value.mT).Q.mT if name == "basis" else value
        tensors[name] = value.to(device, torch.float32 if name in ("basis", "table") else dtype)
    return tensors


def run(case: Case, tensors: Tensors, lengths_B: torch.Tensor, backend: str) -> list[torch.Tensor]:
    """Outputs at real slots, states, and the gradients of a fixed weighting of both."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in tensors.items()}
    outputs = list(case.call(leaves, lengths_B, backend))
    real = torch.arange(outputs[0].shape[1], device=lengths_B.device) < lengths_B[:, None]
    outputs[0] = torch.where(real[:, :, None, None], outputs[0], 0)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=generator).to(x) for x in outputs]
    gradients = torch.autograd.grad([(x * w).sum() for x, w in zip(outputs, weights)], list(leaves.values()))
    return [x.detach() for x in (*outputs, *gradients)]


def distance(got: list[torch.Tensor], truth: list[torch.Tensor]) -> float:
    """Greatest relative Frobenius distance over the tensors; infinite if anything is not finite.

    Rows of one token are left to other tests: a softmax over one key has no gradient, and nothing to be relative to.
    """
    worst = 0.0
    for a, b in zip(got, truth):
        a = a.double().cpu()
        if not torch.isfinite(a).all():
            return float("inf")
        worst = max(worst, float((a - b).norm() / b.norm().clamp(min=1e-30)))
    return worst


def errors(case: Case, dtype: torch.dtype, device: str, sizes: dict[str, Any]) -> dict[str, float]:
    """Length -> distance of the Triton form from the float64 chunked form of the same (rounded) inputs."""
    found = {}
    for L in sizes["lengths"]:
        tensors = draw(case, 3, L, sizes["heads"], dtype, device, seed=L)
        lengths_B = torch.tensor([L, L // 3, max(L - 1, 0)])
        truth = run(case, {name: value.double().cpu() for name, value in tensors.items()}, lengths_B, "chunked")
        found[str(L)] = distance(run(case, tensors, lengths_B.to(device), "triton"), truth)
    return found


def same_bits(case: Case, dtype: torch.dtype, device: str, sizes: dict[str, Any]) -> bool:
    """Whether repeated runs, forward and backward, give the same bits."""
    L = sizes["race"]
    tensors = draw(case, 4, L, sizes["heads"], dtype, device)
    lengths_B = torch.tensor([L, L - 1, L // 2, L], device=device)
    first = run(case, tensors, lengths_B, "triton")
    return all(
        all(torch.equal(a, b) for a, b in zip(first, run(case, tensors, lengths_B, "triton")))
        for _ in range(sizes["repeats"]))


def bandwidth(device: str) -> float:
    """Bytes a second of a large copy, read and write counted: what this card gives, as found."""
    from triton.testing import do_bench

    source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / (do_bench(lambda: target.copy_(source), return_mode="median") * 1e-3)


def times(case: Case, L: int, device: str, rate: float) -> dict[str, Any]:
    """A bfloat16 row at JRT Table 5's shape: ms forward (median, p20, p80), forward + backward, causal attention's ms.

    Args:
        rate: bytes a second that the floor is computed from.
    """
    from triton.testing import do_bench

    tensors = draw(case, BATCH, L, HEADS, torch.bfloat16, device, seed=L)
    lengths_B = torch.full((BATCH,), L, device=device)
    with torch.no_grad():
        p20, median, p80 = do_bench(lambda: case.call(tensors, lengths_B, "triton"), quantiles=[0.2, 0.5, 0.8])
    query, key, value = (torch.randn(BATCH, HEADS, L, V, device=device, dtype=torch.bfloat16) for _ in range(3))
    attention = do_bench(lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True), return_mode="median")
    floor = case.elements * 2 * BATCH * HEADS * L / rate * 1e3
    row = {"op": case.name, "n": L, "batch": BATCH, "heads": HEADS, "dtype": "bfloat16", "ms": median, "p20": p20,
           "p80": p80, "sdpa_ms": attention, "ratio_to_sdpa": attention / median, "floor_ms": floor,
           "fraction_of_floor": floor / median}
    if L <= LONGEST_TRAINED:
        leaves = {name: x.requires_grad_() for name, x in tensors.items()}
        row["forward_backward_ms"] = do_bench(
            lambda: case.call(leaves, lengths_B, "triton")[0].sum().backward(), return_mode="median")
    return row


def step_error(device: str, dtype: torch.dtype, steps: int = 20) -> float:
    """Distance of the one-token kernel from the torch step in float64, some tokens on."""
    with torch.no_grad():
        tensors = draw(CASES[0], 3, 10 + steps, 4, dtype, device, seed=5)
        start, rest = ({name: value[:, part] for name, value in tensors.items()} for part in (slice(10), slice(10, None)))
        _, state = taylor(**{f"{n}_BLH{'V' if n == 'v' else 'K'}": x for n, x in start.items()}, backend="triton", return_state=True)
        _, truth = taylor(*(x.double().cpu() for x in start.values()), return_state=True)
        got, right = [], []
        for t in range(steps):
            y, state = taylor_step(*(x[:, t] for x in rest.values()), state, backend="triton")
            z, truth = taylor_step(*(x[:, t].double().cpu() for x in rest.values()), truth)
            got.append(y)
            right.append(z)
    return distance([torch.stack(got), *state], [torch.stack(right), *truth])


def facts(device: str) -> dict[str, Any]:
    """What the figures were taken on."""
    found: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__,
                             "triton": ".".join(map(str, triton_version() or ())), "card": "interpreter", "driver": None}
    if device == "cuda":
        found["card"] = torch.cuda.get_device_name()
        found["capability"] = list(torch.cuda.get_device_capability())
        found["driver"] = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                                         capture_output=True, text=True, check=False).stdout.strip() or None
    return found


def check(device: str) -> dict[str, Any]:
    """Everything this file finds out, as one JSON-ready object."""
    sizes = REAL if device == "cuda" else TOY
    say = sys.stderr.write
    result: dict[str, Any] = {"facts": facts(device), "checks": [], "times": []}
    rate = bandwidth(device) if device == "cuda" else None
    result["facts"]["copy_bytes_per_second"] = rate
    for case in CASES:
        green = True
        for dtype in (torch.bfloat16, torch.float32) if device == "cuda" else (torch.float32,):
            found = errors(case, dtype, device, sizes)
            row = {"op": case.name, "dtype": str(dtype).removeprefix("torch."), "errors": found,
                   "tolerance": TOLERANCE[dtype], "same_bits": same_bits(case, dtype, device, sizes)}
            if case.name == "taylor":
                found["step"] = step_error(device, dtype, 20 if device == "cuda" else 2)
            row["right"] = max(found.values()) <= TOLERANCE[dtype] and row["same_bits"]
            green = green and row["right"]
            result["checks"].append(row)
            say(f"{case.name} {row['dtype']}: worst error {max(found.values()):.1e}, "
                f"{'same bits' if row['same_bits'] else 'BITS DIFFER'}, {'right' if row['right'] else 'WRONG'}\n")
        if device == "cuda" and green:
            for L in LENGTHS:
                row = times(case, L, device, rate)
                torch.cuda.empty_cache()
                result["times"].append(row)
                say(f"{case.name} n={row['n']}: {row['ms']:.3f} ms, attention {row['sdpa_ms']:.2f} ms "
                    f"({row['ratio_to_sdpa']:.1f}x), {row['fraction_of_floor']:.0%} of the floor\n")
    return result


def main(arguments: list[str] | None = None) -> int:
    """Run, write the JSON file, say where; 1 if any check is red."""
    parser = argparse.ArgumentParser(prog="python -m kernels.gpu_check", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help=f"folder for the JSON file (default: {KEPT}; in the interpreter a "
                                                      "temporary one)")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not interpreted():
        parser.error("no GPU here; TRITON_INTERPRET=1 runs the checks slowly, at toy sizes, without times")
    out = options.out or (KEPT if device == "cuda" else Path(tempfile.mkdtemp(prefix="gpu_check-")))
    if out.exists() and not out.is_dir():
        parser.error(f"--out {out} is not a folder")
    result = check(device)
    out.mkdir(parents=True, exist_ok=True)
    name = result["facts"]["card"].lower().replace(" ", "-")
    target = out / f"{name}-triton-{result['facts']['triton']}.json"
    target.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{target}\n")
    return 0 if all(row["right"] for row in result["checks"]) else 1


if __name__ == "__main__":
    sys.exit(main())
