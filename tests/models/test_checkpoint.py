"""A model on disk comes back bit for bit, and a damaged folder is named."""

import pytest
import torch

from kernels.errors import ConfigError
from models import LanguageModel, Layout, ModelConfig, load_config, load_model, save_model

pytestmark = pytest.mark.usefixtures("toy_kind")
IDS = torch.arange(12).reshape(2, 6)


def model_of(**changes) -> LanguageModel:
    return LanguageModel(ModelConfig.model_validate(dict(
        width=8, vocabulary=19, mixers={"toy": {"kind": "toy_mixer"}}, plan=["toy*2"], mlp=8) | changes))


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_round_trip_is_exact(tmp_path, tie, dtype):
    model = model_of(tie=tie, positions="learned", max_length=9).to(dtype)
    save_model(model, tmp_path / "made")
    again = load_model(tmp_path / "made")
    assert again.config == model.config and type(again.config.mixers["toy"]) is type(model.config.mixers["toy"])
    assert torch.equal(again(IDS, Layout.dense(2, 6)), model(IDS, Layout.dense(2, 6)))
    assert {p.name for p in (tmp_path / "made").iterdir()} == {"config.json", "model.safetensors"}
    assert load_model(tmp_path / "made", dtype=torch.float64).norm.weight.dtype == torch.float64
    again(IDS, Layout.dense(2, 6)).sum().backward()
    assert again.embedding.weight.grad is not None


def test_missing_damaged_and_foreign_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match="config.json"):
        load_model(tmp_path)
    save_model(model_of(), tmp_path)
    (tmp_path / "config.json").write_text('{"width": 8}')
    with pytest.raises(ConfigError, match=r"config.json.*not a model config"):
        load_config(tmp_path)
    save_model(model_of(width=16), tmp_path / "other")
    save_model(model_of(), tmp_path)
    (tmp_path / "other" / "model.safetensors").rename(tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="wrong shape"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match="model.safetensors"):
        load_model(tmp_path)
