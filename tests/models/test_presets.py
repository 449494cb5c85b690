"""Published models to the parameter, small ones as measured, and every preset as one consistent model."""

import re

import pytest
import torch
from pydantic import ValidationError

from kernels.errors import ConfigError
from models import LanguageModel, Layout, ModelConfig, greedy, preset, preset_names, registry
from models.initialise import seeded
from models.presets import describe, modern
from models.sizing import Sketch, match

SMALL = [name for name in preset_names() if name.endswith(("tiny", "mini"))]
COUNTS = {"jrt-360m": 356_578_304, "jrt-1.3b": 1_375_143_168, "based-360m": 362_702_848, "based-360m-26": 350_024_704,
          "based-1.3b": 1_349_453_056}

LAVO = ("pg19-lavo", "pg19-lavo-w32", "pg19-lavo-w16")


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
        assert card.family != "published" or name.startswith("pg19")     # LAVO prints three sizes of its seven systems
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
    assert [part.mixer for part in sketch.parts] == [block.mixer.parameter_count() for block in model.blocks]
    assert [part.norms for part in sketch.parts] == [sum(p.numel() for key, p in block.named_parameters() if key.startswith("norm"))
                                                     for block in model.blocks]
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


def test_mamba_keeps_its_library_s_vocabulary():
    for name, width in (("mamba-360m", 1024), ("mamba-1.3b", 2048)):
        config = preset(name)
        assert (config.width, config.layers, config.mlp, config.table_rows) == (width, 46, None, 50_288)
        inner, rank, N = 2 * width, width // 16, 16
        layer = (width * 2 * inner + inner * 4 + inner + inner * (rank + 2 * N) + rank * inner + inner + inner * N + inner
                 + inner * width + width)
        assert meta(name).cost(1).parameters == 46 * layer + width + 50_288 * width


def test_lavo_s_trunk():
    """85,056,000 numbers without the embedding: fairseq's 12 layers of attention and MLP with biases, and a norm."""
    for name in preset_names("published"):
        if name.startswith("pg19"):
            config = preset(name)
            assert (config.width, config.layers, config.mlp, config.mlp_kind, config.norm) == (768, 12, 3072, "gelu", "layer")
            assert config.positions == ("sinusoidal" if name not in LAVO and name != "pg19-rope" else "none")
    assert meta("pg19-vanilla").cost(1).parameters == 85_056_000 + 48_520 * 768
    for name, window in zip(LAVO, (64, 32, 16)):
        assert meta(name).cost(1).parameters == 85_056_000 + 48_520 * 768 + 12 * (64 * 768 + 2 * window - 1)
    assert meta("pg19-rope").cost(1).parameters == meta("pg19-vanilla").cost(1).parameters


def test_what_lavo_s_three_printed_sizes_imply_about_the_vocabulary():
    """122.91, 136.61 and 155.41 million round right together for 48,520 and 48,521 rows alone, of which fairseq's is a multiple of 8."""
    without = {name: meta(name).cost(1).parameters - 48_520 * 768 for name in ("pg19-lavo", "pg19-long-short", "pg19-s4d")}
    printed = {"pg19-lavo": 122.91, "pg19-long-short": 136.61, "pg19-s4d": 155.41}
    fits = [rows for rows in range(45_000, 52_000)
            if all(f"{(count + rows * 768) / 1e6:.2f}" == f"{printed[name]:.2f}" for name, count in without.items())]
    assert fits == [48_520, 48_521]
    assert f"{(without['pg19-lavo'] + 50_257 * 768) / 1e6:.2f}" == "124.24"
    for name in printed:
        assert any("48,520" in conflict for conflict in describe(name).conflicts)


@pytest.mark.parametrize("scale", modern.WIDTH)
@pytest.mark.parametrize("name", modern.MODELS)
def test_modern_sizes_are_the_solver_s(name, scale):
    model, target = modern.MODELS[name], COUNTS[f"jrt-{scale}"]
    found = match(lambda size: model.config(scale, size), target, step=1 if model.layers else modern.MLP_STEP)
    assert found.size == model.sizes[scale] and found.config == preset(f"{name}-{scale}")
    assert abs(meta(f"{name}-{scale}").cost(1).parameters / target - 1) <= 0.01
    assert not model.layers or found.config.mlp is None


def test_the_hybrid_has_three_gated_delta_layers_to_one_of_attention():
    for scale in modern.WIDTH:
        plan = preset(f"hybrid-{scale}").plan
        assert len(plan) == 24 and [i for i, name in enumerate(plan) if name == "attention"] == [3, 7, 11, 15, 19, 23]
        assert set(plan) == {"gated_delta_net", "attention"}


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
    assert model.abilities().prefix == any(registry.abilities(mixer).prefix for mixer in model.config.mixers.values())


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


@pytest.mark.parametrize("plan", [["delta*3", "attention"], ["conv", "delta*2", "attention", "window"],
                                  ["attention", "gated*3", "attention", "mamba2"], ["prefix", "delta*3", "attention"]])
def test_a_hybrid_by_its_layer_pattern_prefills_and_steps(plan):
    mixers = {"delta": {"kind": "delta_net", "heads": 2}, "gated": {"kind": "gated_delta_net", "heads": 2},
              "attention": {"kind": "attention", "heads": 2}, "window": {"kind": "sliding_window", "heads": 2, "window": 5},
              "conv": {"kind": "base_conv"}, "prefix": {"kind": "prefix", "heads": 2, "feature_dim": 4},
              "mamba2": {"kind": "mamba2", "head_dim": 8, "state_size": 6}}
    model = LanguageModel(ModelConfig(width=16, vocabulary=64, init_std=0.3, plan=plan, mixers=mixers)).double().eval()
    assert model.abilities().growth == "linear" and model.abilities().prefix == ("prefix" in plan)
    ids = torch.randint(0, 64, (3, 23), generator=seeded(*plan))
    prefixes, lengths = [6, 3, 0], [14, 5, 1]
    whole = model(ids, Layout.dense(3, 23).with_prefix(prefixes))
    logits, state = model.prefill(ids, Layout.right_padded(lengths, 23).with_prefix(prefixes))
    for step in range(9):
        at = torch.tensor([n + step for n in lengths])
        expected = whole[torch.arange(3), at - 1]
        assert (logits - expected).abs().max() < 1e-10 * expected.abs().max()
        logits, state = model.step(ids[torch.arange(3), at], state)
    order = torch.tensor([2, 0])
    kept, _ = model.step(torch.tensor([5, 9]), state.clone().select(order))
    both, _ = model.step(torch.tensor([9, 0, 5]), state)
    assert (kept - both[order]).abs().max() < 1e-10 * both.abs().max()


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
    with pytest.raises(ConfigError, match="no model preset 'JRT-teny'; close to it are jrt-tiny"):
        preset("JRT-teny")
    with pytest.raises(ConfigError, match="there are transformer-tiny, .*jrt-1.3b"):
        preset("##########")
    with pytest.raises(ValidationError, match="depth"):
        preset("jrt-tiny", depth=3)
