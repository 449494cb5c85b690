"""Run as a process: one pretraining in a given home, killed with signal 9 where the test says.

usage: python -m tests.tasks.pretrain_script JOB.json
    {"home", "spec", "inputs", "kill": ["step", n] or ["checkpoint", n]}
step n: when this process has done n steps; checkpoint n: while its n-th checkpoint is being given a name.
"""

import json
import os
import signal
import sys
from pathlib import Path

from storage.artifacts import Store
from tasks import pretrain
from tasks.specs import PretrainSpec
from tasks.training import checkpoints, record


def kill_at(number: int, function):
    """`function`, but the n-th call kills this process first."""
    calls = []

    def counted(*arguments, **options):
        calls.append(None)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    return counted


def main(path: str) -> None:
    order = json.loads(Path(path).read_text())
    where, number = order["kill"]
    if where == "step":  # `advance` is called once at the start, for the steps that were resumed
        record.Recorder.advance = kill_at(number + 1, record.Recorder.advance)
    else:
        checkpoints.os.rename = kill_at(number, os.rename)
    pretrain.run(PretrainSpec.model_validate(order["spec"]), Store(order["home"]), **order["inputs"])


if __name__ == "__main__":
    main(sys.argv[1])
