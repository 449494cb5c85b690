"""Folders of checkpoints: which they are, how they are read, what is said of the others."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.errors import ConfigError
from kernels.layout import Layout
from models.adapters.export import export_model
from models.adapters.folders import whole_folder
from models.adapters.weights_in import import_model
from models.checkpoint import save_model
from tests.models.adapters.test_export import CONFIGS, build
from tests.models.adapters.test_released import PREFIX, as_released, small


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_an_export_comes_back_the_same(name, tmp_path):
    model = build(CONFIGS[name])
    export_model(model, tmp_path, None, "0")
    found = import_model(tmp_path)
    assert found.kind == "reread export" and found.model.config == model.config
    ours = found.model.state_dict()
    assert all(torch.equal(ours[key], tensor) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize("form", ["safetensors", "bin", "lightning", "shards"])
@torch.no_grad()
def test_every_usual_file(form, tmp_path):
    from models.adapters import released
    from models.language_model import LanguageModel

    model = LanguageModel(released.model_config(small(PREFIX))[0]).eval()
    tensors = as_released(model)
    (tmp_path / "config.json").write_text(json.dumps(small(PREFIX)))
    if form == "safetensors":
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    elif form == "bin":
        torch.save(tensors, tmp_path / "pytorch_model.bin")
    elif form == "lightning":
        torch.save({"state_dict": tensors, "epoch": 3}, tmp_path / "pytorch_model.bin")
    else:
        names = sorted(tensors)
        parts = {"a.bin": names[::2], "b.bin": names[1::2]}
        for file, held in parts.items():
            torch.save({name: tensors[name] for name in held}, tmp_path / file)
        index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    found, ids = import_model(tmp_path).model, torch.arange(20)[None]
    assert torch.equal(found(ids, Layout.dense(1, 20)), model(ids, Layout.dense(1, 20)))


@pytest.mark.parametrize(("config", "said"), [
    ({"model_type": "llama"}, "a llama model of transformers cannot be imported"),
    ({"d_model": 768, "n_layer": 24, "ssm_cfg": {}}, "take the same model in transformers' format"),
    ({"anything": 1}, "unknown kind"),
])
def test_what_cannot_be_imported_is_told_what_can(config, said, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=said) as refused:
        import_model(tmp_path)
    for kind in ("reread export", "Mamba-2", "Based and JRT"):
        assert kind in str(refused.value)


def test_a_folder_of_our_own_needs_no_import(tmp_path):
    save_model(build(CONFIGS["hybrid"]), tmp_path)
    with pytest.raises(ConfigError, match="needs no import"):
        import_model(tmp_path)


class Payload:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (print, ("ran",))


def test_damaged_and_dangerous_files(tmp_path, capsys):
    with pytest.raises(ConfigError, match="is no folder"):
        import_model(tmp_path / "absent")
    with pytest.raises(ConfigError, match="config.json: cannot be read"):
        import_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="is no JSON"):
        import_model(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ConfigError, match="holds a list"):
        import_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(small(PREFIX)))
    with pytest.raises(ConfigError, match="holds no weights"):
        import_model(tmp_path)
    torch.save(Payload(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="pytorch_model.bin: cannot be read as weights"):
        import_model(tmp_path)
    assert "ran" not in capsys.readouterr().out
    (tmp_path / "pytorch_model.bin").write_bytes(b"abc")
    with pytest.raises(ConfigError, match=r"as weights \(no pickle of tensors alone"):
        import_model(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    for shards in ([], {"weight_map": {"a": 5}}, {"weight_map": None}):
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(shards))
        with pytest.raises(ConfigError, match=r"index\.json: names no shards"):
            import_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match="model.safetensors: cannot be read as weights"):
        import_model(tmp_path)


def test_an_export_of_another_version_says_so(tmp_path):
    export_model(build(CONFIGS["hybrid"]), tmp_path, None, "9.9")
    config = json.loads((tmp_path / "config.json").read_text())
    config["reread"]["depth"] = 3
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="written by reread 9.9"):
        import_model(tmp_path)
    config["reread"].pop("depth")
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="missing: model.norm.weight"):
        import_model(tmp_path)


# ----------------------------------------------------------------------------------------------------- whole or not
def test_a_folder_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "new" / "model"
    with pytest.raises(RuntimeError), whole_folder(target) as work:
        (work / "half").write_text("a")
        raise RuntimeError
    assert list((tmp_path / "new").iterdir()) == []
    with whole_folder(target) as work:
        (work / "config.json").write_text("1")
        assert not target.exists()
    assert (target / "config.json").read_text() == "1" and len(list((tmp_path / "new").iterdir())) == 1


def test_other_work_is_never_replaced(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "thesis.txt").write_text("years")
    for force in (False, True):
        with pytest.raises(ConfigError, match="is not empty" if not force else "no model folder"), whole_folder(target, force):
            raise AssertionError("never begun")
    assert (target / "thesis.txt").read_text() == "years"
    (target / "config.json").write_text("old")
    with pytest.raises(RuntimeError), whole_folder(target, True):
        raise RuntimeError
    assert (target / "config.json").read_text() == "old"
    with whole_folder(target, True) as work:
        (work / "config.json").write_text("new")
    assert {path.name: path.read_text() for path in target.iterdir()} == {"config.json": "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    with pytest.raises(ConfigError, match="is not a folder"), whole_folder(target / "config.json"):
        raise AssertionError("never begun")
