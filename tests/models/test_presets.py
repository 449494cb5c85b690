"""Published models to the parameter, small ones as measured, and every preset as one consistent model."""

import re

import pytest
import torch
from pydantic import ValidationError

from kernels.errors import ConfigError
from models import LanguageModel, Layout, greedy, preset, preset_names, registry
from models.initialise import seeded
from models.presets import describe
from models.sizing import Sketch

SMALL = [name for name in preset_names() if name.endswith(("tiny", "mini"))]
COUNTS = {"jrt-360m": 356_578_304, "jrt-1.3b": 1_375_143_168, "based-360m": 362_702_848, "based-360m-26": 350_024_704,
          "based-1.3b": 1_349_453_056}


def meta(name: str) -> LanguageModel:
    with torch.device("meta"):
        return LanguageModel(preset(name), initialise=False)


@pytest.mark.parametrize("name", COUNTS)
def test_published_counts(name):
    assert meta(name).cost(1).parameters == COUNTS[name] == describe(name).counted


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_its_published_size_and_says_where_it_comes_from(name):
    """As printed to one unit of its last digit, or within 6 % where the print says `about`."""
    card, parameters = describe(name), meta(name).cost(1).parameters
    assert card.name == name and card.about and card.source
    assert card.counted in (None, parameters)
    if card.published is None:
        assert card.family != "published"
        return
    about, number, unit = re.match(r"(about )?([\d.]+)([MB]) \(", card.published).groups()
    scale = {"M": 1e6, "B": 1e9}[unit]
    decimals = len(number.partition(".")[2])
    assert abs(parameters - float(number) * scale) <= (0.06 * float(number) * scale if about else scale * 10.0 ** -decimals)


@pytest.mark.parametrize("name", preset_names())
def test_a_sketch_counts_as_the_model_does(name):
    model, sketch = meta(name), Sketch(preset(name))
    assert sketch.able == model.able and sketch.parameters == sum(p.numel() for p in model.parameters())
    assert [part.parameters for part in sketch.parts] == [sum(p.numel() for p in block.parameters()) for block in model.blocks]
    for length in (1, 777):
        assert sketch.cost(length) == model.cost(length)
        assert sum(cost.state_bytes for cost in sketch.layer_costs(length)) == model.cost(length).state_bytes


def test_released_layers_of_jrt_360m():
    model = meta("jrt-360m")
    plan = model.config.plan
    assert [i for i, name in enumerate(plan) if name == "prefix"] == [1, 6, 11, 16, 21]
    assert [i for i, name in enumerate(plan) if name == "window"] == [2, 7, 12, 17, 22] and plan.count("conv") == 16
    assert model.config.mixers["window"].window == 129 and model.embedding.weight.shape == (50264, 1024)
    parts = {plan[i]: sum(p.numel() for p in model.blocks[i].mixer.parameters()) for i in (0, 1, 2)}
    assert parts == {"conv": 6_302_720, "prefix": 3_932_160, "window": 4_194_304}


def test_ablations_of_table_12():
    for name, layers, millions in (("pla-360m", 23, 353.0), ("la-360m", 26, 349.3)):
        config = preset(name)
        assert config.width == 1152 and config.layers == layers and len(set(config.plan)) == 1
        assert round(meta(name).cost(1).parameters / 1e6, 1) == millions
    for name, inner in (("pla-window-360m", "prefix"), ("la-window-360m", "based")):
        config = preset(name)
        assert [i for i, kind in enumerate(config.plan) if kind == "window"] == [1, 6, 11, 16, 21]
        assert set(config.plan) == {"window", inner}


