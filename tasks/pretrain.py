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
from tasks.tokenizers import load_tokenizer
from tasks.training.checkpoints import LocalCheckpoints
from tasks.training.engine import InProcess
from tasks.training.job import Job, accumulations, check_vocabulary, open_source, run_job

VERSION = "1"
SUMMARY = "summary.json"

log = logs.get("tasks.pretrain")


def run(spec: PretrainSpec, store: Store, rows: str | None = None, shards: str | None = None,
        tracking: Tracking | NoTracking | None = None, run_id: str = "") -> str:
    """Train the model and return the id of its `checkpoint` artifact.

    rows, shards   artifacts trained on; `shards` also gives the tokenizer where rows bring none
    tracking       where metrics go, under the run `run_id` that the caller has started
    """
    resolved, inputs, code = _identity(spec, rows, shards)
    identifier = artifact_id("checkpoint", resolved, inputs, code)

    def build(folder: Path) -> dict[str, Any]:
        tokenizer = _tokenizer(store, rows, shards)
        job = Job(spec, resolved["model"], identifier, str(folder.absolute()),
                  str(store.path(rows)) if rows else None, str(store.path(shards)) if shards else None, tokenizer,
                  tracking or NoTracking(), run_id)
        _check(job)
        totals = _train(job)
        load_tokenizer(tokenizer).save(folder / "tokenizer")
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
    """(resolved spec, inputs, code hash). SpecError where the inputs do not go with the spec."""
    needed = {"rows": rows, "shards": shards}[spec.train.data]
    if not needed:
        raise SpecError(f"training data {spec.train.data!r} needs the id of a {spec.train.data} artifact")
    for role, identifier in (("rows", rows), ("shards", shards)):
        if identifier and identifier.rpartition("-")[0] != role:
            raise SpecError(f"{identifier!r} was given as {role}, but its name says otherwise")
    config = resolve_config(spec)
    resolved = {**spec.model_dump(mode="json"), "model": config.model_dump(mode="json"), "preset": spec.model}
    used = sorted({f"models.mixers.{config.mixers[name].kind}" for name in config.plan})
    inputs = {role: identifier for role, identifier in (("rows", rows), ("shards", shards)) if identifier}
    return resolved, inputs, code_hash(["tasks.pretrain", *used])


def _tokenizer(store: Store, rows: str | None, shards: str | None) -> str:
    """Folder or name of the tokenizer that the data were written with."""
    for identifier in (rows, shards):
        if identifier and (store.path(identifier) / "tokenizer").is_dir():
            return str(store.path(identifier) / "tokenizer")
    spec = store.manifest(rows).spec if rows else {}
    if spec.get("kind") == "disjoint":
        return f"ids:{spec['vocabulary']}"
    raise SpecError(f"neither {rows} nor {shards} carries a tokenizer: give the shards that the rows were made from")


def _check(job: Job) -> None:
    """Everything that can be wrong with a job and can be known without training, on the machine that asks."""
    train = job.spec.train
    config = ModelConfig.model_validate(job.config)
    tokenizer = load_tokenizer(job.tokenizer)
    check_vocabulary(config, tokenizer)
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
