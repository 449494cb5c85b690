"""Mamba-2: what it starts from, its groups, its norm, its limits."""

import math

import pytest
import torch
from pydantic import ValidationError

from kernels.errors import ConfigError
from kernels.layout import Layout
from models import registry
from models.config import ModelConfig
from models.language_model import LanguageModel
from models.mixers import mamba2

WIDTH = 16
SMALL = {"state_size": 3, "head_dim": 8}


def build(**settings):
    return registry.build(mamba2.Config(**(SMALL | settings)), WIDTH, seed=0).double().eval()


def tokens(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def silu(x):
    return x / (1 + (-x).exp())


def test_first_weights_survive_the_trunk():
    config = ModelConfig(width=64, vocabulary=8, mixers={"m": mamba2.Config(expand=8, head_dim=2)}, plan=["m"], seed=3)
    mixer = LanguageModel(config).blocks[0].mixer
    decay = mixer.A_log.exp()
    assert 1 <= decay.min() < 2 and 15 < decay.max() <= 16.001 and 7.5 < decay.mean() < 9.5
    log_delta = torch.nn.functional.softplus(mixer.dt_bias.double()).log()
    assert math.log(0.001) - 1e-4 <= log_delta.min() and log_delta.max() <= math.log(0.1) + 1e-4
    assert abs(log_delta.mean() - math.log(0.01)) < 0.3
    assert torch.equal(mixer.D, torch.ones(256)) and torch.equal(mixer.norm.weight, torch.ones(512))
    assert 0.4 < mixer.conv1d.weight.abs().max() <= 0.5


@pytest.mark.parametrize("limit", [(0.0, None), (0.3, 0.5)], ids=["free", "held"])
@torch.no_grad()
def test_written_out(limit):
    """The layer as its formulas, head by head; two groups, and steps on both sides of the limits."""
    mixer = build(n_groups=2, conv_width=2, bias=True, dt_limit=limit, dt_min=0.4, dt_max=0.4)
    for parameter, seed in ((mixer.in_proj.bias, 1), (mixer.out_proj.bias, 2), (mixer.D, 3), (mixer.norm.weight, 4)):
        parameter.copy_(tokens(len(parameter), seed=seed))
    x, outputs, steps = tokens(6, WIDTH), [], []
    gate, entering, step = (mixer.in_proj(x)).split((32, 32 + 12, 4), -1)
    h = torch.zeros(4, 3, 8, dtype=torch.float64)
    for t in range(6):
        c = mixer.conv1d.bias + mixer.conv1d.weight[:, 0, 1] * entering[t]
        c = silu(c + mixer.conv1d.weight[:, 0, 0] * entering[t - 1] if t else c)
        heads = []
        for head in range(4):
            v, k, q = (c[start : start + size] for start, size in ((8 * head, 8), (32 + 3 * (head // 2), 3), (38 + 3 * (head // 2), 3)))
            delta = (1 + (step[t, head] + mixer.dt_bias[head]).exp()).log()
            steps.append(float(delta))
            delta = delta.clamp(limit[0], limit[1] or math.inf)
            h[head] = (-delta * mixer.A_log[head].exp()).exp() * h[head] + delta * k[:, None] * v
            heads.append(q @ h[head] + mixer.D[head] * v)
        y = torch.cat(heads) * silu(gate[t])
        y = torch.cat([part / (part.square().mean() + 1e-5).sqrt() for part in y.split(16)]) * mixer.norm.weight
        outputs.append(mixer.out_proj(y))
    assert min(steps) < 0.3 and max(steps) > 0.5
    torch.testing.assert_close(mixer(x[None], Layout.dense(1, 6))[0], torch.stack(outputs), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_without_a_convolution():
    mixer, x = build(conv_width=1), tokens(2, 9, WIDTH)
    y, state = mixer.prefill(x[:, :4], Layout.dense(2, 4))
    outputs = [y]
    for token in x[:, 4:].unbind(1):
        y, state = mixer.step(token, state)
        outputs.append(y[:, None])
    torch.testing.assert_close(torch.cat(outputs, 1), mixer(x, Layout.dense(2, 9)))
    assert state["inputs"].numel() == 0 and state.nbytes == 2 * mixer.cost(9, torch.float64).state_bytes


def test_published_figures():
    """state-spaces/mamba2-130m: 24 layers, 768 wide, 50,288 tokens, tied; a float32 state of 3 · 1,792 + 1,536 · 128 numbers."""
    with torch.device("meta"):
        cost = mamba2.Mamba2(mamba2.Config(), 768, 0).cost(1, torch.float32)
    assert 50_288 * 768 + 24 * (cost.parameters + 768) + 768 == 128_989_632
    assert cost.state_bytes == 4 * (3 * (1536 + 2 * 128) + 1536 * 128) + 8
    matrices = 768 * (2 * 1536 + 2 * 128 + 24) + 1536 * 768
    assert cost.step_flops == 2 * matrices + 2 * 4 * 1792 + 4 * 1536 * 128 + 2 * 1536


def test_sizes_that_do_not_divide():
    with pytest.raises(ConfigError, match=r"32 channels.*expand 2.*head_dim 5"):
        build(head_dim=5)
    with pytest.raises(ConfigError, match=r"4 heads.*n_groups 3"):
        build(n_groups=3)


@pytest.mark.parametrize("settings", [{"decay_range": (0.0, 1.0)}, {"decay_range": (2.0, 1.0)}, {"dt_limit": (-1.0, None)},
                                      {"dt_limit": (0.2, 0.1)}, {"dt_min": 0.2}, {"norm_eps": 0.0}])
def test_refused_settings(settings):
    with pytest.raises(ValidationError):
        mamba2.Config(**settings)


def test_a_config_survives_json():
    """An open limit is None, as JSON has no infinity."""
    for limit in ((0.0, None), (0.1, 0.2)):
        config = mamba2.Config(dt_limit=limit)
        assert mamba2.Config.model_validate_json(config.model_dump_json()) == config


def test_decay_spares_what_must_not_shrink():
    names = {name for name, _ in build().named_parameters()}
    assert {"A_log", "D", "dt_bias"} == mamba2.Mamba2.no_decay <= names
    assert build().keep_init <= names
