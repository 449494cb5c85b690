"""A new architecture is one new file: the laws, `reread models`, presets and the study `zoo` find it by themselves.

Run on a copy of the tree with one file added to models/mixers and no other file changed.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
KIND = "toy_mixer"
FILE = REPOSITORY / "tests/models/extra_mixers" / f"{KIND}.py"
STUDY = """
name: toy-study
about: One added mixer
estimated_minutes: 1
workloads:
  disjoint:
    rows: {kind: disjoint, vocabulary: 64, sizes: [[4, 8]], batches: 20, batch_tokens: 512}
    train:
      optimiser: {kind: muon, learning_rate: 0.01, weight_decay: 0.0, schedule: linear, warmup_steps: 5}
      sweep: {field: optimiser.matrix_learning_rate, values: [0.01, 0.02], share: 0.5}
    architectures: {each_mixer: {model: "zoo-{kind}", model_overrides: {vocabulary: 64}}}
    evaluations:
      - cloze: {task: disjoint, orders: [small_first], limit: 8, task_options: {vocabulary: 64, sizes: [[4, 8]]}}
        evaluate: {metric: exact, bootstrap: 200}
bench: null
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The tree as it is, and one file more."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("flows", "tasks", "models", "kernels", "storage", "tests"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.npz"))
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, folder / name)
    assert not (folder / "models/mixers" / FILE.name).exists()
    shutil.copy(FILE, folder / "models/mixers")
    return folder


def run(folder: Path, *command: str) -> str:
    """What a command says in the copy; the copy's packages, none of the repository's."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "REREAD_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_every_law_runs_on_it(copy):
    """As many as on another kind with one case and the same abilities; they are green."""
    said = run(copy, "-m", "pytest", "tests/contracts", "-k", KIND, "-p", "no:cacheprovider")
    passed = int(said.rsplit(" passed", 1)[0].split()[-1])
    assert passed >= 60, said[-500:]


def test_reread_models_lists_it(copy):
    listed = json.loads(run(copy, "-m", "flows.cli", "models", "--only", "zoo-*", "--json"))
    (own,) = [one for one in listed if one["name"] == f"zoo-{KIND}"]
    assert own["parameters"] == pytest.approx(378_880, rel=0.02)
    assert own["state_bytes"]["2048"] == own["state_bytes"]["32768"] > 0
    assert KIND in run(copy, "-m", "flows.cli", "models", "show", f"zoo-{KIND}")


def test_the_zoo_takes_it(copy):
    planned = json.loads(run(copy, "-m", "flows.cli", "study", "run", "zoo", "--dry-run", "--json"))
    kinds = [artifact["kind"] for artifact in planned["artifacts"]]
    assert any(name.endswith(KIND) for name in planned["parameters"]), planned["parameters"]
    assert kinds.count("checkpoint") == len(planned["parameters"])


@pytest.mark.long
def test_a_study_trains_and_reports_it(copy):
    (copy / "toy.yaml").write_text(STUDY)
    run(copy, "-m", "flows.cli", "study", "run", "toy.yaml", "--only", KIND)
    again = json.loads(run(copy, "-m", "flows.cli", "study", "run", "toy.yaml", "--only", KIND, "--dry-run", "--json"))
    assert all(artifact["exists"] for artifact in again["artifacts"])
