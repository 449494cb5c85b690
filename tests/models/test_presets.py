"""Published models to the parameter, small ones as measured, and every preset as one consistent model."""

import pytest
import torch
from pydantic import ValidationError

from kernels.errors import ConfigError
from models import LanguageModel, Layout, greedy, preset, preset_names
from models.initialise import seeded

SMALL = [name for name in preset_names() if name.endswith(("tiny", "mini"))]
COUNTS = {"jrt-360m": 356_578_304, "jrt-1.3b": 1_375_143_168, "based-360m": 362_702_848, "based-360m-26": 350_024_704,
          "based-1.3b": 1_349_453_056}


def meta(name: str) -> LanguageModel:
    with torch.device("meta"):
        return LanguageModel(preset(name))


@pytest.mark.parametrize("name", COUNTS)
def test_published_counts(name):
    assert meta(name).cost(1).parameters == COUNTS[name]


def test_released_layers_of_jrt_360m():
    model = meta("jrt-360m")
    plan = model.config.plan
    assert [i for i, name in enumerate(plan) if name == "prefix"] == [1, 6, 11, 16, 21]
    assert [i for i, name in enumerate(plan) if name == "window"] == [2, 7, 12, 17, 22] and plan.count("conv") == 16
    assert model.config.mixers["window"].window == 129 and model.embedding.weight.shape == (50264, 1024)
    parts = {plan[i]: sum(p.numel() for p in model.blocks[i].mixer.parameters()) for i in (0, 1, 2)}
    assert parts == {"conv": 6_302_720, "prefix": 3_932_160, "window": 4_194_304}


@pytest.mark.parametrize("name, parameters", [("transformer-tiny", 394e3), ("based-tiny", 379e3), ("jrt-tiny", 420e3)])
def test_tiny_models_have_the_measured_size(name, parameters):
    assert abs(meta(name).cost(1).parameters - parameters) < 1e3


def test_costs_grow_as_declared():
    for name in preset_names():
        model = meta(name)
        short, long = model.cost(2048), model.cost(32768)
        constant = model.abilities().growth == "constant"
        assert (long.state_bytes == short.state_bytes) == constant == (not name.startswith("transformer")), name
        assert (long.step_flops == short.step_flops) == constant, name
        assert model.abilities().prefix == name.startswith("jrt"), name


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
    with pytest.raises(ConfigError, match="jrt-tiny"):
        preset("jrt-huge")
    with pytest.raises(ValidationError, match="depth"):
        preset("jrt-tiny", depth=3)
