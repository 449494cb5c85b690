"""Sliding-window attention, and LAVO: the window, then the orthogonal memory of its outputs."""

from __future__ import annotations

import torch

from tasks.benchmarks.forms import WIDTH, ours
from tasks.benchmarks.operation import Count, Inputs, Operation, Setting, Step

WINDOW, SLOTS = 64, 64
BLOCK = 256       # queries of a block of the float64 formula


def draw(setting: Setting) -> Inputs:
    generator = setting.generator()
    tensors = {name: setting.draw(generator, setting.n, setting.heads, WIDTH) for name in ("q", "k", "v")}
    return {**tensors, "table": setting.weight(generator, 1, 2 * WINDOW - 1) * 0.5, **setting.lengths()}


def draw_lavo(setting: Setting) -> Inputs:
    """The window's inputs, and one orthonormal basis a head."""
    square = setting.weight(setting.generator(1), setting.heads, WIDTH, WIDTH, dtype=torch.float64)
    return {**draw(setting), "basis": torch.linalg.qr(square).Q[:, :SLOTS].to(setting.dtype).contiguous()}


def call(inputs: Inputs, backend: str) -> torch.Tensor:
    from kernels.window import window

    return window(inputs["q"], inputs["k"], inputs["v"], window=WINDOW, table=inputs["table"],
                  lengths_B=inputs.get("lengths_B"), backend=backend)


def call_lavo(inputs: Inputs, backend: str) -> torch.Tensor:
    """(local + global) / 2, the global part compressing what the window gave (dissection "token")."""
    from kernels.orthogonal_memory import lavo

    return lavo(inputs["q"], inputs["k"], inputs["v"], inputs["basis"], window=WINDOW, table=inputs["table"],
                lengths_B=inputs.get("lengths_B"), backend=backend)


# -------------------------------------------------------------------------------------------------- formulas, float64
def local(inputs: Inputs) -> torch.Tensor:
    """The window's output at every position, block after block of queries with the keys that they may see."""
    q, k, v, table = (inputs[name] for name in ("q", "k", "v", "table"))
    found = []
    for start in range(0, q.shape[1], BLOCK):
        stop, first = min(start + BLOCK, q.shape[1]), max(0, start - WINDOW + 1)
        offset = torch.arange(first, stop, device=q.device) - torch.arange(start, stop, device=q.device)[:, None]
        logits = torch.einsum("bshk,bjhk->bhsj", q[:, start:stop], k[:, first:stop]) * WIDTH**-0.5
        logits = logits + table[:, (offset + WINDOW - 1).clamp(0, 2 * WINDOW - 2)][None]
        logits = logits.masked_fill((offset > 0) | (offset <= -WINDOW), float("-inf"))
        found.append(torch.einsum("bhsj,bjhv->bshv", logits.softmax(-1), v[:, first:stop]))
    return torch.cat(found, 1)


def formula(inputs: Inputs, at: torch.Tensor) -> torch.Tensor:
    return local(inputs)[:, at]


def formula_lavo(inputs: Inputs, at: torch.Tensor) -> torch.Tensor:
    """LAVO §3.2: H_t the mean of B x up to t, out = (softmax(H ⊙ B q) ⊙ H) B."""
    near, basis = local(inputs), inputs["basis"]
    tokens = torch.arange(1, near.shape[1] + 1, device=near.device, dtype=near.dtype)
    mean = torch.einsum("bjhk,hrk->bjhr", near, basis).cumsum(1) / tokens[:, None, None]
    mean, query = mean[:, at], torch.einsum("bshk,hrk->bshr", inputs["q"][:, at], basis)
    far = torch.einsum("bshr,hrk->bshk", (query * mean).softmax(-1) * mean, basis)
    return (near[:, at] + far) / 2


def count(setting: Setting) -> Count:
    tokens = setting.batch * setting.heads * setting.n
    return Count(tokens * 4 * WINDOW * WIDTH, tokens * 4 * WIDTH * setting.dtype.itemsize)


def count_lavo(setting: Setting) -> Count:
    """The window, and three products with the basis; what the memory reads of the window's output may stay on chip."""
    own = count(setting)
    return Count(own.flops + setting.batch * setting.heads * setting.n * 6 * SLOTS * WIDTH, own.bytes)


# ------------------------------------------------------------------------------------------------------- decode step
def streaming(setting: Setting) -> tuple[dict[str, object], int]:
    """The last 63 keys and values, and the memory of n tokens."""
    from kernels.orthogonal_memory import MemoryState

    generator = setting.generator()
    parts: dict[str, object] = {name: setting.draw(generator, setting.heads, WIDTH) for name in ("q", "k", "v")}
    held = {name: setting.draw(generator, WINDOW - 1, setting.heads, WIDTH) for name in ("past_k", "past_v")}
    count_B = torch.full((setting.batch,), setting.n, device=setting.device)
    sums = setting.draw(generator, setting.heads, SLOTS).to(torch.promote_types(setting.dtype, torch.float32))
    state = MemoryState(sums * setting.n**0.5, count_B)
    fixed = draw_lavo(Setting(1, 1, setting.heads, setting.dtype, setting.device, setting.seed))
    stored = sum(x.nbytes for x in (*held.values(), *state))
    return {**parts, **held, "past_B": count_B, "table": fixed["table"], "basis": fixed["basis"], "state": state}, stored


def near_step(parts: dict[str, object], backend: str) -> torch.Tensor:
    from kernels.window import window

    token = (parts[name][:, None] for name in ("q", "k", "v"))
    return window(*token, window=WINDOW, table=parts["table"], past_k=parts["past_k"], past_v=parts["past_v"],
                  past_B=parts["past_B"], backend=backend)


def step(parts: dict[str, object]) -> torch.Tensor:
    from kernels.orthogonal_memory import memory_step

    near = near_step(parts, "auto")[:, 0]
    far, parts["state"] = memory_step(parts["q"], near, parts["basis"], parts["state"])
    for name, new in (("past_k", parts["k"]), ("past_v", parts["v"])):
        parts[name] = torch.cat((parts[name][:, 1:], new[:, None]), 1)
    return (near + far) / 2


def step_truth(parts: dict[str, object]) -> torch.Tensor:
    from kernels.orthogonal_memory import orthogonal_memory

    near = near_step(parts, "naive")
    far = orthogonal_memory(parts["q"][:, None], near, parts["basis"], state=parts["state"], backend="naive")
    return ((near + far) / 2)[:, 0]


LEAVES = ("q", "k", "v", "table")
OPERATIONS = (
    Operation("window", f"causal window of {WINDOW} keys with a relative table, head width 64",
              draw, ours(call, "kernels.window"), formula, count, lambda inputs: call(inputs, "naive"), leaves=LEAVES,
              shared=("table",), needs=("kernels.window.naive",)),
    Operation("lavo", f"LAVO: window {WINDOW} with table, then orthogonal memory of {SLOTS} slots (token dissection)",
              draw_lavo, ours(call_lavo, "kernels.window", "kernels.orthogonal_memory"), formula_lavo, count_lavo,
              lambda inputs: call_lavo(inputs, "naive"), leaves=(*LEAVES, "basis"), shared=("table", "basis"),
              needs=("kernels.window", "kernels.orthogonal_memory"), step=Step(streaming, step, step_truth)),
)
