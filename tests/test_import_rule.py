"""The import rule flows -> tasks -> models -> kernels holds, the linter would notice a breach, and our top-level names hide nobody's."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGES = ("flows", "tasks", "models", "kernels", "storage", "infra")


def lint(folder: Path) -> subprocess.CompletedProcess:
    """import-linter over the packages in `folder`, which come first on the path."""
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "-c", program, "--no-cache"], cwd=folder, env=environment, text=True, capture_output=True, timeout=300)


def test_the_import_rule_holds():
    outcome = lint(ROOT)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.fixture
def copy(tmp_path) -> Path:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize(("file", "line", "contract"), [
    ("kernels/layout.py", "import models", "flows -> tasks -> models -> kernels"),
    ("models/__init__.py", "import storage.errors", "models and kernels know no storage"),
    ("tasks/specs.py", "import prefect", "prefect lives in flows"),
])
def test_a_bad_import_is_found(copy, file, line, contract):
    with open(copy / file, "a") as source:
        source.write(f"\n{line}\n")
    outcome = lint(copy)
    assert outcome.returncode != 0
    broken = [text for text in outcome.stdout.splitlines() if "BROKEN" in text]
    assert len(broken) == 1 and contract in broken[0], outcome.stdout


def test_kernels_is_an_empty_package():
    """transformers looks for a distribution called `kernels` of its own; an empty file cannot be mistaken for it."""
    assert (ROOT / "kernels" / "__init__.py").read_text() == ""


def test_transformers_models_work_with_our_packages_first_on_the_path():
    program = """
import models, kernels, tasks, flows, storage, infra
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
small = dict(vocab_size=32)
gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=16, **small))
llama = LlamaForCausalLM(LlamaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, **small))
for model in (gpt2, llama):
    assert model(torch.arange(8)[None]).logits.shape == (1, 8, 32)
print(kernels.__file__)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    outcome = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, text=True, capture_output=True, timeout=300)
    assert outcome.returncode == 0, outcome.stderr
    assert Path(outcome.stdout.strip()).parent == ROOT / "kernels"
