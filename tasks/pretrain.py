"""Pretrain stage: one model, trained once on the rows of a study or on shards, as a `checkpoint` artifact.

Files: config.json and model.safetensors (`models.load_model`), tokenizer/ (copied from the data), curve.jsonl
(`tasks.training.record`), summary.json (totals, last losses, conditions). A run that is killed goes on from its last
resumable checkpoint, in the same artifact and the same tracked run. What decides the id: the resolved model config,
the training spec, the seed, the ids of rows and shards, and the code of this stage and of the mixers used.

A trial (`train.trial`) is a short training for its losses: a `trial` artifact without weights, and one that diverges is
a finding, not a failure. A training with a sweep has its trials as inputs and takes the best value when it starts.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch

from models import ModelConfig, preset
from storage import logs
from storage.artifacts import Store, artifact_id
from storage.errors import ConfigError, SpecError
from storage.identity import code_hash
from storage.tracking import NoTracking, Tracking
from tasks.specs import PretrainSpec, TrainSpec
from tasks.training import sweep
from tasks.training.checkpoints import LocalCheckpoints
from tasks.training.data import resolve_objective
from tasks.training.engine import InProcess
from tasks.training.job import TOKENIZER, Job, accumulations, check_vocabulary, open_source, run_job
from tasks.training.loop import Diverged

VERSION = "1"
SUMMARY = "summary.json"

log = logs.get("tasks.pretrain")


COUNTS = ("architecture", "seed", "steps", "rows", "tokens", "supervised", "parameters", "training_flops",
          "tokens_per_second")
FINDINGS = ("validation_loss", "validation_bits_per_byte", "diverged")


def run(spec: PretrainSpec, store: Store, rows: str | None = None, shards: str | None = None,
        tracking: Tracking | NoTracking | None = None, run_id: str = "", **trials: str) -> str:
    """Train the model and return the id of its `checkpoint` artifact (of a trial: its `trial` artifact).

    rows, shards      what is trained on, with its tokenizer: rows or shards, as `spec.train.data` says
    trials            of a sweep: `sweep.role(value)` -> id of the trial at that value
    tracking, run_id  where metrics go, under a run that the caller has started
    """
    resolved, inputs, code = _identity(spec, rows, shards, trials)
    identifier = artifact_id(_kind(spec), resolved, inputs, code)
    tracking = tracking or NoTracking()

    def build(folder: Path) -> dict[str, Any]:
        data = store.path(inputs[spec.train.data])
        train, chosen = _settled(spec, store, trials)
        job = Job(spec.model_copy(update={"train": train}), resolved["model"], identifier, str(folder.absolute()),
                  str(data), tracking, run_id)
        _check(job)
        if chosen:
            tell(tracking, run_id, chosen["sweep"])
        totals = _train(job)
        if train.trial is None:
            job.tokenizer().save(folder / TOKENIZER)
        summary = {"architecture": spec.architecture, "model": spec.model, "seed": spec.seed, **totals, **chosen,
                   "trainer": train.trainer, "workers": train.workers, "threads": train.threads,
                   "precision": train.precision, "processor": platform.processor() or platform.machine(),
                   "torch": torch.__version__}
        (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
        LocalCheckpoints(folder).remove()
        counts = {name: summary[name] for name in COUNTS if name in summary}
        if train.trial is not None:
            counts |= {name: summary[name] for name in FINDINGS if name in summary}
        return counts | chosen

    return store.produce(_kind(spec), resolved, inputs, code, build, VERSION)


def plan(spec: PretrainSpec, store: Store, rows: str | None = None, shards: str | None = None, **trials: str) -> str:
    """The id that `run` would return; nothing is trained and the inputs need not exist."""
    return artifact_id(_kind(spec), *_identity(spec, rows, shards, trials))


def _kind(spec: PretrainSpec) -> str:
    return "checkpoint" if spec.train.trial is None else "trial"


def _settled(spec: PretrainSpec, store: Store, trials: dict[str, str]) -> tuple[TrainSpec, dict[str, Any]]:
    """The training with its sweep decided, and {"sweep": what was chosen and why}, empty without a sweep."""
    found = spec.train.sweep
    if found is None:
        return spec.train, {}
    chosen, facts = sweep.outcome(found.field, sweep.read(store, {v: trials[sweep.role(v)] for v in found.values}))
    log.info("%s: %s chosen among %s on validation rows", spec.architecture, sweep.label(found, chosen),
             ", ".join(f"{value:g}" for value in found.values))
    return spec.train.at(chosen), {"sweep": facts}


def tell(tracking: Tracking | NoTracking, run_id: str, facts: dict[str, Any]) -> None:
    """The choice goes to the run's tags, the losses of all trials to its table `sweep`."""
    tracking.tag(run_id, {f"sweep.{name}": facts[name] for name in ("field", "chosen", "edge")})
    tracking.table(run_id, facts["trials"], "sweep")


