"""The launches that the compile job goes through: every kernel, for bfloat16 and float32, narrow and wide values."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernels.compile import Variant
from kernels.taylor.features import expanded_width
from kernels.taylor.triton_blocks import value_width
from kernels.taylor.triton_config import SEGMENT
from kernels.taylor.triton_gradient import key_gradient, output_gradient, query_gradient
from kernels.taylor.triton_launch import key_gradient_passes, options
from kernels.taylor.triton_output import outputs
from kernels.taylor.triton_state import state_scan
from kernels.taylor.triton_step import ROWS, WARPS, step
from kernels.triton_mode import CAPABILITIES

HEADS, LENGTH = 16, 32768
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
SIZES = ((16, 64, torch.bfloat16), (16, 64, torch.float32), (16, 128, torch.bfloat16), (8, 64, torch.bfloat16),
         (32, 64, torch.bfloat16))
FLAGS = ("FIRST", "BEFORE", "LAST", "WEIGHTED", "REVERSE", "STATE", "CAUSAL", "KEYS", "VALUES", "RAGGED")
# pointers by what they hold: the inputs' type, the type of stored boundary sums and gradients, or a type of its own
INPUTS = ("q", "k", "v", "dy", "y", "dq", "dk", "dv")
STORED = ("g", "before_kv", "after_kv")
FLOATS = ("weight", "first_kv", "first_z", "before_z", "after_z", "last_kv", "last_z", "z", "gz")


def variants(target: int | str) -> list[Variant]:
    """Forward, backward and step."""
    found = []
    for K, V, dtype in SIZES:
        for label, kernel, flags in (
                ("sums", state_scan, {"BEFORE", "LAST"}),
                ("sums from a state", state_scan, {"FIRST", "BEFORE", "LAST"}),
                ("reverse sums", state_scan, {"BEFORE", "LAST", "WEIGHTED", "REVERSE"}),
                ("outputs", outputs, {"STATE"}),
                ("output gradient", output_gradient, set()), ("dq", query_gradient, {"STATE"}),
                *((key_gradient_label(keys, values), key_gradient,
                   {"STATE", "CAUSAL", *("KEYS",) * keys, *("VALUES",) * values})
                  for keys, values in key_gradient_passes(dtype))):
            found.append(variant(target, label, kernel, K, V, dtype, flags))
    return found + list(steps(target))


def key_gradient_label(keys: bool, values: bool) -> str:
    return " ".join(("dk",) * keys + ("dv",) * values)


def variant(target: int | str, label: str, kernel, K: int, V: int, dtype: torch.dtype, flags: set[str]) -> Variant:
    """A launch on contiguous rows of 16 heads. Strides are constants here; a launch says that 16 divides them."""
    entry = "value_gradient" if kernel is key_gradient and "KEYS" not in flags else kernel.__name__
    chosen = options(kernel, entry, target, K, V, dtype, SEGMENT)
    launch = {name: chosen.pop(name) for name in ("num_warps", "num_stages")}
    constants = chosen | {name: name in flags for name in FLAGS if name in kernel.arg_names}
    name, stored = NAMES[dtype], "bf16" if dtype == torch.bfloat16 else "fp32"
    absent = {pointer for flag, pointers in (
        ("FIRST", ("first_kv", "first_z")), ("BEFORE", ("before_kv", "before_z")), ("LAST", ("last_kv", "last_z")),
        ("WEIGHTED", ("weight",)), ("RAGGED", ("lengths",)), ("CAUSAL", ("g", "gz")))
        if flag in constants and not constants[flag] for pointer in pointers}
    types = {}
    for argument in kernel.arg_names:
        if argument in constants:
            continue
        if argument in absent:
            constants[argument] = None
        elif argument.endswith(("_b", "_l", "_h")):
            constants[argument] = {"b": LENGTH * HEADS, "l": HEADS, "h": 1}[argument[-1]] * (
                V if argument[:-2] in ("v", "dy") else K)
        elif argument == "lengths":
            types[argument] = "*i64"
        else:
            types[argument] = (
                f"*{name}" if argument in INPUTS else f"*{stored}" if argument in STORED
                else "*fp32" if argument in FLOATS else "fp32" if argument in ("scale", "eps") else "i32")
    return Variant(f"{label} K{K} V{V} {name}", kernel, types, constants, launch)


def steps(target: int | str) -> Iterator[Variant]:
    rows = ROWS.get(target, ROWS[CAPABILITIES[0]])
    for K, V, dtype in SIZES:
        types = dict.fromkeys(("q", "k", "v", "y"), f"*{NAMES[dtype]}")
        types |= dict.fromkeys(("kv", "z", "coefficients"), "*fp32")
        types |= {"pairs": "*i32", "factor": "fp32", "eps": "fp32", "H": "i32"}
        constants = {"q_b": HEADS * K, "k_b": HEADS * K, "v_b": HEADS * V, "q_h": K, "k_h": K, "v_h": V,
                     "F": expanded_width(K), "V": V, "VP": value_width(V), "ROWS": rows}
        yield Variant(f"step K{K} V{V} {NAMES[dtype]}", step, types, constants, {"num_warps": WARPS})
