"""Every Triton kernel compiles for GPUs that are not here, without a spill; the kept table names what it needs.

Compiling is impossible where kernels are interpreted, so it happens in a process of its own, with a cache of its own.
"""

import importlib
import json
import os
import subprocess
import sys

import pytest

from kernels import compile as job
from tests.conftest import ROOT

TABLE = ROOT / "tests" / "golden" / "compiled.json"
SHIPPED = r"K16 V64 bf16|bf16 64 table causal|memory_[a-z]+ bf16 64"  # sizes of the published models; the kept table has all


@pytest.fixture(scope="module", params=["90", pytest.param("80", marks=pytest.mark.long),
                                        pytest.param("100", marks=pytest.mark.long)])
def compiled(request, tmp_path_factory) -> list[dict]:
    """The rows of a fresh run for one of the GPUs the kernels are tuned for; all three in the long tests, and with another
    Triton in `make test-triton`."""
    folder = tmp_path_factory.mktemp("compiled")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder / "cache")
    run = subprocess.run(
        [sys.executable, "-m", "kernels.compile", "--json", folder / "table.json", "--only", SHIPPED,
         "--target", request.param], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return json.loads((folder / "table.json").read_text())


@pytest.mark.timeout(600)
def test_no_kernel_spills_or_asks_for_too_much_shared_memory(compiled):
    assert len(compiled) >= 8
    for row in compiled:
        assert row["stack"] == 0 and row["shared"] <= row["limit"], row
        assert 0 < row["registers"] <= 255


@pytest.mark.timeout(600)
def test_long_products_use_the_matrix_unit(compiled):
    """Kernels for half-precision inputs that multiply matrices do so on the GPU's matrix unit."""
    unit = {"sm_80": "HMMA", "sm_90": "HGMMA", "sm_100": "UTCHMMA"}
    [target] = {row["target"] for row in compiled}
    assert any(row["matrix"].get(unit[target]) for row in compiled), target


@pytest.mark.timeout(600)
def test_the_kept_table_is_of_these_kernels(compiled):
    """Registers move with the compiler's version; names, targets, warps and the absence of spills do not."""
    kept = json.loads(TABLE.read_text())
    assert {row["target"] for row in kept} == {"sm_80", "sm_90", "sm_100", "gfx942"}
    identity = lambda row: (row["operation"], row["kernel"], row["target"], row["warps"], row["stages"])  # noqa: E731
    assert not set(map(identity, compiled)) - set(map(identity, kept)), "run `make kernel-table`"
    planned = {(module.split(".")[1], importlib.import_module(module).variants(target)[place].name)
               for module, place, target in job.plan([], (90,))}
    assert planned == {(row["operation"], row["kernel"]) for row in kept if row["target"] == "sm_90"}, "run `make kernel-table`"
    assert not any(row["stack"] for row in kept if row["target"] != "gfx942")


def test_faults():
    row = {"stack": 0, "shared": 100, "limit": 100}
    assert job.faults(row) == []
    assert job.faults(row | {"stack": 8}) == ["stack 8"]
    assert job.faults(row | {"shared": 101}) == ["shared 101 of 100"]


def test_a_variant_that_forgets_an_argument():
    class Kernel:
        arg_names = ["x", "N"]
    with pytest.raises(ValueError, match="not exactly types and constants"):
        job.compile_variant(job.Variant("op.kernel", Kernel, {"x": "*fp32"}, {}), 90)


@pytest.mark.parametrize(("arguments", "says"), [
    (["no_such_op"], "no Triton kernels for no_such_op"), (["--only", "*(x"], "'*(x' is not a regular expression"),
    (["--json", "no/such/folder/table.json"], "expected a file in a folder that exists"),
    (["--json", "tests"], "expected a file in a folder that exists"), (["--only", "nothing at all"], "no kernel's name contains"),
])
def test_mistakes(arguments, says, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(SystemExit) as end:
        job.main(arguments)
    said = capsys.readouterr()
    assert end.value.code == 2 and says in said.err and said.out == ""


def test_the_interpreter_cannot_compile(monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(SystemExit):
        job.main([])
    assert "unset it" in capsys.readouterr().err
