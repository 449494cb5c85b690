"""A killed run continues bit for bit: weights, optimiser, random states and curves of 20 steps straight."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from models import build
from storage.artifacts import Store
from storage.errors import ArtifactError
from tasks import pretrain
from tasks.training.checkpoints import LocalCheckpoints
from tasks.training.engine import InProcess
from tests.tasks.training_artifacts import pretrain_spec, rows_artifact, shards_artifact

ROOT = Path(__file__).resolve().parents[2]
CLOCK = ("tokens_per_second", "memory_bytes", "seconds")
ADAMW = {"kind": "adamw", "learning_rate": 1e-2, "warmup_steps": 2}
CASES = {"rows": {"steps": 20},
         "shards": {"data": "shards", "steps": 20, "global_batch_rows": 4, "micro_batch_rows": 2, "optimiser": ADAMW}}


class Trained:
    """Runs of one spec in one home: those that get killed in processes of their own, those that finish in this one."""

    def __init__(self, folder: Path, train: dict) -> None:
        self.folder, self.store = folder, Store(folder / "home")
        self.spec = pretrain_spec(**{"log_every": 3} | train)
        shards = self.spec.train.data == "shards"
        self.inputs = {"shards": shards_artifact(self.store)} if shards else {"rows": rows_artifact(self.store)}
        self.id = pretrain.plan(self.spec, self.store, **self.inputs)
        self.work = folder / "home" / "work" / self.id

    def killed(self, where: str, number: int) -> None:
        order = {"home": str(self.store.root), "spec": self.spec.model_dump(mode="json"), "inputs": self.inputs,
                 "kill": [where, number]}
        path = self.folder / "order.json"
        path.write_text(json.dumps(order))
        done = subprocess.run([sys.executable, "-m", "tests.tasks.pretrain_script", str(path)], cwd=ROOT,
                              env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300)
        assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
        assert not self.store.exists(self.id)

    def finished(self) -> dict:
        with pytest.MonkeyPatch.context() as patch:
            remove = LocalCheckpoints.remove

            def keep_last(kept: LocalCheckpoints) -> None:
                shutil.copy(kept.names()[-1] / "state.pt", self.folder / "state.pt")
                remove(kept)

            patch.setattr(LocalCheckpoints, "remove", keep_last)
            assert pretrain.run(self.spec, self.store, **self.inputs) == self.id
        return self.result()

    def result(self) -> dict:
        folder = self.store.path(self.id)
        curve = [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]
        summary = json.loads((folder / "summary.json").read_text())
        return {"weights": (folder / "model.safetensors").read_bytes(),
                "curve": [{k: v for k, v in point.items() if k not in CLOCK} for point in curve],
                "summary": {k: v for k, v in summary.items() if k not in CLOCK},
                "state": torch.load(self.folder / "state.pt", weights_only=True)}


def same(a, b, where="") -> None:
    """Equal to the bit, all the way down; clocks aside."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            if key not in CLOCK:
                same(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for number, pair in enumerate(zip(a, b)):
            same(*pair, f"{where}/{number}")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    else:
        assert a == b, where


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """20 steps without interruption, by case; made once."""
    return functools.cache(lambda case: Trained(tmp_path_factory.mktemp(case), CASES[case]).finished())


@pytest.mark.parametrize("case", CASES)
def test_ten_steps_kill_and_ten_more_are_twenty_straight(case, straight, tmp_path):
    """Killed after step 13, between checkpoints and inside a window of the curve; goes on from 10."""
    run = Trained(tmp_path, CASES[case])
    run.killed("step", 13)
    assert [path.name for path in LocalCheckpoints(run.work).names()] == ["step-000000005", "step-000000010"]
    assert (run.work / "curve.jsonl").read_text().splitlines()[-1].startswith('{"step": 12')
    result = run.finished()
    same(straight(case), result)
    assert [point["step"] for point in result["curve"]] == [3, 4, 6, 8, 9, 12, 15, 16, 18, 20]
    assert result["state"]["facts"]["step"] == 15
    assert not list(run.store.path(run.id).glob(".*")) and not run.work.exists()


def test_kills_while_writing(straight, tmp_path):
    """Half a line of the curve, a checkpoint without its name, and a complete one that the disk damaged."""
    run = Trained(tmp_path, CASES["rows"])
    run.killed("step", 7)
    with open(run.work / "curve.jsonl", "a") as file:
        file.write('{"step": 8, "lo')
    run.killed("checkpoint", 2)
    kept = LocalCheckpoints(run.work)
    assert [path.name for path in kept.names()] == ["step-000000005", "step-000000010"]
    assert (kept.folder / "step-000000015.partial").exists()
    with open(kept.names()[-1] / "state.pt", "r+b") as file:
        file.truncate(1000)
    same(straight("rows"), run.finished())


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    """Work folders are named by the id, so this takes a hand: but old weights must never be resumed in silence."""
    run = Trained(tmp_path, CASES["rows"])
    kept = LocalCheckpoints(run.work)
    (kept.folder / "step-000000005").mkdir(parents=True)
    (kept.folder / "step-000000009").mkdir()
    engine = InProcess(build(pretrain.resolve_config(run.spec)), run.spec.train, 1)
    engine.save(kept.names()[0], {"step": 5, "fingerprint": "checkpoint-other"})
    with pytest.raises(ArtifactError, match="belongs to checkpoint-other, not to checkpoint-"):
        pretrain.run(run.spec, run.store, **run.inputs)


@pytest.mark.parametrize("content", [b"", b"\0" * 5000, b"garbage" * 100])
def test_a_checkpoint_that_the_disk_filled_with_something_else_is_passed_over(tmp_path, content):
    spec, kept = pretrain_spec(), LocalCheckpoints(tmp_path)
    engine = InProcess(build(pretrain.resolve_config(spec)), spec.train, 1)
    for step in (5, 10):
        kept.keep(engine, {"step": step, "fingerprint": "checkpoint-this"})
    (kept.names()[-1] / "state.pt").write_bytes(content)
    assert kept.resume(engine, "checkpoint-this")["step"] == 5
