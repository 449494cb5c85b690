"""The one training loop, for every engine, source and place where checkpoints are kept.

A step is a function of its number: rows, masks and rate follow from it, and everything else that matters (weights,
optimiser, random states, the means not yet reported) is in a checkpoint. So a run that was killed continues bit for
bit on the CPU: 20 steps straight = 10, kill −9, 10.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from models.objectives import Batch
from storage.errors import StageFailed
from tasks.specs import OptimiserSpec, TrainSpec
from tasks.training.checkpoints import Checkpoints
from tasks.training.data import Source
from tasks.training.engine import Engine
from tasks.training.record import Means, Recorder, memory_bytes
from tasks.training.schedule import rate_share


class Diverged(StageFailed):
    """A loss or a gradient that is not finite: an error of a training, a finding of a trial."""


@dataclass(frozen=True)
class Run:
    """One training run: how long, how, under which identity, and how many bytes each token stands for."""

    steps: int
    spec: TrainSpec
    fingerprint: str
    byte_lengths: np.ndarray  # int [E], 0 for special tokens


def train(engine: Engine, source: Source, checkpoints: Checkpoints, recorder: Recorder, run: Run) -> dict:
    """Train from the newest checkpoint to the last step; returns the run's totals and last losses.

    Raises Diverged, naming the step, when a loss or a gradient is not finite.
    """
    facts = checkpoints.resume(engine, run.fingerprint) or {
        "step": 0, "fingerprint": run.fingerprint, "supervised": 0, "silent": 0, "seconds": 0.0, "means": None, "last": {}}
    done, supervised, silent, seconds = (facts[name] for name in ("step", "supervised", "silent", "seconds"))
    means, last = Means(facts["means"]), dict(facts["last"])
    recorder.rewind(done)
    recorder.advance(done)
    for step in range(done, run.steps):
        began = time.perf_counter()
        losses, counts, point = _step(engine, source, run, step)
        tokens = source.tokens_before(step + 1)
        took = time.perf_counter() - began
        supervised, silent, seconds = supervised + counts.supervised, silent + counts.silent, seconds + took
        means.add(losses, tokens - source.tokens_before(step), took)
        done = step + 1
        here = {"step": done, "tokens": tokens, "supervised": supervised}
        if done % run.spec.log_every == 0 or done == run.steps:
            here |= {**means.take(), **point, "memory_bytes": memory_bytes(engine.device)}
        if done % run.spec.validate_every == 0 or done == run.steps:
            here |= validate(engine, source, run)
        if len(here) > 3:
            recorder.point(here)
            last |= here
        if done % run.spec.checkpoint_every == 0 and done < run.steps:
            checkpoints.keep(engine, {"step": done, "fingerprint": run.fingerprint, "rows": source.rows_before(done),
                                      "tokens": tokens, "supervised": supervised, "silent": silent,
                                      "seconds": seconds, "means": means.state(), "last": last})
        recorder.advance()
    tokens = source.tokens_before(done)
    return {"steps": done, "rows": source.rows_before(done), "tokens": tokens, "supervised": supervised,
            "silent_documents": silent, "seconds": round(seconds, 3), "tokens_per_second": tokens / max(seconds, 1e-9),
            **{name.replace("/", "_"): last[name] for name in sorted(last) if name.startswith(("loss", "validation"))},
            "memory_bytes": last["memory_bytes"]}


@dataclass(frozen=True)
class Counts:
    """Of one step, over all workers: targets, and documents that were all prefix."""

    supervised: int
    silent: int


def _step(engine: Engine, source: Source, run: Run, step: int) -> tuple[dict[str, float], Counts, dict[str, float]]:
    """One update. Returns mean losses over all workers, counts, and (gradient norm, rates)."""
    batches, counts = share_divisors(source.micro_batches(step), engine)
    sums: dict[str, float] = {}
    for batch in batches:
        total, terms = engine.losses(batch.to(engine.device))
        engine.backward(total)
        for name, value in {"loss": total.detach(), **{f"loss/{name}": mean for name, mean in terms.items()}}.items():
            sums[name] = sums.get(name, 0.0) + float(value)
    values = engine.sum(list(sums.values()))
    losses = {name: value / (len(batches) * engine.workers) for name, value in zip(sums, values)}
    _check_finite(step, "loss", losses["loss"], run)
    share = rate_share(step, run.steps, run.spec.optimiser)
    norm = engine.step(share)
    _check_finite(step, "gradient norm", norm, run)
    return losses, counts, {"gradient_norm": norm, **rates(run.spec.optimiser, share)}


def rates(spec: OptimiserSpec, share: float) -> dict[str, float]:
    """The rates in use, for the curves: AdamW's, and Muon's under learning_rate/matrix."""
    adamw = {"learning_rate": spec.learning_rate * share}
    return adamw | ({"learning_rate/matrix": spec.matrix_learning_rate * share} if spec.kind == "muon" else {})


def share_divisors(batches: list[Batch], engine: Engine) -> tuple[list[Batch], Counts]:
    """Let every micro-batch divide by the targets of the whole step, so that the split changes no gradient.

    Losses of micro-batches and workers are averaged, so a term's divisor is all its targets ÷ (micro-batches × workers).
    """
    if len(batches) == 1 and engine.workers == 1:
        return batches, Counts(batches[0].supervised, batches[0].silent)
    names = list(batches[0].terms)
    local = [sum(len(batch.terms[name].target_S) for batch in batches) for name in names]
    *targets, silent = engine.sum([*map(float, local), float(sum(batch.silent for batch in batches))])
    parts = len(batches) * engine.workers
    shared = [replace(batch, terms={name: replace(batch.terms[name], divisor=count / parts)
                                    for name, count in zip(names, targets)}) for batch in batches]
    return shared, Counts(int(sum(targets)), int(silent))


def validate(engine: Engine, source: Source, run: Run) -> dict[str, float]:
    """Loss and bits per byte of the validation targets, all of them causal; empty without validation rows."""
    nats, targets, size = 0.0, 0, 0
    for batch in source.validation(run.spec.validation_batches):
        batch = batch.to(engine.device)
        for name, loss_S in engine.each(batch).items():
            nats += float(loss_S.sum(dtype=torch.float64))
            targets += len(loss_S)
            size += int(run.byte_lengths[batch.terms[name].target_S.cpu().numpy()].sum())
    scores = {}
    if targets:
        scores["validation/loss"] = nats / targets
    if size:
        scores["validation/bits_per_byte"] = nats / math.log(2) / size
    return scores


def _check_finite(step: int, what: str, value: float, run: Run) -> None:
    if math.isfinite(value):
        return
    optimiser = run.spec.optimiser
    narrow = " or precision float32" if run.spec.precision != "float32" else ""
    raise Diverged(
        f"training broke at step {step + 1} of {run.steps}: {what} is {value}. Try a lower learning_rate (now "
        f"{optimiser.learning_rate:g}) or more warmup_steps (now {optimiser.warmup_steps}){narrow}; nothing was saved "
        "after the last checkpoint")
