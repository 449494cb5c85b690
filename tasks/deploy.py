"""Deploy stage: what one checkpoint costs to serve at each input length, as `deploy.json`.

One row a length: {length, ttft_ms, tokens_per_s, state_bytes, peak_bytes, error, tolerance, contended, reason, batch_rows,
repetitions}. A report joins them with recall by length.

ttft_ms       the prompt's prefill up to the choice of the first token, median of the repeats after the warm-up
tokens_per_s  of all rows together, over `generation_tokens` steps after an untimed one, median of the repeats
state_bytes   of the live cache after the prompt, all rows together, whatever storage it holds
peak_bytes    tensors alive at once in the prefill, its result included, the weights not
error         the gate: on the length's first tokens, prefill and steps against one forward, largest difference of the
              logits over the largest logit. Above `tolerance` (or not finite: null) there is no time
reason        why a length has no figures: it cannot be placed, the gate is red, or a call failed

On a CPU with one thread the clock is this thread's own CPU time and `contended` says whether it had to wait for the
processor; elsewhere it is wall time with the device's queue emptied. Prompts are random tokens, the same for every model
of a vocabulary; a model that reads a prefix takes the whole prompt as such, or its first M tokens.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from storage.artifacts import Store, artifact_id
from storage.identity import code_hash
from storage.progress import progress
from tasks.specs import DeploySpec

KIND, FILE = "deploy", "deploy.json"
OUTSIDE = "tasks.external"
VERSION = "1"
STEPS = 8           # of the gate, after a prefill
FIGURES = ("ttft_ms", "tokens_per_s", "state_bytes", "peak_bytes", "contended")


def plan(spec: DeploySpec, store: Store | None, checkpoint: str, mixers: Iterable[str] | None = None) -> str:
    """The id that `run` would return on this machine; nothing is done."""
    return artifact_id(KIND, resolve(spec), _inputs(checkpoint), _code(checkpoint, mixers))


def run(spec: DeploySpec, store: Store, checkpoint: str, mixers: Iterable[str] | None = None) -> str:
    """Measure unless it is there, and return the id of the `deploy` artifact.

    checkpoint: an artifact, or a model of transformers as `hf:<folder or hub name>`; mixers: as in evaluate.run.
    Raises SpecError where this machine lacks the device, and what loading the checkpoint raises.
    """
    from tasks.benchmarks import machine

    def build(folder: Path) -> dict[str, Any]:
        machine.check(spec.device)
        rows = measure(_load(checkpoint, store, spec), spec)
        (folder / FILE).write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        source = {"source": checkpoint} if _is_outside(checkpoint) else {}
        return {"rows": len(rows), "without_figures": sum(row["reason"] is not None for row in rows),
                "contended": sum(bool(row["contended"]) for row in rows), **source}

    return store.produce(KIND, resolve(spec), _inputs(checkpoint), _code(checkpoint, mixers), build, VERSION)


def placed(spec: DeploySpec) -> DeploySpec:
    """The spec with machine and dtype named, so that whoever plans and whoever measures mean the same artifact."""
    from tasks.benchmarks import machine

    dtype = spec.dtype or ("bfloat16" if spec.device == "cuda" else "float32")
    return spec.model_copy(update={"machine": spec.machine or machine.name(spec.device), "dtype": dtype})


def resolve(spec: DeploySpec) -> dict[str, Any]:
    """What is hashed: the spec, and what a time depends on besides the code."""
    from tasks.benchmarks import machine

    return {**placed(spec).model_dump(mode="json"), "versions": machine.versions()}


# ----------------------------------------------------------------------------------------------------------- measuring
def measure(model: Any, spec: DeploySpec) -> list[dict[str, Any]]:
    """A row for each length, shortest first. One that fails takes no other's figures with it."""
    import torch

    from tasks.predictions import threads

    model.eval()
    rows = []
    with threads(spec.threads), torch.no_grad(), progress(len(spec.lengths), "deploy", "lengths") as shown:
        for length in sorted(set(spec.lengths)):
            shown.note(f"{length:,} tokens")
            rows.append(_row(model, spec, length))
            shown.advance()
    return rows


def _row(model: Any, spec: DeploySpec, length: int) -> dict[str, Any]:
    from tasks.benchmarks import refusals
    from tasks.benchmarks.whole_models import TOLERANCE

    row = {"length": length, **dict.fromkeys(FIGURES), "error": None, "tolerance": TOLERANCE[placed(spec).dtype],
           "reason": None, "batch_rows": spec.batch_rows, "repetitions": 0}
    limit = model.able.max_length
    if limit is not None and length + spec.generation_tokens + 1 > limit:
        room = f"{length} tokens and {spec.generation_tokens + 1} after them"
        return {**row, "reason": f"the model can place {limit} tokens, not {room}"}
    try:
        error = gate(model, spec, length)
        row["error"] = error if math.isfinite(error) else None
        if not error <= row["tolerance"]:
            return {**row, "reason": f"prefill and steps differ from the forward by {error:.1e}, allowed are "
                                     f"{row['tolerance']:.0e}"}
        return row | _figures(model, spec, length)
    except Exception as problem:  # noqa: BLE001 - one length that fails must not take the others' figures with it
        return {**row, **dict.fromkeys(FIGURES), "reason": refusals.note(problem, spec.device)}


