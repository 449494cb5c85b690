"""A mixer is a file: found without a list, listed with its reason when broken, refused when asked for."""

import pytest
import torch
from pydantic import ValidationError

import models.mixers
from kernels.errors import ConfigError, UnsupportedUse
from models import ModelConfig, registry

GOOD = """
from typing import Literal
from models.mixer import Abilities, Mixer, MixerConfig

class Config(MixerConfig):
    kind: Literal["{kind}"] = "{kind}"
    causal: bool = True

class Found(Mixer):
    @classmethod
    def abilities(cls, config):
        return Abilities(causal=config.causal, streaming=config.causal)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(models.mixers, "__path__", [*models.mixers.__path__, str(tmp_path)])
    return tmp_path


def test_a_new_file_is_all_it_takes(folder):
    (folder / "found_here.py").write_text(GOOD.format(kind="found_here"))
    assert "found_here" in registry.kinds() and "found_here" not in registry.broken()
    mixer = registry.build(registry.config_class("found_here")(), width=4, layer=2)
    assert (mixer.width, mixer.layer, mixer.config.kind) == (4, 2, "found_here")
    assert registry.names() == sorted(registry.names())


@pytest.mark.parametrize("text, reason", [
    ("import no_such_package_here", "no_such_package_here"),
    ("def f(:", "SyntaxError"),
    ("x = 1", "no pydantic class"),
    (GOOD.format(kind="another_name"), "expected Literal"),
    (GOOD + "\nclass Second(Mixer):\n    pass\n", "2 Mixer subclasses"),
])
def test_a_broken_file_is_listed_and_only_asking_raises(folder, text, reason):
    kind = f"broken_{abs(hash(text)) % 10 ** 8}"
    (folder / f"{kind}.py").write_text(text.replace("{kind}", kind))
    assert reason in registry.broken()[kind] and kind not in registry.kinds() and kind in registry.names()
    with pytest.raises(ConfigError, match="cannot be used"):
        registry.mixer_class(kind)
    with pytest.raises(ConfigError, match="cannot be used"):
        ModelConfig(width=4, vocabulary=8, mixers={"a": {"kind": kind}}, plan=["a"])


def test_unknown_kind_names_the_known_ones(toy_kind):
    with pytest.raises(ConfigError, match=r"no mixer of kind 'perceptron'.*toy_mixer"):
        registry.config_class("perceptron")


def test_a_mixer_that_cannot_be_causal_is_refused_in_a_language_model(folder):
    (folder / "sees_all.py").write_text(GOOD.format(kind="sees_all"))
    with pytest.raises(UnsupportedUse, match="sees_all.*causal"):
        ModelConfig(width=4, vocabulary=8, mixers={"a": {"kind": "sees_all", "causal": False}}, plan=["a"])


def test_abilities_that_are_false_refuse_with_kind_and_remedy(folder):
    (folder / "no_stream.py").write_text(GOOD.format(kind="no_stream"))
    mixer = registry.build(registry.config_class("no_stream")(causal=False), width=4)
    from models import Layout
    x, layout = torch.zeros(1, 3, 4), Layout.dense(1, 3)
    for call in (lambda: mixer.prefill(x, layout), lambda: mixer.extend(x, layout, None), lambda: mixer.step(x, None),
                 lambda: mixer.encode(x, layout), lambda: mixer.read(x, layout, None), lambda: mixer(x, layout)):
        with pytest.raises(UnsupportedUse, match="no_stream cannot do .*; "):
            call()


def test_config_errors_name_the_field(toy_kind):
    good = dict(width=4, vocabulary=8, mixers={"a": {"kind": toy_kind}}, plan=["a*2", "a"])
    config = ModelConfig(**good)
    assert config.plan == ("a", "a", "a") and config.table_rows == 8
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config
    for change, text in [({"plan": ["b"]}, "plan names"), ({"plan": []}, "at least one layer"), ({"width": 0}, "width"),
                         ({"positions": "learned"}, "max_length"), ({"mixers": {"a": {"size": 3}}}, "needs `kind`"),
                         ({"mixers": {"a": {"kind": toy_kind, "size": 3}}}, "size"), ({"depth": 2}, "depth"),
                         ({"plan": ["a*x"]}, r"name\*count")]:
        with pytest.raises(ValidationError, match=text):
            ModelConfig(**good | change)
    with pytest.raises(ValidationError, match="frozen"):
        config.width = 3
