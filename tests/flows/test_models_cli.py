"""`reread models`: the table, one preset layer by layer, one kind with its settings, every kind with its abilities."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import models.mixers
from models import LanguageModel, preset, preset_names, registry

EXTRA = Path(__file__).parents[1] / "models" / "extra_mixers"


def test_every_preset_is_listed_but_the_zoo_at_equal_state(reread):
    answer = reread("models", "--json")
    names = [model["name"] for model in answer.json]
    assert names == preset_names("small", "published", "modern", "zoo") and answer.err == "" and answer.code == 0
    zoo = {model["name"]: model for model in answer.json if model["family"] == "zoo"}
    assert all(abs(model["parameters"] / 378_880 - 1) <= 0.02 for model in zoo.values())


def test_a_pattern_chooses(reread):
    answer = reread("models", "--only", "zoo-state-256-*", "--json")
    assert [model["name"] for model in answer.json] == [name for name in preset_names("zoo-state") if "-256-" in name]
    assert {model["family"] for model in answer.json} == {"zoo-state"}
    nothing = reread("models", "--only", "qq*")
    assert nothing.out == "no preset fits 'qq*'\n"


def test_the_table_is_readable_at_100_columns(reread):
    lines = reread("models").out.splitlines()
    assert max(map(len, lines)) <= 100
    row = next(line for line in lines if " jrt-360m " in line).split()
    assert row == ["jrt-360m", "356,578,304", "720", "M", "8.7", "MB", "8.7", "MB", "causal,", "prefix,", "O(1)"]
    assert next(line for line in lines if " transformer-360m " in line).split()[-2:] == ["causal,", "O(n)"]
    assert next(line for line in lines if " zoo-cosformer " in line).endswith("causal, to 8,192, O(1)")
    assert "causal, to 8,192 tokens; state constant" in " ".join(reread("models", "show", "zoo-cosformer").out.split())
    assert any(line.startswith("published") for line in lines) and "zoo-state-*" in lines[-1]


def test_show_prints_plan_counts_sources_and_conflicts(reread):
    answer = reread("models", "show", "based-360m")
    text = " ".join(answer.out.split())
    assert max(map(len, answer.out.splitlines())) <= 100 and answer.code == 0
    assert "362,702,848; published about 360M (Table 2); released configuration 362,702,848, the same" in text
    assert "3-5 conv base_conv 6,302,720 6,291,456 16.4 kB 16.4 kB" in text
    assert "1 based based 2,637,824 6,291,456" in text          # 2,621,440 and 16 x 1,024 of the decay
    assert "window: Table 15 (JRT) prints 64/16" in text and "27 layers" in text
    assert "abilities causal; state constant in the length" in text and "width 1,024, 27 layers" in text and "no positions" in text


def test_json_of_show_adds_up(reread):
    for name in ("jrt-360m", "pg19-lavo", "hybrid-360m", "zoo-lavo"):
        found = reread("models", "show", name, "--json").json
        listed = next(one for one in reread("models", "--only", name, "--json").json)
        assert {key: found[key] for key in listed} == listed
        assert found["parameters"] == found["outside_parameters"] + sum(layer["parameters"] for layer in found["layers"])
        for length in ("2048", "32768"):
            assert found["state_bytes"][length] == sum(layer["state_bytes"][length] for layer in found["layers"])
        assert [layer["name"] for layer in found["layers"]] == found["mixers"]
        assert found["about"] and found["source"] and found["config"]["width"] == preset(name).width


def test_a_wrong_name_gets_those_close_to_it(reread):
    answer = reread("models", "show", "jrt-36m")
    assert answer.code == 2 and "no preset or mixer 'jrt-36m'; close to it are jrt-360m" in answer.err
    assert "close to it are lavo" in reread("models", "show", "LAVO").err
    assert reread("models", "show", "??").err.strip() == "error: no preset or mixer '??'; `reread models` lists all"


def test_show_of_a_kind_lists_its_settings(reread):
    found = reread("models", "show", "lavo", "--json").json
    fields = registry.config_class("lavo").model_fields
    assert [setting["name"] for setting in found["settings"]] == [name for name in fields if name != "kind"]
    assert next(setting for setting in found["settings"] if setting["name"] == "slots")["default"] == 64
    text = reread("models", "show", "lavo").out
    assert "slots = 64" in text and "basis_scope = head" in text and max(map(len, text.splitlines())) <= 100
    assert "landmarks" in reread("models", "show", "nystrom").out.partition("not causal")[2].partition("mode")[0]


def test_mixers_lists_every_kind_with_what_it_can_do(reread):
    found = {one["kind"]: one for one in reread("models", "mixers", "--json").json}
    assert list(found) == registry.names()
    assert found["prefix"]["prefix"] and not found["based"]["prefix"]
    assert found["attention"]["growth"] == ["linear"] and found["lavo"]["growth"] == ["constant"]
    assert found["lavo"]["cross"] and found["lavo"]["non_causal"] and found["lavo"]["streaming"]
    assert not found["nystrom"]["causal"] and not found["nystrom"]["streaming"] and found["nystrom"]["non_causal"]
    assert found["base_conv"]["native_packing"]
    for one in found.values():
        assert one["broken"] is None and one["about"], one["kind"]
    text = reread("models", "mixers").out
    assert max(map(len, text.splitlines())) <= 120
    row = next(line for line in text.splitlines() if line.startswith("lavo ")).split()
    assert row == ["lavo", "yes", "yes", "yes", "-", "yes", "-", "constant"]


@pytest.fixture
def dropped(tmp_path, monkeypatch):
    """Three files beside the mixers: one that works, one that cannot be imported, one whose cost fails."""
    toy = (EXTRA / "toy_mixer.py").read_text()
    (tmp_path / "dropped_here.py").write_text(toy.replace('"toy_mixer"', '"dropped_here"'))
    (tmp_path / "costless.py").write_text(toy.replace('"toy_mixer"', '"costless"').replace("-> Cost:", "-> Cost:\n        1 / 0\n", 1))
    (tmp_path / "broken_here.py").write_text("import no_such_package_here")
    monkeypatch.setattr(models.mixers, "__path__", [*models.mixers.__path__, str(tmp_path)])


def test_a_dropped_file_is_listed_and_a_faulty_one_leaves_the_others_alone(reread, dropped):
    answer = reread("models", "--json")
    found = {model["name"]: model for model in answer.json}
    assert found["zoo-dropped_here"]["abilities"]["prefix"] and "zoo-costless" not in found
    assert "left out: zoo-costless: " in answer.err and "zoo-dropped_here" not in answer.err
    kinds = {one["kind"]: one for one in reread("models", "mixers", "--json").json}
    assert kinds["dropped_here"]["causal"] and "no_such_package_here" in kinds["broken_here"]["broken"]
    text = reread("models", "mixers").out
    assert "broken_here cannot be used: ModuleNotFoundError: No module named 'no_such_package_here'" in text
    assert "no_such_package_here" in reread("models", "show", "broken_here").out
    assert "dropped_here" in reread("models", "show", "zoo-dropped_here").out


def test_listing_reads_no_weights(reread, monkeypatch):
    """Everything is counted on the meta device: a drawn weight would be seconds and gigabytes for the large ones."""
    def refuse(*args, **kwargs):
        raise AssertionError("weights were drawn")

    monkeypatch.setattr(LanguageModel, "reset_parameters", refuse)
    assert reread("models", "--only", "*1.3b*", "--json").code == 0


def test_the_listing_answers_within_seconds():
    """In a process of its own; processor time, so that a busy machine does not fail it."""
    code = ("import time, torch; started = time.process_time(); from flows import cli; "
            "code = cli.run(['models']); import sys; sys.stderr.write(f'{code} {time.process_time() - started}')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    exit_code, seconds = done.stderr.split()[-2:]
    assert exit_code == "0" and float(seconds) < 6, done.stderr
