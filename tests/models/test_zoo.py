"""Every causal mixer in one trunk: as many parameters as based-tiny, or as many bytes of state, within 2 %."""

from pathlib import Path

import pytest
import torch

import models.mixers
from kernels.errors import ConfigError, UnsupportedUse
from models import LanguageModel, Layout, preset, preset_names, registry
from models.presets import describe, zoo

KINDS = zoo.kinds()
TOY = Path(__file__).parent / "extra_mixers" / "toy_mixer.py"


def meta(config) -> LanguageModel:
    with torch.device("meta"):
        return LanguageModel(config, initialise=False)


def test_the_zoo_has_every_kind_that_a_language_model_can_use():
    able = {kind: [registry.abilities(case) for case in registry.config_class(kind).cases().values()] for kind in registry.kinds()}
    assert KINDS == [kind for kind, cases in able.items() if any(case.causal and case.streaming for case in cases)]
    assert {"attention", "based", "prefix", "lavo"} <= set(KINDS) and "nystrom" not in KINDS
    assert {name for name in preset_names("zoo") if not name.startswith("zoo-conv")} == {f"zoo-{kind}" for kind in KINDS}
    assert preset_names("zoo-state") == [f"zoo-state-{length}-{kind}" for kind in KINDS for length in (256, 2048)]


def test_the_target_is_based_tiny():
    assert meta(preset("based-tiny")).cost(1).parameters == zoo.PARAMETERS


@pytest.mark.parametrize("name", preset_names("zoo"))
def test_equal_parameters(name):
    config = preset(name)
    assert abs(meta(config).cost(1).parameters / 378_880 - 1) <= 0.02
    kind = name.split("-")[-1]
    assert config.plan == (("attention",) * 4 if name == "zoo-attention" else ("conv", kind, "conv", kind))
    assert (config.vocabulary, config.mlp, config.init_std) == (1024, None, 0.1)
    heads = getattr(config.mixers[kind], "heads", None)
    assert heads is None or 16 <= config.width / heads <= 64
    if "window" in type(config.mixers[kind]).model_fields:
        assert config.mixers[kind].window == 16
    assert preset(name, vocabulary=256).vocabulary == 256 and describe(name).family == "zoo"


@pytest.mark.parametrize("name", preset_names("zoo-state"))
def test_equal_bytes_of_state(name):
    """What attention of width 32 has in two layers after so many tokens."""
    length = int(name.split("-")[2])
    target = 2 * 2 * length * 32 * 4
    config = preset(name)
    assert abs(meta(config).cost(length).state_bytes / target - 1) <= 0.02
    if name == "zoo-state-256-attention":
        assert config.width == 32


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_are_those_of_the_live_state(kind):
    model = LanguageModel(preset(f"zoo-state-256-{kind}")).eval()
    ids = torch.arange(256)[None] % 1000
    _, state = model.prefill(ids, Layout.dense(1, 256))
    assert abs(state.nbytes / 131_072 - 1) <= 0.02


@pytest.mark.parametrize("kind, field", [("based", "feature_dim"), ("sliding_window", "window"), ("abc", "slots"), ("lavo", "window"),
                                         ("base_conv", "kernel"), ("delta_net", "expand_v"), ("gla", "expand_v")])
def test_a_larger_state_leaves_the_width_nearly_alone(kind, field):
    """Steps of feature_dim and expand_v are too coarse for 2 %: the width then moves a little, not by its multiple."""
    for length in (256, 2048):
        small, large = preset(f"zoo-{kind}"), preset(f"zoo-state-{length}-{kind}")
        assert abs(large.width / small.width - 1) <= 0.17
        assert getattr(large.mixers[kind], field) >= getattr(small.mixers[kind], field) * (4 if length == 2048 else 1)


def test_heads_divide_the_width_and_are_near_32():
    assert [zoo.heads(width, 1.5) for width in (32, 64, 96, 112, 114, 128)] == [1, 2, 3, 4, 3, 4]
    with pytest.raises(ConfigError, match="width 113 has no heads of 16 to 64"):
        zoo.heads(113, 2.0)
    assert zoo.heads(118, 2.0) == 2
    with pytest.raises(ConfigError, match="width 118 has no heads of 21 to 48"):
        zoo.heads(118, 1.5)


def test_a_dropped_file_is_in_the_zoo(toy_kind):
    assert f"zoo-{toy_kind}" in preset_names("zoo")
    config = preset(f"zoo-{toy_kind}")
    assert config.plan == ("conv", toy_kind, "conv", toy_kind)
    assert abs(meta(config).cost(1).parameters / 378_880 - 1) <= 0.02
    state = preset(f"zoo-state-256-{toy_kind}")
    assert abs(meta(state).cost(256).state_bytes / 131_072 - 1) <= 0.02 and state.width > config.width


def test_a_dropped_file_may_need_settings_and_may_be_broken(tmp_path, monkeypatch):
    """No default for `size`: the first causal case is taken; heads get their small value; a broken file is passed over."""
    monkeypatch.setattr(models.mixers, "__path__", [*models.mixers.__path__, str(tmp_path)])
    text, kind = TOY.read_text(), 'kind: Literal["toy_mixer"] = "toy_mixer"\n'
    assert text.count(kind) == 1
    (tmp_path / "sized.py").write_text(text.replace(kind, '''kind: Literal["sized"] = "sized"
    size: int
    heads: int = 4

    @classmethod
    def cases(cls):
        return {"first": cls(size=7), "second": cls(size=8, heads=2)}
'''))
    (tmp_path / "unusable.py").write_text("import nothing_of_this_name")
    config = preset("zoo-sized")
    assert config.mixers["sized"].size == 7 and 16 <= config.width / config.mixers["sized"].heads <= 64
    assert "zoo-sized" in preset_names("zoo") and "zoo-unusable" not in preset_names("zoo")
    with pytest.raises(ConfigError, match="no model preset 'zoo-unusable'"):
        preset("zoo-unusable")


def test_a_mixer_that_is_not_causal_has_no_preset():
    with pytest.raises(ConfigError, match="no model preset 'zoo-nystrom'"):
        preset("zoo-nystrom")
    with pytest.raises(UnsupportedUse, match="nystrom cannot be causal"):
        zoo.form("nystrom", 64, 2.0)


def test_families():
    assert not [name for name in preset_names() if name.startswith("zoo")]
    assert preset_names("small", "zoo") == preset_names("small") + preset_names("zoo")
    with pytest.raises(ConfigError, match="no family of presets 'tiny'; there are small, published"):
        preset_names("tiny")
