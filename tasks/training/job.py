"""A training run from its plain description: the same function in this process and on every Ray worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models import LanguageModel, ModelConfig, build
from storage.errors import SpecError
from storage.progress import progress
from storage.tracking import NoTracking, Tracking
from tasks.specs import PretrainSpec
from tasks.tokenizers import Tokenizer, load_tokenizer
from tasks.training.checkpoints import Checkpoints
from tasks.training.data import RowBatches, ShardBatches, Source, resolve_objective
from tasks.training.engine import Engine, seed_generators
from tasks.training.loop import Run, train
from tasks.training.record import Recorder
from tasks.training.spread import Spread

TOKENIZER = "tokenizer"


@dataclass(frozen=True)
class Job:
    """All a worker needs, picklable: paths are absolute and readable from every worker."""

    spec: PretrainSpec
    config: dict[str, Any]  # the resolved model config
    fingerprint: str
    folder: str  # the artifact's work folder
    data: str  # the rows or shards, with their tokenizer
    tracking: Tracking | NoTracking = field(default_factory=NoTracking)
    run_id: str = ""

    def model_config(self) -> ModelConfig:
        return ModelConfig.model_validate(self.config)

    def tokenizer(self) -> Tokenizer:
        """The one that the data were written with."""
        return load_tokenizer(Path(self.data) / TOKENIZER)


def open_source(job: Job, tokenizer: Tokenizer, reads_prefix: bool, *, worker: int = 0, workers: int = 1) -> Source:
    """The rows that this job trains on. Raises before anything is trained if they cannot serve the spec."""
    spec = job.spec.train
    objective = resolve_objective(spec, reads_prefix, tokenizer.mask, job.spec.seed)
    if spec.data == "rows":
        return RowBatches(job.data, objective, worker=worker, workers=workers)
    return ShardBatches(job.data, objective, global_rows=spec.global_batch_rows, micro_rows=spec.micro_batch_rows,
                        worker=worker, workers=workers)


def check_vocabulary(config: ModelConfig, tokenizer: str, rows: int) -> None:
    """SpecError unless the model has a row for every id of the tokenizer, the mask included."""
    if config.table_rows < rows:
        raise SpecError(f"the model's embedding has {config.table_rows} rows, but tokenizer {tokenizer!r} needs "
                        f"{rows}: set model_overrides.vocabulary={rows}")


def accumulations(job: Job) -> int:
    """Micro-batches of one worker in one step."""
    spec = job.spec.train
    return 1 if spec.data == "rows" else spec.global_batch_rows // (spec.micro_batch_rows * spec.workers)


def run_job(job: Job, make_engine: Callable[[LanguageModel], Engine], checkpoints: Checkpoints) -> dict:
    """Train, write the model into the job's folder unless this is a trial, return the run's totals. Called on every
    worker."""
    spec = job.spec.train
    torch.set_num_threads(spec.threads)
    seed_generators(job.spec.seed)
    tokenizer, config = job.tokenizer(), job.model_config()
    check_vocabulary(config, tokenizer.name, tokenizer.embedding_rows)
    model = build(config)
    parameters = model.cost(1).parameters  # before ZeRO-3 takes them apart
    engine = make_engine(model)
    source = open_source(job, tokenizer, engine.model.abilities().prefix, worker=engine.worker, workers=engine.workers)
    steps = spec.steps if spec.steps is not None else len(source)
    if spec.trial is not None:
        source = Spread(source, steps, max(1, round(steps * spec.trial)))
        steps = len(source)
    lengths = np.zeros(max(config.table_rows, len(tokenizer.byte_lengths)), np.int64)
    lengths[:len(tokenizer.byte_lengths)] = tokenizer.byte_lengths
    run = Run(steps, spec, job.fingerprint, lengths)
    with progress(steps, f"pretrain {job.spec.architecture}, seed {job.spec.seed}", "steps") as bar:
        recorder = Recorder(job.folder, job.tracking, job.run_id, bar, silent=engine.worker > 0)
        totals = train(engine, source, checkpoints, recorder, run)
    if spec.trial is None:
        engine.export(Path(job.folder))
    job.tracking.flush()
    forward = sum(rows * engine.model.cost(length).flops for length, rows in source.lengths_before(steps).items())
    wanted = source.objective
    return {**totals, "parameters": parameters, "training_flops": 3 * forward, "objective": wanted.kind,
            "normalisation": wanted.spec.normalisation, "boundary": wanted.boundary}
