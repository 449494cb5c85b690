"""§7: one file is one mixer; a folder added to the path brings its mixers; a broken file says why."""

import sys

import pytest
import torch

import models.mixers
from kernels.errors import ConfigError, UnsupportedUse
from kernels.layout import Layout
from models import registry
from models.config import ModelConfig
from models.language_model import LanguageModel
from tests.contracts.batches import T32, documents, error, place

FILE = '''
"""The mean of all tokens so far, projected."""
from typing import Literal

import torch

from models.initialise import Linear
from models.mixer import Abilities, Cost, Mixer, MixerConfig


class Config(MixerConfig):
    kind: Literal["running_mean"] = "running_mean"


class RunningMean(Mixer):
    def __init__(self, config, width, layer):
        super().__init__(config, width, layer)
        self.out_proj = Linear(width, width)

    @classmethod
    def abilities(cls, config):
        return Abilities()

    def mix(self, x_BLD, layout, state):
        sum_BLD = x_BLD.to(self.sum_dtype(x_BLD.dtype)).cumsum(1) + (0 if state is None else state["sum"][:, None])
        mean_BLD = sum_BLD / (layout.position_BL + 1).to(sum_BLD)[..., None]
        y_BLD = self.out_proj(mean_BLD.to(x_BLD.dtype))
        return y_BLD, None if state is None else state.advanced(layout.lengths_B, sum=sum_BLD[:, -1].clone())

    def init_state(self, B, dtype, device):
        return self.new_state(B, dtype, device, sum=torch.zeros(B, self.width, dtype=self.sum_dtype(dtype), device=device))

    def cost(self, length, dtype=torch.float32):
        D, each = self.width, torch.finfo(self.sum_dtype(dtype)).bits // 8
        return Cost(self.parameter_count(), length * 2 * D * D, 2 * D * D, D * each + 8)
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that discovery searches too."""
    monkeypatch.setattr(models.mixers, "__path__", [*models.mixers.__path__, str(tmp_path)])
    yield tmp_path
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(f"models.mixers.{file.stem}", None)


def test_a_file_in_another_folder_is_a_mixer(folder):
    (folder / "running_mean.py").write_text(FILE)
    assert "running_mean" in registry.kinds()
    mixer = registry.build(registry.config_class("running_mean")(), 8, seed=0)
    batch = place([doc[:, :8] for doc in documents([3, 7], torch.float32)], "left", float("nan"))
    y_BLD = mixer(batch.x_BLD, batch.layout)
    mean = documents([3, 7], torch.float32)[1][:, :8].mean(0)
    assert error([y_BLD[1, -1]], [mixer.out_proj(mean)]) <= T32
    config = ModelConfig(width=8, vocabulary=8, mixers={"mean": {"kind": "running_mean"}}, plan=["mean*2"])
    model = LanguageModel(config)
    assert model(torch.zeros(1, 3, dtype=torch.int64), Layout.dense(1, 3)).shape[:2] == (1, 3)


def test_l16_what_a_mixer_cannot_do_is_refused(folder):
    """Without a state no streaming call works, and what is not causal is no part of a language model."""
    able = "Abilities(causal=False, non_causal=True, streaming=False)"
    (folder / "running_mean.py").write_text(FILE.replace("Abilities()", able))
    mixer = registry.build(registry.config_class("running_mean")(), 8, seed=0)
    x_BLD, layout = torch.zeros(1, 3, 8), Layout.dense(1, 3)
    for use in (lambda: mixer.prefill(x_BLD, layout), lambda: mixer.extend(x_BLD, layout, None),
                lambda: mixer.step(x_BLD[:, 0], None)):
        with pytest.raises(UnsupportedUse, match="running_mean") as refusal:
            use()
        assert "forward" in str(refusal.value), "no remedy"
    with pytest.raises(UnsupportedUse, match="running_mean.*causal"):
        ModelConfig(width=8, vocabulary=8, mixers={"mean": {"kind": "running_mean"}}, plan=["mean"])


def test_a_file_under_another_name_is_broken(folder):
    (folder / "other_name.py").write_text(FILE)
    assert "running_mean" in registry.broken()["other_name"] or "other_name" in registry.broken()["other_name"]
    with pytest.raises(ConfigError, match="other_name"):
        registry.mixer_class("other_name")


def test_file_name_is_kind():
    for kind in registry.kinds():
        assert registry.config_class(kind).model_fields["kind"].default == kind
        assert registry.config_class(kind).cases(), f"{kind} has no cases: the contract suite would not run it"


def test_configs_are_frozen_and_closed():
    for kind in registry.kinds():
        config = next(iter(registry.config_class(kind).cases().values()))
        with pytest.raises(ValueError):
            config.kind = "other"
        with pytest.raises(ValueError):
            type(config)(**config.model_dump(), no_such_field=1)
        for name, field in type(config).model_fields.items():
            assert name == "kind" or field.description, f"{kind}.{name} has no description"
            if field.annotation in (float, float | None):
                with pytest.raises(ValueError, match="finite"):
                    type(config)(**config.model_dump() | {name: float("inf")})


def test_a_broken_file_is_listed_and_refused(folder):
    (folder / "broken_one.py").write_text("import no_such_package_anywhere\n")
    assert "broken_one" not in registry.kinds()
    assert "no_such_package_anywhere" in registry.broken()["broken_one"]
    with pytest.raises(ConfigError, match="no_such_package_anywhere"):
        registry.mixer_class("broken_one")


def test_unknown_kinds_are_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=registry.kinds()[0]):
        registry.mixer_class("no_such_kind")
