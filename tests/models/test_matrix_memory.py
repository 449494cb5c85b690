"""Mixers with one matrix a head: sizes, first values, what their gates keep; the laws are in tests/contracts."""

import pytest
import torch

from kernels.errors import ConfigError
from kernels.layout import Layout
from models import registry
from models.config import ModelConfig
from models.language_model import LanguageModel
from models.matrix_memory import unit
from models.mixers import delta_net, gated_delta_net, gla, prefix_delta, retnet

WIDTH = 16
MODULES = [retnet, gla, delta_net, gated_delta_net, prefix_delta]
EVERY = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])


def build(config, width=WIDTH, seed=0):
    return registry.build(config, width, seed=seed).double().eval()


def tokens(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@EVERY
@pytest.mark.parametrize("field", ["expand_k", "expand_v"])
def test_heads_must_divide_keys_and_values(module, field):
    kind = module.__name__.rpartition(".")[2]
    with pytest.raises(ConfigError, match=rf"{kind}: {field} 1.0 of width 16 is 16 channels, not a multiple of heads 3"):
        build(module.Config(heads=3, **({"expand_k": 1.5, "expand_v": 1.5} | {field: 1.0})), 16)


def test_fractions_of_a_channel_are_refused():
    with pytest.raises(ConfigError, match=r"expand_k 0.3 of width 16 is 4.8 channels"):
        build(gla.Config(heads=1, expand_k=0.3))


@EVERY
def test_the_state_is_one_matrix_a_head_and_the_last_taps(module):
    """Fixed size; the memory alone without a convolution."""
    settings = {"heads": 2, "expand_k": 1, "expand_v": 2}
    for conv, names in ((None, {"memory"}), (3, {"memory", "inputs"})):
        state = build(module.Config(conv=conv, **settings)).init_state(3, torch.float32, "cpu")
        assert set(state.names) == names and state["memory"].shape == (3, 2, 8, 16)
        assert conv is None or state["inputs"].shape == (3, 2, 16 + 16 + 32)


@EVERY
def test_trained_sizes_start_as_drawn(module):
    """A trunk redraws matrices, and leaves taps, rates and time steps as their mixer drew them; norms start at 1."""
    config = module.Config(heads=2, expand_k=1, expand_v=1, conv=4)
    model = LanguageModel(ModelConfig(width=64, vocabulary=16, mixers={"m": config}, plan="m"))
    mixer = model.blocks[0].mixer
    taps = mixer.conv_weight.detach()
    assert 0.45 < float(taps.abs().max()) <= 0.5 and abs(float(taps.mean())) < 0.05, "uniform in 4^-1/2"
    assert (mixer.norm.weight == 1).all()
    assert float(mixer.proj_q.weight.detach().std()) == pytest.approx(0.02, rel=0.2)
    if hasattr(mixer, "dt_bias"):
        assert {"blocks.0.mixer.A_log", "blocks.0.mixer.dt_bias"} <= model.no_decay()
        many = registry.build(module.Config(heads=1024, expand_k=16, expand_v=16, conv=None), 64, seed=1)
        step, rate = torch.nn.functional.softplus(many.dt_bias.detach()), many.A_log.detach().exp()
        assert 0.001 <= float(step.min()) < 0.0011 and 0.097 < float(step.max()) <= 0.1
        assert float(step.log().mean().exp()) == pytest.approx((0.001 * 0.1) ** 0.5, rel=0.1), "log-uniform"
        assert float(rate.max()) <= 16 and float(rate.mean()) == pytest.approx(8, rel=0.1)


def test_retention_keeps_a_constant_of_the_head():
    mixer = build(retnet.Config(heads=4, expand_v=1, decay_start=3))
    kept = mixer.log_decay(tokens(1, 2, WIDTH)).exp()
    assert torch.allclose(kept, torch.tensor([7 / 8, 15 / 16, 31 / 32, 63 / 64], dtype=torch.float64).expand(1, 2, 4))


def test_group_norm_is_torchs():
    mixer = build(retnet.Config(heads=4, expand_v=2, norm="group"))
    weights = {name: tokens(32, seed=number) for number, name in enumerate(("weight", "bias"))}
    mixer.norm.load_state_dict(weights)
    y = tokens(5, 4, 8, seed=3)
    expected = torch.nn.functional.group_norm(y.flatten(1), 4, weights["weight"], weights["bias"], mixer.config.norm_eps)
    torch.testing.assert_close(mixer.norm(y).flatten(1), expected, rtol=1e-12, atol=1e-12)


def test_unit_length_of_nothing_is_nothing():
    x = torch.cat((tokens(3, 8), torch.zeros(1, 8, dtype=torch.float64))).requires_grad_()
    y = unit(x)
    assert torch.allclose(y[:3].norm(dim=-1), torch.ones(3, dtype=torch.float64), atol=1e-5) and not y[3].any()
    y.sum().backward()
    assert x.grad.isfinite().all()


@torch.no_grad()
def test_a_full_write_replaces_what_its_key_held():
    """DeltaNet with strength 1: reading a key back gives the last value written under it, however often it was written."""
    mixer = build(delta_net.Config(heads=1, conv=None))
    mixer.proj_beta.weight.zero_()
    mixer.proj_beta.weight[0, 0] = 1e3  # sigmoid of it is 1 wherever the token's first channel is 1
    mixer.proj_k.weight[:, 0] = 0       # and the key is made of the others
    one, two = tokens(1, WIDTH), tokens(1, WIDTH, seed=1)
    one[:, 0] = two[:, 0] = 1
    state = mixer.init_state(1, torch.float64, "cpu")
    for x in (one, two, two):
        _, state = mixer.step(x, state)
    key, value = (torch.nn.functional.silu(projection(two))[0] for projection in (mixer.proj_k, mixer.proj_v))
    torch.testing.assert_close(state["memory"][0, 0].T @ unit(key), value, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_negative_eigenvalues_double_the_strength():
    for module in (delta_net, gated_delta_net):
        plain, negative = (build(module.Config(heads=2, negative_eigenvalues=negative)) for negative in (False, True))
        x = tokens(2, 3, WIDTH)
        assert torch.equal(negative.beta(x), 2 * plain.beta(x)) and float(plain.beta(x).max()) < 1


@EVERY
def test_the_defining_flops(module):
    """A token meets every matrix once; a delta rule has three products a head, plain writes have two."""
    config = module.Config(heads=2, expand_k=1, expand_v=1, conv=None, gate=False)
    mixer, products = build(config), 2 if module in (retnet, gla) else 3
    matrices = sum(p.numel() for name, p in mixer.named_parameters() if p.dim() > 1 and "_enc" not in name)
    assert mixer.cost(7).step_flops == 2 * matrices + products * 2 * 2 * 8 * 8
    if module is not prefix_delta:
        assert mixer.cost(7).flops == 7 * mixer.cost(7).step_flops


@torch.no_grad()
def test_positions_turn_retention_alone():
    """The same token twice: q and k of a rotary head differ by their angle."""
    x, layout = tokens(1, 1, WIDTH).expand(1, 2, WIDTH), Layout.dense(1, 2)
    for fraction, turns in ((1.0, True), (0.0, False)):
        mixer = build(retnet.Config(heads=2, rotary_fraction=fraction))
        q, k, _ = mixer._split(mixer._inputs(x))
        q, k = mixer.placed(q, k, layout)
        assert torch.allclose(q[:, 0], q[:, 1]) != turns and torch.allclose(k[:, 0], k[:, 1]) != turns
