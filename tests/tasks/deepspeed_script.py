"""Run as a process: a few steps of one job with a chosen engine, without Ray. Prints losses and a hash of the weights.

usage: python -m tests.tasks.deepspeed_script ENGINE JOB.pickle   (ENGINE: in_process or deepspeed)
"""

import hashlib
import json
import os
import pickle
import sys
from pathlib import Path

import torch

from tasks.training.checkpoints import LocalCheckpoints
from tasks.training.engine import InProcess
from tasks.training.job import accumulations, run_job


def main(engine: str, path: str) -> None:
    with open(path, "rb") as file:
        job = pickle.load(file)
    made = []
    if engine == "deepspeed":
        from tasks.training.deepspeed_engine import DeepSpeedEngine

        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": "0", "DS_ACCELERATOR": "cpu"}
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)

        def make(model):
            made.append(DeepSpeedEngine(model, job.spec.train, accumulations(job), torch.device("cpu")))
            return made[0]
    else:
        def make(model):
            made.append(InProcess(model, job.spec.train, accumulations(job)))
            return made[0]
    totals = run_job(job, make, LocalCheckpoints(job.folder))
    weights = hashlib.sha256()
    for name, tensor in sorted(made[0].model.state_dict().items()):
        weights.update(name.encode() + tensor.numpy().tobytes())
    curve = [json.loads(line) for line in (Path(job.folder) / "curve.jsonl").read_text().splitlines()]
    keys = ("step", "loss", "gradient_norm", "validation/loss")
    print(json.dumps({"weights": weights.hexdigest(), "steps": totals["steps"],
                      "rate": made[0].optimiser.param_groups[0]["lr"],
                      "curve": [[point.get(key) for key in keys] for point in curve]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
