"""What `reread doctor` says of a machine whose GPU and versions are given."""

import pytest

from flows.commands import doctor


@pytest.fixture
def examined(monkeypatch):
    def gather(triton, library, capability=(9, 0)):
        monkeypatch.setattr(doctor, "triton_version", lambda: triton)
        monkeypatch.setattr(doctor, "library_version", lambda *names: library if "fla-core" in names else None)
        found = {**doctor.devices(), "gpus": [{"name": "a GPU", "capability": list(capability), "memory_bytes": 1}]}
        monkeypatch.setattr(doctor, "devices", lambda: found)
        return doctor.gather()
    return gather


def test_a_gpu_whose_gradients_are_wrong(examined, home):
    facts = examined((3, 6, 0), (0, 6, 0))
    assert not facts["ok"]
    [problem] = facts["known_bad"]
    assert "delta_scan, gated_scan (fla)" in problem["problem"] and "triton>=3.7.1" in problem["remedy"]
    assert [rule["here"] for rule in facts["toolchain"]] == [False, True, False, False]


def test_the_table_is_shown(examined, home, capsys):
    doctor.tell(examined((3, 6, 0), (0, 6, 0)))
    out = capsys.readouterr().out
    assert "yes" in out and "problem: delta_scan" in out and "remedy:  install triton>=3.7.1" in out


@pytest.mark.parametrize(("triton", "library"), [((3, 7, 1), (0, 6, 0)), ((3, 6, 0), None)])
def test_a_gpu_without_a_known_fault(examined, home, triton, library):
    facts = examined(triton, library)
    assert not facts["known_bad"] and not any(rule["here"] for rule in facts["toolchain"])
