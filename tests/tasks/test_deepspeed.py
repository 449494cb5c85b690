"""DeepSpeed gives the bits of the plain loop, resumes, and survives a killed worker under Ray Train."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from storage.artifacts import Store
from storage.errors import StageFailed
from tasks import pretrain
from tasks.pretrain import resolve_config
from tasks.training.job import Job
from tests.tasks.training_artifacts import KillsItsWorker, pretrain_spec, rows_artifact, shards_artifact

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("home"))


def make_job(store, folder, **train) -> Job:
    spec = pretrain_spec(**train)
    folder.mkdir(parents=True, exist_ok=True)
    data = store.path(shards_artifact(store) if spec.train.data == "shards" else rows_artifact(store))
    return Job(spec, resolve_config(spec).model_dump(mode="json"), "checkpoint-0123456789abcdef", str(folder),
               str(data))


def in_process_of_its_own(engine: str, job: Job) -> dict:
    path = Path(job.folder) / "job.pickle"
    path.write_bytes(pickle.dumps(job))
    done = subprocess.run([sys.executable, "-m", "tests.tasks.deepspeed_script", engine, str(path)], cwd=ROOT,
                          env={**os.environ, "OMP_NUM_THREADS": "1", "PATH": "/nonexistent"}, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


SHARDS = {"data": "shards", "steps": 6, "global_batch_rows": 8, "micro_batch_rows": 4}
ADAMW = {"kind": "adamw", "learning_rate": 1e-2, "warmup_steps": 2, "clip": 0.5}


@pytest.mark.parametrize("train", [{"steps": 6}, {**SHARDS, "optimiser": ADAMW}], ids=["rows-muon", "shards-adamw"])
def test_zero_0_gives_the_bits_of_the_plain_loop(store, tmp_path, train):
    """float32, one worker: same losses, clipped norms, validation and weights. Runs without a compiler on PATH."""
    plain = in_process_of_its_own("in_process", make_job(store, tmp_path / "plain", **train))
    deep = in_process_of_its_own("deepspeed", make_job(store, tmp_path / "deep", trainer="deepspeed", **train))
    assert deep == plain
    assert all(norm > 1 for _, _, norm, _ in plain["curve"] if norm), "clipping was not exercised"


# --------------------------------------------------------------------------------------------------------- Ray Train
@pytest.fixture(scope="module")
def ray_here():
    """One local Ray for the tests of this file."""
    import ray

    ray.init(address="local", num_cpus=2, object_store_memory=128 << 20, include_dashboard=False, log_to_driver=False,
             logging_level="ERROR")
    yield
    ray.shutdown()


def on_ray(**changes):
    return pretrain_spec(**{"data": "shards", "steps": 8, "global_batch_rows": 8, "micro_batch_rows": 2,
                            "optimiser": ADAMW, "checkpoint_every": 3, "trainer": "deepspeed"} | changes)


def pretrained(home: Path, spec, tracking=None) -> dict:
    """Weights and the curve's losses of a run in a home of its own."""
    store = Store(home)
    folder = store.path(pretrain.run(spec, store, shards=shards_artifact(store), tracking=tracking, run_id="r"))
    curve = [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]
    return {"weights": (folder / "model.safetensors").read_bytes(), "steps": [point["step"] for point in curve],
            "losses": [point[key] for point in curve for key in ("loss", "gradient_norm")],
            "validation": curve[-1]["validation/loss"], "tokens": curve[-1]["tokens"],
            "supervised": curve[-1]["supervised"]}


def close(a: dict, b: dict) -> None:
    for key in ("steps", "tokens", "supervised"):
        assert a[key] == b[key]
    assert a["losses"] == pytest.approx(b["losses"], rel=1e-4)
    assert a["validation"] == pytest.approx(b["validation"], rel=1e-4)


PLAIN = {"trainer": "in_process", "zero_stage": 0}


def test_a_killed_worker_is_replaced_and_the_run_ends_as_if_nothing_had_happened(ray_here, tmp_path):
    """One worker, ZeRO-2: killed at step 6, resumed from step 3, and the curve is that of the plain loop."""
    marker = tmp_path / "killed"
    survived = pretrained(tmp_path / "ray", on_ray(zero_stage=2), KillsItsWorker(marker, 6))
    assert marker.is_file()
    close(survived, pretrained(tmp_path / "plain", on_ray(**PLAIN)))


@pytest.mark.long
def test_two_workers_survive_a_kill_bit_for_bit(ray_here, tmp_path):
    straight = pretrained(tmp_path / "straight", on_ray(zero_stage=2, workers=2))
    marker = tmp_path / "killed"
    assert pretrained(tmp_path / "killed-run", on_ray(zero_stage=2, workers=2), KillsItsWorker(marker, 6)) == straight
    assert marker.is_file()
    close(straight, pretrained(tmp_path / "plain", on_ray(**PLAIN)))


@pytest.mark.long
@pytest.mark.parametrize("stage, optimiser", [(0, {"kind": "muon", "learning_rate": 1e-2, "warmup_steps": 2}),
                                              (1, ADAMW), (3, ADAMW)])
def test_two_workers_learn_what_one_process_learns(ray_here, tmp_path, stage, optimiser):
    """Same rows and masks, gradients summed over the same targets; only the order of additions differs."""
    shared = pretrained(tmp_path / "ray", on_ray(zero_stage=stage, workers=2, optimiser=optimiser))
    close(shared, pretrained(tmp_path / "plain", on_ray(optimiser=optimiser, **PLAIN)))


@pytest.mark.long
def test_a_broken_loss_is_not_retried_on_ray(ray_here, tmp_path):
    spec = on_ray(optimiser={"kind": "adamw", "learning_rate": 1e25, "warmup_steps": 0}, workers=2)
    with pytest.raises(StageFailed, match=r"training broke at step \d of 8: (loss|gradient norm) is (nan|inf)"):
        pretrained(tmp_path, spec)


@pytest.mark.long
def test_a_dead_driver_is_resumed_by_the_next(ray_here, tmp_path):
    """Workers that may not restart fail the stage; the next attempt, under the same id, goes on from step 3."""
    marker = tmp_path / "killed"
    spec = on_ray(zero_stage=2, maximum_restarts=0)
    with pytest.raises(StageFailed, match="failed more than 0 times; the last checkpoint is kept"):
        pretrained(tmp_path / "home", spec, KillsItsWorker(marker, 6))
    resumed = pretrained(tmp_path / "home", spec)
    close(resumed, pretrained(tmp_path / "plain", on_ray(maximum_restarts=0, **PLAIN)))
