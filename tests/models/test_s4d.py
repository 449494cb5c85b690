"""S4D: what it starts from, its kernels, both directions, the published size."""

import cmath
import math

import pytest
import torch
from pydantic import ValidationError

from kernels.errors import UnsupportedUse
from kernels.layout import Layout
from models import registry
from models.config import ModelConfig
from models.language_model import LanguageModel
from models.mixers import s4d

WIDTH = 16
LAVO = {"channels": 8, "state_size": 64, "init": "inv", "shared_A": True, "output": "linear"}


def build(**settings):
    return registry.build(s4d.Config(**settings), WIDTH, seed=0).double().eval()


def tokens(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_published_size():
    """LAVO's S4D language model, 155.41 M: fairseq's 12 layers of 768 with 48,520 tokens, this layer for attention."""
    with torch.device("meta"):
        mixer = s4d.S4D(s4d.Config(**LAVO), 768, 0)
    layer = mixer.cost(1).parameters
    assert layer == 8 * 768 * 64 + 2 * 32 + 768 + 8 * 768 + 8 * 768 * 768 + 768 == 5_119_552
    attention, without_embedding = 4 * 768 * 769, 85_056_000
    total = 48_520 * 768 + without_embedding + 12 * (layer - attention)
    assert round(total / 1e6, 2) == 155.41
    assert mixer.cost(1).state_bytes == 768 * 64 * 4 + 8


@pytest.mark.parametrize("init", ["lin", "inv"])
def test_first_weights_survive_the_trunk(init):
    mixers = {"m": s4d.Config(state_size=8, init=init, channels=3)}
    mixer = LanguageModel(ModelConfig(width=512, vocabulary=8, mixers=mixers, plan=["m"], seed=3)).blocks[0].mixer
    expected = {"lin": [0, math.pi, 2 * math.pi, 3 * math.pi], "inv": [8 / math.pi * (8 / (2 * n + 1) - 1) for n in range(4)]}
    torch.testing.assert_close(mixer.A_imag.detach(), torch.tensor(expected[init]).expand(512, 4))
    torch.testing.assert_close(mixer.log_A_real.exp(), torch.full((512, 4), 0.5))
    assert math.log(0.001) <= mixer.log_dt.min() and mixer.log_dt.max() <= math.log(0.1)
    assert abs(mixer.log_dt.mean() - math.log(0.01)) < 0.25
    assert abs(mixer.C.square().sum(-1).mean() - 1) < 0.05 and abs(mixer.D.std() - 1) < 0.1


@torch.no_grad()
def test_an_impulse_gives_the_kernel():
    """K_t = 2 Re sum_n C_n (exp(ΔA_n) - 1)/A_n exp(ΔA_n t), feature by feature, and D at once."""
    mixer = build(state_size=6, channels=2, init="inv", output="linear", activation="identity")
    mixer.out_proj.weight.copy_(torch.eye(2 * WIDTH, dtype=torch.float64)[:WIDTH])  # the first channel of each feature
    mixer.out_proj.bias.zero_()
    x = torch.zeros(1, 40, WIDTH, dtype=torch.float64)
    x[0, 3, 5] = 1.0
    dt = float(mixer.log_dt[5].exp())
    kernel = torch.zeros(40, dtype=torch.float64)
    for n in range(3):
        A = complex(-float(mixer.log_A_real[5, n].exp()), float(mixer.A_imag[5, n]))
        read = complex(*mixer.C[0, 5, n].tolist()) * (cmath.exp(dt * A) - 1) / A
        for t in range(3, 40):
            kernel[t] += 2 * (read * cmath.exp(dt * A * (t - 3))).real
    kernel[3] += mixer.D[0, 5]
    y = mixer(x, Layout.dense(1, 40))[0]
    torch.testing.assert_close(y[:, 5], kernel, rtol=1e-10, atol=1e-10)
    assert not y[:, :5].any() and not y[:, 6:].any()


@torch.no_grad()
def test_both_ways_is_one_way_twice():
    """The first reads forwards; the second ones on the reversed document, one token late; pads in between do not count."""
    both = build(mode="non_causal", state_size=6, activation="identity", output="linear", channels=2)
    one, other = (build(state_size=6, activation="identity", output="linear", channels=2) for _ in range(2))
    for mixer, part in ((one, both.C[:2]), (other, both.C[2:])):
        mixer.load_state_dict(both.state_dict() | {"C": part})
    other.D.zero_()
    other.out_proj.bias.zero_()
    for n in (1, 2, 13):
        x = tokens(1, n, WIDTH)
        late = torch.nn.functional.pad(other(x.flip(1), Layout.dense(1, n)), (0, 0, 1, -1)).flip(1)
        late[:, -1] = 0.0
        expected = one(x, Layout.dense(1, n)) + late
        torch.testing.assert_close(both(x, Layout.dense(1, n)), expected)
        padded = torch.cat((torch.full((1, 4, WIDTH), 7.0, dtype=torch.float64), x), 1)
        torch.testing.assert_close(both(padded, Layout.left_padded([n], n + 4))[:, 4:], expected)


def test_both_ways_has_no_state():
    mixer = build(mode="non_causal")
    for use in (lambda: mixer.init_state(1, torch.float64, "cpu"), lambda: mixer.prefill(tokens(1, 3, WIDTH), Layout.dense(1, 3)),
                lambda: mixer.step(tokens(1, WIDTH), None)):
        with pytest.raises(UnsupportedUse, match="s4d"):
            use()
    assert mixer.cost(5).state_bytes == 0


def test_the_rate_of_the_state():
    assert build().lr_scale == {}
    mixer = build(state_lr_scale=0.1)
    assert mixer.lr_scale == {"log_dt": 0.1, "log_A_real": 0.1, "A_imag": 0.1}
    assert mixer.no_decay == mixer.lr_scale.keys() <= {name for name, _ in mixer.named_parameters()}
    model = LanguageModel(ModelConfig(width=16, vocabulary=8, mixers={"m": mixer.config}, plan=["m"]))
    assert model.lr_scale()["blocks.0.mixer.A_imag"] == 0.1 and "blocks.0.mixer.A_imag" in model.no_decay()


@torch.no_grad()
def test_fast_turning_waves_keep_their_phase_in_float32():
    """Angles of 20 rad a token, 3,000 tokens: a float32 power would be off by 1e-3."""
    mixer = build(state_size=64, init="inv", dt_min=0.002, dt_max=0.05)
    x = tokens(1, 3000, WIDTH).float()
    rounded = registry.build(mixer.config, WIDTH, seed=0)
    y = rounded(x, Layout.dense(1, 3000))
    expected = mixer(x.double(), Layout.dense(1, 3000))
    assert (y - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("settings", [{"state_size": 5}, {"state_size": 0}, {"channels": 0}, {"init": "legs"}, {"mode": "cross"},
                                      {"dt_min": 0.2}, {"state_lr_scale": 0.0}])
def test_refused_settings(settings):
    with pytest.raises(ValidationError):
        s4d.Config(**settings)