def resolve_config(spec: PretrainSpec) -> ModelConfig:
    """The model config: preset, then overrides (dotted names reach inside, `mixers.window.width`), then the seed.

    Raises ConfigError for an unknown preset, field or value.
    """
    fields = preset(spec.model).model_dump(mode="json")
    for name, value in spec.model_overrides.items():
        _set(fields, name, value)
    try:
        return ModelConfig.model_validate({**fields, "seed": spec.seed})
    except ValueError as error:
        raise ConfigError(f"model {spec.model!r} with overrides {spec.model_overrides}: {error}") from error


def _set(fields: dict[str, Any], dotted: str, value: Any) -> None:
    *path, last = dotted.split(".")
    inner = fields
    for part in path:
        inner = inner.get(part) if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or (last not in inner and inner is not fields.get("mixers")):
        raise ConfigError(f"model override {dotted!r} names no field; the config has {', '.join(fields)}")
    inner[last] = value


def _identity(spec: PretrainSpec, rows: str | None, shards: str | None,
              trials: dict[str, str] | None = None) -> tuple[dict[str, Any], dict[str, str], str]:
    """(resolved spec, inputs, code hash). Inputs are the data trained on and a sweep's trials. SpecError if one is
    missing."""
    role = spec.train.data
    identifier = {"rows": rows, "shards": shards}[role]
    if not identifier or identifier.rpartition("-")[0] != role:
        raise SpecError(f"training data {role!r} needs the id of a {role} artifact, got {identifier!r}")
    config = resolve_config(spec)
    resolve_objective(spec.train, _reads_prefix(config), 0, spec.seed)          # refuses what does not fit
    wanted = {sweep.role(value) for value in (spec.train.sweep.values if spec.train.sweep else ())}
    if wanted != set(trials or {}):
        raise SpecError(f"a sweep over {len(wanted)} values needs the ids of its trials, named "
                        f"{', '.join(sorted(wanted)) or '(none)'}; got {', '.join(sorted(trials or {})) or 'none'}")
    resolved = {**spec.model_dump(mode="json"), "model": config.model_dump(mode="json"), "preset": spec.model}
    for name in ("trial", "sweep"):                    # unused, they do not count: older trainings keep their names
        if resolved["train"][name] is None:
            del resolved["train"][name]
    used = sorted({f"models.mixers.{config.mixers[name].kind}" for name in config.plan})
    return resolved, {role: identifier, **(trials or {})}, code_hash(["tasks.pretrain", *used])


def _check(job: Job) -> None:
    """Everything that can be wrong with a job and can be known without training, on the machine that asks."""
    train = job.spec.train
    config = job.model_config()
    tokenizer = job.tokenizer()
    check_vocabulary(config, tokenizer.name, tokenizer.embedding_rows)
    if train.trainer == "in_process" and train.gpus_per_worker and not torch.cuda.is_available():
        raise SpecError("gpus_per_worker is 1 but this machine has no CUDA device; set it to 0 to train on the CPU")
    source = open_source(job, tokenizer, reads_prefix=_reads_prefix(config), workers=train.workers)
    if train.trial is not None and not source.validation(1):
        raise SpecError(f"a sweep chooses on validation rows, and {job.data} has none; set rows.validation_tokens above "
                        "0, or corpus.validation_share, or leave out train.sweep")


def _reads_prefix(config: ModelConfig) -> bool:
    from models import registry

    return any(registry.abilities(config.mixers[name]).prefix for name in config.plan)


def _train(job: Job) -> dict[str, Any]:
    """The run's totals; of a trial that diverged, what it said when it did."""
    spec = job.spec.train
    log.info("pretraining %s (seed %d) as %s, %s", job.spec.architecture, job.spec.seed, job.fingerprint, spec.trainer)
    try:
        totals = _run(job)
    except Diverged as failure:
        if spec.trial is None:
            raise
        log.warning("trial of %s diverged: %s", job.spec.architecture, failure)
        return {"diverged": str(failure)}
    if spec.trial is not None:
        totals |= {name: sweep.finite(totals.get(name)) for name in FINDINGS[:2] if name in totals}
    return totals


def _run(job: Job) -> dict[str, Any]:
    spec = job.spec.train
    if spec.trainer == "deepspeed":
        from tasks.training.ray_workers import train_on_ray

        return train_on_ray(job)
    device = "cuda" if spec.gpus_per_worker else "cpu"
    return run_job(job, lambda model: InProcess(model, spec, accumulations(job), device), LocalCheckpoints(job.folder))