def gate(model: Any, spec: DeploySpec, length: int) -> float:
    """Largest difference between logits of prefill + steps and of one forward, over the largest logit."""
    import torch

    from tasks.benchmarks.rows import relative

    ids_BL = prompts(model, spec, min(length, spec.check_tokens))
    L = ids_BL.shape[1]
    first = L - min(STEPS, L - 1)
    layout = _layout(model, spec, first)
    wanted_BLE = model(ids_BL, _layout(model, spec, L, first))
    logits_BE, state = model.prefill(ids_BL[:, :first], layout)
    found = [logits_BE]
    for place in range(first, L):
        logits_BE, state = model.step(ids_BL[:, place], state)
        found.append(logits_BE)
    return relative(torch.stack(found, 1), wanted_BLE[:, first - 1:])


def prompts(model: Any, spec: DeploySpec, length: int) -> Any:
    """ids_BL: random tokens; a longer prompt begins with a shorter one's."""
    import torch

    generator = torch.Generator().manual_seed(spec.seed)
    ids_LB = torch.randint(model.config.vocabulary, (length, spec.batch_rows), generator=generator)
    return ids_LB.T.contiguous().to(model.embedding.weight.device)


def _layout(model: Any, spec: DeploySpec, length: int, prompt: int | None = None) -> Any:
    """Full rows, the first `prompt` tokens (None = all) of which are the prompt that a prefix may cover."""
    from models import Layout

    layout = Layout.dense(spec.batch_rows, length, device=model.embedding.weight.device)
    if not model.able.prefix:
        return layout
    limit = model.config.prefix_tokens if spec.prefix_tokens is None else spec.prefix_tokens
    prompt = length if prompt is None else prompt
    return layout.with_prefix(prompt if limit is None else min(limit, prompt))


def _figures(model: Any, spec: DeploySpec, length: int) -> dict[str, Any]:
    from tasks.timing import Times, observed

    ids_BL, layout = prompts(model, spec, length), _layout(model, spec, length)
    (_, state), peak, _ = observed(lambda: _first(model, ids_BL, layout), spec.device)
    held = state.nbytes
    prefills, decodes = Times(device=spec.device), Times(device=spec.device)
    for turn in range(spec.warm_up + spec.repeats):
        (token_B, state), *first = _clocked(lambda: _first(model, ids_BL, layout), spec)
        token_B, state = _decode(model, token_B, state, 1)
        _, *rest = _clocked(lambda: _decode(model, token_B, state, spec.generation_tokens), spec)  # noqa: B023 - called here
        if turn >= spec.warm_up:
            for times, (work, wall) in ((prefills, first), (decodes, rest)):
                times.work.append(work)
                times.wall.append(wall)
    made = spec.batch_rows * spec.generation_tokens
    contended = [times.contended for times in (prefills, decodes)]
    return {"ttft_ms": 1e3 * statistics.median(prefills.work), "tokens_per_s": made / statistics.median(decodes.work),
            "state_bytes": held, "peak_bytes": peak, "repetitions": spec.repeats,
            "contended": None if None in contended else any(contended)}


def _first(model: Any, ids_BL: Any, layout: Any) -> tuple[Any, Any]:
    logits_BE, state = model.prefill(ids_BL, layout)
    return logits_BE[:, :model.config.vocabulary].argmax(-1), state


def _decode(model: Any, token_B: Any, state: Any, steps: int) -> tuple[Any, Any]:
    for _ in range(steps):
        logits_BE, state = model.step(token_B, state)
        token_B = logits_BE[:, :model.config.vocabulary].argmax(-1)
    return token_B, state


def _clocked(call: Any, spec: DeploySpec) -> tuple[Any, float, float]:
    """(result, seconds of the clock that counts, wall seconds)."""
    import torch

    empty = torch.cuda.synchronize if spec.device == "cuda" else (lambda: None)
    own = time.thread_time if spec.device == "cpu" and spec.threads == 1 else time.perf_counter
    empty()
    wall, work = time.perf_counter(), own()
    result = call()
    empty()
    return result, own() - work, time.perf_counter() - wall


# ------------------------------------------------------------------------------------------------------------ identity
def _load(checkpoint: str, store: Store, spec: DeploySpec) -> Any:
    import torch

    dtype = getattr(torch, placed(spec).dtype)
    if _is_outside(checkpoint):
        return importlib.import_module(OUTSIDE).load_external(checkpoint, dtype, spec.device)
    from models import load_model

    store.verify(checkpoint)
    return load_model(store.path(checkpoint), dtype, spec.device)


def _inputs(checkpoint: str) -> dict[str, str]:
    return {"checkpoint": importlib.import_module(OUTSIDE).identity(checkpoint) if _is_outside(checkpoint) else checkpoint}


def _is_outside(checkpoint: str) -> bool:
    return checkpoint.startswith("hf:")


def _code(checkpoint: str, mixers: Iterable[str] | None) -> str:
    """Hash of this stage and of the trunk and mixers that may run, or of the adapter (imported by name, so that it is
    part of the identity of nothing else)."""
    if _is_outside(checkpoint):
        return code_hash([__name__, OUTSIDE])
    if mixers is None:
        [folder] = importlib.util.find_spec("models").submodule_search_locations
        mixers = [path.stem for path in Path(folder, "mixers").glob("*.py") if path.stem[0] != "_"]
    return code_hash([__name__, "models.checkpoint", *(f"models.mixers.{kind}" for kind in sorted(set(mixers)))])
