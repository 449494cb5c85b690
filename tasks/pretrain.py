"""Pretrain stage: one model, trained once on the rows of a study or on shards, as a `checkpoint` artifact.

Files: config.json and model.safetensors (`models.load_model`), tokenizer/ (copied from the data), curve.jsonl
(`tasks.training.record`), summary.json (totals, last losses, conditions). A run that is killed goes on from its last
resumable checkpoint, in the same artifact and the same tracked run. What decides the id: the resolved model config,
the training spec, the seed, the ids of rows and shards, and the code of this stage and of the mixers used.
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
from tasks.specs import PretrainSpec
from tasks.training.checkpoints import LocalCheckpoints
from tasks.training.data import resolve_objective
from tasks.training.engine import InProcess
from tasks.training.job import TOKENIZER, Job, accumulations, check_vocabulary, open_source, run_job

VERSION = "1"
SUMMARY = "summary.json"

log = logs.get("tasks.pretrain")


def run(spec: PretrainSpec, store: Store, rows: str | None = None, shards: str | None = None,
        tracking: Tracking | NoTracking | None = None, run_id: str = "") -> str:
    """Train the model and return the id of its `checkpoint` artifact.

    rows, shards      what is trained on, with its tokenizer: rows or shards, as `spec.train.data` says
    tracking, run_id  where metrics go, under a run that the caller has started
    """
    resolved, inputs, code = _identity(spec, rows, shards)
    identifier = artifact_id("checkpoint", resolved, inputs, code)

    def build(folder: Path) -> dict[str, Any]:
        data = store.path(inputs[spec.train.data])
        job = Job(spec, resolved["model"], identifier, str(folder.absolute()), str(data), tracking or NoTracking(),
                  run_id)
        _check(job)
        totals = _train(job)
        job.tokenizer().save(folder / TOKENIZER)
        summary = {"architecture": spec.architecture, "model": spec.model, "seed": spec.seed, **totals,
                   "trainer": spec.train.trainer, "workers": spec.train.workers, "threads": spec.train.threads,
                   "precision": spec.train.precision, "processor": platform.processor() or platform.machine(),
                   "torch": torch.__version__}
        (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
        LocalCheckpoints(folder).remove()
        return {name: summary[name] for name in ("architecture", "seed", "steps", "rows", "tokens", "supervised",
                                                 "parameters", "training_flops", "tokens_per_second")}

    return store.produce("checkpoint", resolved, inputs, code, build, VERSION)


def plan(spec: PretrainSpec, store: Store, rows: str | None = None, shards: str | None = None) -> str:
    """The id that `run` would return; nothing is trained and the inputs need not exist."""
    return artifact_id("checkpoint", *_identity(spec, rows, shards))


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


def _identity(spec: PretrainSpec, rows: str | None, shards: str | None) -> tuple[dict[str, Any], dict[str, str], str]:
    """(resolved spec, inputs, code hash). Only the data trained on is an input. SpecError if it is missing."""
    role = spec.train.data
    identifier = {"rows": rows, "shards": shards}[role]
    if not identifier or identifier.rpartition("-")[0] != role:
        raise SpecError(f"training data {role!r} needs the id of a {role} artifact, got {identifier!r}")
    config = resolve_config(spec)
    resolve_objective(spec.train, _reads_prefix(config), 0, spec.seed)          # refuses what does not fit
    resolved = {**spec.model_dump(mode="json"), "model": config.model_dump(mode="json"), "preset": spec.model}
    used = sorted({f"models.mixers.{config.mixers[name].kind}" for name in config.plan})
    return resolved, {role: identifier}, code_hash(["tasks.pretrain", *used])


def _check(job: Job) -> None:
    """Everything that can be wrong with a job and can be known without training, on the machine that asks."""
    train = job.spec.train
    config = job.model_config()
    tokenizer = job.tokenizer()
    check_vocabulary(config, tokenizer.name, tokenizer.embedding_rows)
    if train.trainer == "in_process" and train.gpus_per_worker and not torch.cuda.is_available():
        raise SpecError("gpus_per_worker is 1 but this machine has no CUDA device; set it to 0 to train on the CPU")
    open_source(job, tokenizer, reads_prefix=_reads_prefix(config), workers=train.workers)


def _reads_prefix(config: ModelConfig) -> bool:
    from models import registry

    return any(registry.abilities(config.mixers[name]).prefix for name in config.plan)


def _train(job: Job) -> dict[str, Any]:
    spec = job.spec.train
    log.info("pretraining %s (seed %d) as %s, %s", job.spec.architecture, job.spec.seed, job.fingerprint, spec.trainer)
    if spec.trainer == "deepspeed":
        from tasks.training.ray_workers import train_on_ray

        return train_on_ray(job)
    device = "cuda" if spec.gpus_per_worker else "cpu"
    return run_job(job, lambda model: InProcess(model, spec, accumulations(job), device), LocalCheckpoints(job.folder))