def test_the_loader_conflict_of_the_larger_transformer():
    """8/3 of 1,680 is 4,480, a multiple of 128 but not of 256."""
    one, other = preset("transformer-1.3b"), preset("transformer-1.3b-4608")
    assert (one.mlp, other.mlp) == (4480, 4608) and {one.width // one.mixers["attention"].heads} == {70}
    assert one.model_copy(update={"mlp": 4608}) == other and one.table_rows == 50_272
    assert describe("transformer-1.3b").conflicts == describe("transformer-1.3b-4608").conflicts != ()


@pytest.mark.parametrize("name, parameters", [("transformer-tiny", 394e3), ("based-tiny", 379e3), ("jrt-tiny", 420e3)])
def test_tiny_models_have_the_measured_size(name, parameters):
    assert abs(meta(name).cost(1).parameters - parameters) < 1e3


@pytest.mark.parametrize("name", preset_names())
def test_costs_grow_as_declared(name):
    model = meta(name)
    short, long = model.cost(2048), model.cost(32768)
    constant = model.abilities().growth == "constant"
    grows = any(registry.abilities(mixer).growth != "constant" for mixer in model.config.mixers.values())
    assert (long.state_bytes == short.state_bytes) == constant != grows
    assert (long.step_flops == short.step_flops) == constant
    assert model.abilities().prefix == any(mixer.kind == "prefix" for mixer in model.config.mixers.values())


@pytest.mark.parametrize("name", SMALL)
def test_prefill_and_steps_are_the_forward(name):
    model = LanguageModel(preset(name)).double()
    ids = torch.randint(0, 200, (3, 41), generator=seeded(name))
    prefixes, lengths = [20, 7, 0], [30, 7, 1]
    whole = model(ids, Layout.dense(3, 41).with_prefix(prefixes))
    logits, state = model.prefill(ids, Layout.right_padded(lengths, 41).with_prefix(prefixes))
    for step in range(11):
        at = torch.tensor([n + step for n in lengths])
        expected = whole[torch.arange(3), at - 1]
        assert (logits - expected).abs().max() < 1e-10 * expected.abs().max()
        logits, state = model.step(ids[torch.arange(3), at], state)
    assert state.nbytes == state.live_bytes(lambda n: model.cost(n, torch.float64)) or name.startswith("transformer")


@pytest.mark.parametrize("name", SMALL)
def test_greedy_text_does_not_depend_on_the_batch(name):
    model = LanguageModel(preset(name, init_std=0.3)).double()
    prompts = [torch.randint(0, 200, (n,), generator=seeded(name, n)).tolist() for n in (3, 40, 17, 1, 21, 8, 33, 5)]
    stop = frozenset(range(0, 256, 16))
    texts = [greedy(model, prompts, maximum_new=12, stop=stop, batch_rows=rows) for rows in (1, 3, 8)]
    assert texts[0] == texts[1] == texts[2] == greedy(model, prompts[::-1], maximum_new=12, stop=stop)[::-1]
    assert len(set(map(tuple, texts[0]))) > 4


def test_released_padding_mutes_what_the_prefix_layers_read():
    model = LanguageModel(preset("jrt-mini", prefix_tokens=24, init_std=0.3)).double()
    prompts = [torch.randint(0, 200, (n,), generator=seeded(n)).tolist() for n in (9, 24, 30, 9, 14)]
    got = greedy(model, prompts, maximum_new=6, strategy="left_pad_released", pad=7)
    for prompt, text in zip(prompts, got):
        pads = max(0, 24 - len(prompt))
        ids = torch.tensor([[7] * pads + prompt])
        layout = Layout.dense(1, ids.shape[1]).with_prefix(24)
        if pads:
            layout = layout.with_muted(torch.arange(ids.shape[1])[None] < pads)
        logits, state = model.prefill(ids, layout)
        for token in text:
            assert logits[0, :256].argmax().item() == token
            logits, state = model.step(torch.tensor([token]), state)
    exact = greedy(model, prompts, maximum_new=6)
    assert got[1:3] == exact[1:3] and got != exact


def test_changes_and_mistakes():
    changed = preset("jrt-tiny", seed=3, vocabulary=512)
    assert (changed.seed, changed.vocabulary, changed.mixers) == (3, 512, preset("jrt-tiny").mixers)
    with pytest.raises(ConfigError, match="no model preset 'jrt-teny'; close to it are jrt-tiny"):
        preset("jrt-teny")
    with pytest.raises(ConfigError, match="there are transformer-tiny, .*jrt-1.3b"):
        preset("##########")
    with pytest.raises(ValidationError, match="depth"):
        preset("jrt-tiny", depth=3)
