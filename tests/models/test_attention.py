"""Shared heads of k and v, and what mode cross and biases change; the laws are in tests/contracts."""

import pytest
import torch
from pydantic import ValidationError

from kernels.layout import Layout
from models import registry
from models.mixers import attention

WIDTH = 16


def build(**settings):
    return registry.build(attention.Config(**settings), WIDTH, seed=0).double().eval()


def tokens(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@torch.no_grad()
@pytest.mark.parametrize("mode", ["causal", "non_causal", "cross"])
def test_shared_heads_are_repeated_heads(mode):
    """Query head h reads k and v of head h // (heads / kv_heads): the ungrouped mixer with those rows repeated."""
    few = build(heads=4, kv_heads=2, rotary_fraction=0.5, bias=True, mode=mode)
    many = build(heads=4, rotary_fraction=0.5, bias=True, mode=mode)
    for name, value in few.state_dict().items():
        if not name.startswith("out_proj"):
            value = value + 0.1                              # biases too
        if name.startswith("Wqkv"):
            q, kv = value.split((WIDTH, WIDTH))
        elif name.startswith("Wkv"):
            q, kv = value[:0], value
        else:
            few.state_dict()[name].copy_(value)
            many.state_dict()[name].copy_(value)
            continue
        few.state_dict()[name].copy_(value)
        repeated = kv.unflatten(0, (2, 2, 4)).repeat_interleave(2, 1).flatten(0, 2)
        many.state_dict()[name].copy_(torch.cat((q, repeated)))
    x, layout = tokens(2, 9, WIDTH), Layout.left_padded([9, 4])
    if mode == "cross":
        got, expected = (mixer.read(x, layout, mixer.encode(x.flip(1), layout)) for mixer in (few, many))
    else:
        got, expected = (mixer(x, layout) for mixer in (few, many))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_shared_heads_shrink_parameters_and_cache():
    mixer = build(heads=4, kv_heads=1)
    assert mixer.Wqkv.weight.shape == (16 + 2 * 4, 16)
    _, state = mixer.prefill(tokens(3, 7, WIDTH), Layout.dense(3, 7))
    assert state["k"].shape == state["v"].shape == (3, 7, 1, 4)
    assert state.nbytes == 3 * (2 * 7 * 4 * 8 + 8)
    assert mixer.cost(7).flops < build(heads=4).cost(7).flops


def test_as_many_shared_heads_as_heads_is_plain_attention():
    x, layout = tokens(2, 7, WIDTH), Layout.dense(2, 7)
    plain, grouped = build(heads=4), build(heads=4, kv_heads=4)
    assert plain.state_dict().keys() == grouped.state_dict().keys() == {"Wqkv.weight", "out_proj.weight"}
    assert torch.equal(plain(x, layout), grouped(x, layout))


def test_shared_heads_must_divide_heads():
    with pytest.raises(ValidationError, match="kv_heads 3 must divide heads 4"):
        attention.Config(heads=4, kv_heads=3)


def test_cross_turns_nothing_unless_asked():
    assert attention.Config(mode="cross").rotary_fraction == 0 and attention.Config().rotary_fraction == 1
    asked = attention.Config(mode="cross", rotary_fraction=0.5)
    assert attention.Config.model_validate(asked.model_dump()) == asked
    mixer = registry.build(attention.Config(mode="cross"), WIDTH, seed=0)
    assert mixer.rotary_width == 0 and {"Wq.weight", "Wkv.weight", "out_proj.weight"} == mixer.state_dict().keys()


@torch.no_grad()
def test_a_turned_context_knows_its_order():
    """The same context tokens in another order: only a mixer with positions can tell."""
    context, x = tokens(1, 6, WIDTH), tokens(1, 3, WIDTH, seed=1)
    for fraction, differs in ((0.0, False), (1.0, True)):
        mixer = build(heads=2, mode="cross", rotary_fraction=fraction)
        one, two = (mixer.read(x, Layout.dense(1, 3), mixer.encode(c, Layout.dense(1, 6))) for c in (context, context.flip(1)))
        assert ((one - two).abs().max() > 1e-6) == differs


def test_a_bias_on_every_projection():
    assert {name for name in build(bias=True).state_dict()} == {
        "Wqkv.weight", "Wqkv.bias", "out_proj.weight", "out_proj.bias"}


def test_costs_of_the_other_modes():
    """Width 16: projections 4·2·16², a pair 4·16; non-causal n² pairs, cross n targets times n context tokens."""
    whole, cross = build(mode="non_causal"), build(mode="cross")
    assert whole.cost(10).flops == cross.cost(10).flops == 10 * 2048 + 100 * 64
    assert whole.cost(10).state_bytes == 0
    assert whole.cost(11).flops - whole.cost(10).flops == whole.cost(10).step_flops
    assert cross.cost(10).step_flops == 1024 + 10 * 64
    memory = cross.encode(tokens(2, 10, WIDTH), Layout.dense(2, 10))
    assert memory.nbytes == 2 * cross.cost(10, torch.float64).state_bytes


@torch.no_grad()
def test_a_long_extension_reads_the_cache_in_slices(monkeypatch):
    mixer, x, seen = build(heads=4, kv_heads=2), tokens(2, 17, WIDTH), []
    whole = mixer(x, Layout.dense(2, 17))
    attend = attention.F.scaled_dot_product_attention

    def watched(q, k, v, attn_mask=None, **settings):
        if attn_mask is not None:
            seen.append(attn_mask.shape[2])
        return attend(q, k, v, attn_mask=attn_mask, **settings)

    monkeypatch.setattr(attention, "SLICE", 4)
    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", watched)
    _, state = mixer.prefill(x[:, :7], Layout.dense(2, 7))
    y, _ = mixer.extend(x[:, 7:], Layout.dense(2, 10), state)
    torch.testing.assert_close(y, whole[:, 7:])
    assert seen == [4, 4, 2]
