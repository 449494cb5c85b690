"""The prepared script for a GPU, at toy sizes: every check is made, a red one is told, nothing is timed."""

import json
from pathlib import Path

import pytest
import torch

from kernels import gpu_check


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Smaller heads as well: in the interpreter every product of a tile counts."""
    monkeypatch.setattr(gpu_check, "TOY", {"lengths": (2, 5), "heads": 1, "race": 5, "repeats": 1})
    for name, size in (("K", 4), ("V", 16), ("R", 4), ("W", 4)):
        monkeypatch.setattr(gpu_check, name, size)


def test_every_operation_is_checked(tmp_path):
    assert gpu_check.main(["--out", str(tmp_path)]) == 0
    [file] = tmp_path.iterdir()
    result = json.loads(file.read_text())
    assert [row["op"] for row in result["checks"]] == [case.name for case in gpu_check.CASES]
    assert all(row["right"] and row["same_bits"] and max(row["errors"].values()) <= row["tolerance"] for row in result["checks"])
    assert "step" in result["checks"][0]["errors"]
    assert result["times"] == [] and result["facts"]["card"] == "interpreter"


def test_toy_figures_are_not_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "CASES", ())
    monkeypatch.setattr(gpu_check, "KEPT", tmp_path / "kept")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert gpu_check.main([]) == 0
    file = Path(capsys.readouterr().out.strip())
    assert file.is_file() and tmp_path in file.parents and not (tmp_path / "kept").exists()
    with pytest.raises(SystemExit) as end:
        gpu_check.main(["--out", str(file)])
    assert end.value.code == 2


@pytest.mark.parametrize("fault", ["wrong", "not finite", "moving"])
def test_a_red_check_is_told(tmp_path, monkeypatch, fault):
    case, turns = gpu_check.CASES[0], iter(range(1000))

    def call(tensors, lengths_B, backend):
        y, *state = case.call(tensors, lengths_B, "chunked")
        if backend == "triton":
            y = {"wrong": y * 1.001, "not finite": y * torch.inf, "moving": y * (1 + 1e-6 * next(turns))}[fault]
        return y, *state

    monkeypatch.setattr(gpu_check, "step_error", lambda *arguments: 0.0)
    monkeypatch.setattr(gpu_check, "CASES", (gpu_check.Case("taylor", case.inputs, call, 1),))
    assert gpu_check.main(["--out", str(tmp_path)]) == 1
    [file] = tmp_path.iterdir()
    [row] = json.loads(file.read_text())["checks"]
    assert not row["right"]
    assert row["same_bits"] is (fault == "wrong")
