"""Training workers: Ray Train starts them, restarts them when one dies, and keeps their checkpoints.

The run is named by the artifact's id and stored in its work folder, so a new driver process picks it up where the old
one left it. Every worker saves its part of a checkpoint in a folder of its own and reports it; Ray Train merges the
parts. Work folder and artifacts must be readable and writable from every node: local on one node, shared on many.

A loss that is not finite would only come back after a restart, so it is no worker failure for Ray: workers note it in
the work folder and end normally, and the driver raises it.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from storage import logs
from storage.errors import StageFailed
from storage.progress import progress
from tasks.training.checkpoints import check_fingerprint
from tasks.training.engine import Engine
from tasks.training.job import Job, accumulations, run_job
from tasks.training.loop import Diverged
from tasks.training.record import CURVE

FOLDER, TOTALS, FAILURE = ".ray", ".totals.json", ".failure.json"
STEP = "step"

log = logs.get("tasks.training")


def train_on_ray(job: Job) -> dict:
    """Run the job on `workers` Ray workers and return its totals. StageFailed when the workers could not finish,
    Diverged when a loss was not finite."""
    folder = Path(job.folder)
    for name in (TOTALS, FAILURE):
        (folder / name).unlink(missing_ok=True)
    with _ray(job), _following(job):
        _fit(job)
    if (folder / FAILURE).is_file():
        raise Diverged(json.loads((folder / FAILURE).read_text()))
    return json.loads((folder / TOTALS).read_text())


def _fit(job: Job) -> None:
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    spec = job.spec.train
    gpu = spec.gpus_per_worker > 0
    environment = {"OMP_NUM_THREADS": str(spec.threads)} | ({} if gpu else {"DS_ACCELERATOR": "cpu"})
    trainer = TorchTrainer(
        _worker, train_loop_config={"job": job},
        torch_config=TorchConfig(backend="nccl" if gpu else "gloo", timeout_s=1800),
        scaling_config=ScalingConfig(num_workers=spec.workers, use_gpu=gpu,
                                     resources_per_worker={"CPU": spec.threads} | ({"GPU": 1} if gpu else {})),
        run_config=RunConfig(
            name=job.fingerprint, storage_path=str(Path(job.folder) / FOLDER),
            failure_config=FailureConfig(max_failures=spec.maximum_restarts),
            checkpoint_config=CheckpointConfig(num_to_keep=2), worker_runtime_env={"env_vars": environment}))
    try:
        trainer.fit()
    except Exception as error:
        raise StageFailed(f"training workers of {job.fingerprint} failed more than {spec.maximum_restarts} times; the "
                          f"last checkpoint is kept and the next run goes on from it. Last failure: {error}") from error


def _worker(config: dict) -> None:
    """What each Ray worker runs."""
    import ray.train.torch

    from tasks.training.deepspeed_engine import DeepSpeedEngine

    job: Job = config["job"]
    first = ray.train.get_context().get_world_rank() == 0
    try:
        totals = run_job(job, lambda model: DeepSpeedEngine(
            model, job.spec.train, accumulations(job), ray.train.torch.get_device()), RayCheckpoints())
    except Diverged as failure:
        if first:
            _write(Path(job.folder) / FAILURE, str(failure))
        return
    if first:
        _write(Path(job.folder) / TOTALS, totals)


class RayCheckpoints:
    """Checkpoints handed to Ray Train; `keep` is a barrier that every worker reaches at the same steps."""

    def resume(self, engine: Engine, fingerprint: str) -> dict | None:
        import ray.train

        checkpoint = ray.train.get_checkpoint()
        if checkpoint is None:
            return None
        with checkpoint.as_directory() as folder:
            facts = engine.load(Path(folder))
        check_fingerprint(facts, fingerprint, checkpoint.path)
        return facts

    def keep(self, engine: Engine, facts: dict) -> None:
        import ray.train

        with tempfile.TemporaryDirectory() as folder:
            engine.save(Path(folder), facts)
            ray.train.report({STEP: facts["step"]}, checkpoint=ray.train.Checkpoint.from_directory(folder))


@contextlib.contextmanager
def _ray(job: Job) -> Iterator[None]:
    """Use the Ray that is running, or `RAY_ADDRESS`, or start a local one for the duration."""
    import ray

    if ray.is_initialized():
        yield
        return
    spec = job.spec.train
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    if os.environ.get("RAY_ADDRESS"):
        ray.init(**quiet)
    else:
        ray.init(address="local", num_cpus=max(os.cpu_count() or 1, spec.workers * spec.threads),
                 object_store_memory=256 << 20, include_dashboard=False, **quiet)
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _following(job: Job, seconds: float = 2.0) -> Iterator[None]:
    """Show the workers' progress in this process, read from the curve that the first of them writes."""
    over = threading.Event()
    total = job.spec.train.steps

    def follow() -> None:
        done = 0
        with progress(total, f"pretrain {job.spec.architecture}, seed {job.spec.seed}", "steps") as bar:
            while not over.wait(seconds):
                point = _last_point(Path(job.folder) / CURVE)
                bar.advance(point.get("step", done) - done)
                done = point.get("step", done)
                if "loss" in point:
                    bar.note(f"loss {point['loss']:.3f}")

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _last_point(path: Path) -> dict:
    try:
        return json.loads(path.read_text().rstrip("\n").rpartition("\n")[2])
    except (OSError, ValueError):
        return {}


def _write(path: Path, value: object) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value))
    os.replace(partial, path)
