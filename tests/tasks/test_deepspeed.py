"""DeepSpeed gives the bits of the plain loop, resumes, and survives a killed worker under Ray Train."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from storage.artifacts import Store
from tasks.pretrain import resolve_config
from tasks.training.job import Job
from tests.tasks.training_artifacts import pretrain_spec, rows_artifact, shards_artifact

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
               str(data), str(data), str(data / "tokenizer"))


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
