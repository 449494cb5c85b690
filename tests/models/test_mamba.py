"""Mamba: what it starts from, what a token's step does, its edges."""

import math

import pytest
import torch
from pydantic import ValidationError

from kernels.layout import Layout
from models import registry
from models.config import ModelConfig
from models.language_model import LanguageModel
from models.mixers import mamba

WIDTH = 16


def build(**settings):
    return registry.build(mamba.Config(**settings), WIDTH, seed=0).double().eval()


def tokens(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_first_weights_survive_the_trunk():
    """A = -1 ... -N, D = 1, Δ in its range and log-uniform, whatever the trunk redraws."""
    config = ModelConfig(width=64, vocabulary=8, mixers={"m": mamba.Config(expand=8)}, plan=["m"], seed=3)
    mixer = LanguageModel(config).blocks[0].mixer
    torch.testing.assert_close(mixer.A_log.exp(), torch.arange(1.0, 17).expand(512, 16))
    assert torch.equal(mixer.D, torch.ones(512))
    log_delta = torch.nn.functional.softplus(mixer.dt_proj.bias.double()).log()
    assert math.log(0.001) - 1e-4 <= log_delta.min() and log_delta.max() <= math.log(0.1) + 1e-4
    expected = (math.log(0.001) + math.log(0.1)) / 2
    assert abs(log_delta.mean() - expected) < 0.2 and 1.1 < log_delta.std() < 1.6
    assert mixer.rank == 4 and 0.4 < mixer.dt_proj.weight.abs().max() <= 0.5
    assert 0.4 < mixer.conv1d.weight.abs().max() <= 0.5 and mixer.conv1d.bias.abs().max() <= 0.5
    assert mixer.in_proj.weight.std() < 0.03


def test_a_floor_holds_the_first_steps():
    mixer = build(dt_min=1e-6, dt_max=1e-5, dt_floor=1e-3, expand=4)
    torch.testing.assert_close(torch.nn.functional.softplus(mixer.dt_proj.bias), torch.full((64,), 1e-3, dtype=torch.float64),
                               rtol=1e-6, atol=0)


@torch.no_grad()
def test_written_out():
    """The layer as its formulas, token by token and channel by channel."""
    mixer = build(state_size=3, conv_width=3, bias=True)
    for bias in (mixer.in_proj.bias, mixer.out_proj.bias):
        bias.copy_(tokens(len(bias), seed=9))
    x, inner = tokens(6, WIDTH), mixer.inner
    u, gate = (mixer.in_proj.weight @ x.T + mixer.in_proj.bias[:, None]).T.chunk(2, -1)
    h, outputs = torch.zeros(inner, 3, dtype=torch.float64), []
    for t in range(6):
        c = mixer.conv1d.bias.clone()
        for back in range(min(3, t + 1)):
            c += mixer.conv1d.weight[:, 0, 2 - back] * u[t - back]
        c = c / (1 + (-c).exp())
        low, entering, leaving = (mixer.x_proj.weight @ c).split((1, 3, 3))
        delta = (1 + (mixer.dt_proj.weight @ low + mixer.dt_proj.bias).exp()).log()
        for d in range(inner):
            for n in range(3):
                h[d, n] = (-delta[d] * mixer.A_log[d, n].exp()).exp() * h[d, n] + delta[d] * entering[n] * c[d]
        y = (h @ leaving + mixer.D * c) * gate[t] / (1 + (-gate[t]).exp())
        outputs.append(mixer.out_proj.weight @ y + mixer.out_proj.bias)
    torch.testing.assert_close(mixer(x[None], Layout.dense(1, 6))[0], torch.stack(outputs), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_without_a_convolution():
    """conv_width 1 caches nothing and streams."""
    mixer, x = build(state_size=3, conv_width=1), tokens(2, 9, WIDTH)
    y, state = mixer.prefill(x[:, :4], Layout.dense(2, 4))
    outputs = [y]
    for token in x[:, 4:].unbind(1):
        y, state = mixer.step(token, state)
        outputs.append(y[:, None])
    torch.testing.assert_close(torch.cat(outputs, 1), mixer(x, Layout.dense(2, 9)))
    assert state["inputs"].numel() == 0 and state.nbytes == 2 * mixer.cost(9, torch.float64).state_bytes


def test_published_figures():
    """state-spaces/mamba-130m: 24 layers, 768 wide, 50,280 tokens, tied; a float32 state of 1,536 (3 + 16) numbers a layer."""
    with torch.device("meta"):
        cost = mamba.Mamba(mamba.Config(), 768, 0).cost(1, torch.float32)
    assert 50_280 * 768 + 24 * (cost.parameters + 768) + 768 == 129_135_360
    assert cost.state_bytes == 4 * 1536 * (3 + 16) + 8
    matrices = 768 * 3072 + 1536 * (48 + 2 * 16) + 48 * 1536 + 1536 * 768
    assert cost.step_flops == 2 * matrices + 1536 * (2 * 4 + 6 * 16 + 2)


@pytest.mark.parametrize("settings", [{"dt_min": 0.2}, {"dt_max": 0.0001}, {"dt_rank": "half"}, {"dt_rank": 0},
                                      {"expand": 0}, {"state_size": 0}])
def test_refused_settings(settings):
    with pytest.raises(ValidationError):
        mamba.Config(**settings)


def test_decay_spares_what_must_not_shrink():
    names = {name for name, _ in build().named_parameters()}
    assert {"A_log", "D"} == mamba.Mamba.no_decay <= names
    assert build().keep_init <= names
    assert build(conv_bias=False).conv1d.bias is None
