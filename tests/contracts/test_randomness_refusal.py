"""L15 randomness, L16 refusal, and discovery (§7)."""

import copy

import pytest
import torch

from kernels.errors import LayoutError, LengthError, UnsupportedUse
from kernels.layout import Layout
from models import registry
from tests.contracts.batches import alone, documents, pack, place
from tests.contracts.cases import WIDTH, all_cases, build, every, select, streaming, whatever

refuses_streams = select(streaming=False)
refuses_cross = select(cross=False)


def fresh(case, seed: int) -> torch.nn.Module:
    mixer = registry.mixer_class(case.kind)(case.config, WIDTH, 1)
    mixer.reset_parameters(torch.Generator().manual_seed(seed))
    return mixer.eval()


@whatever
def test_l15_a_seed_is_a_mixer(case):
    a, b, other = fresh(case, 0), fresh(case, 0), fresh(case, 1)
    assert a.state_dict().keys() == b.state_dict().keys()
    assert all(torch.equal(value, b.state_dict()[name]) for name, value in a.state_dict().items())
    assert any(not torch.equal(value, other.state_dict()[name]) for name, value in a.state_dict().items())


@every
@torch.no_grad()
def test_l15_saved_and_loaded_is_the_same(case):
    a, b = fresh(case, 0), fresh(case, 1)
    batch = place(documents([9, 4], torch.float32), "left", 0.0, case.prefixes[-1])
    expected = a.forward(batch.x_BLD, batch.layout)
    assert torch.equal(a.forward(batch.x_BLD, batch.layout), expected)
    assert not torch.equal(b.forward(batch.x_BLD, batch.layout), expected)
    b.load_state_dict(copy.deepcopy(a.state_dict()))
    assert torch.equal(b.forward(batch.x_BLD, batch.layout), expected)


@every
@torch.no_grad()
def test_l15_the_global_generator_is_left_alone(case):
    fresh(case, 0)  # whatever is drawn once per process
    torch.manual_seed(11)
    before = torch.get_rng_state()
    mixer = fresh(case, 0)
    batch = alone(documents([9], torch.float32)[0])
    mixer.forward(batch.x_BLD, batch.layout)
    if case.abilities.streaming:
        _, state = mixer.prefill(batch.x_BLD, batch.layout)
        mixer.step(batch.x_BLD[:, 0], state)
    assert torch.equal(torch.get_rng_state(), before)


@whatever
def test_mixers_are_built_on_the_meta_device(case):
    with torch.device("meta"):
        mixer = registry.mixer_class(case.kind)(case.config, WIDTH, 0)
    assert all(p.is_meta for p in mixer.parameters())
    assert mixer.cost(64, torch.float32).parameters == sum(p.numel() for p in mixer.parameters())


def test_named_parameters_exist():
    """Every name in keep_init, no_decay and lr_scale is a parameter in some case of its kind."""
    names: dict[str, set[str]] = {}
    for case in all_cases():
        names.setdefault(case.kind, set()).update(name for name, _ in fresh(case, 0).named_parameters())
    for kind, known in names.items():
        mixer = registry.mixer_class(kind)
        assert {*mixer.keep_init, *mixer.no_decay, *mixer.lr_scale} <= known, kind


@whatever
def test_meta_mixers_come_to_life(case):
    """to_empty and reset_parameters give what a mixer built on the CPU has: no weight stays undrawn."""
    with torch.device("meta"):
        mixer = registry.mixer_class(case.kind)(case.config, WIDTH, 1)
    mixer = mixer.to_empty(device="cpu").eval()
    mixer.reset_parameters(torch.Generator().manual_seed(0))
    expected = fresh(case, 0).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in mixer.state_dict().items())


@refuses_cross
def test_l16_no_cross_use(case):
    mixer = build(case)
    batch = alone(documents([5])[0])
    for use in (
        lambda: mixer.encode(batch.x_BLD, batch.layout),
        lambda: mixer.read(batch.x_BLD, batch.layout, None),
    ):
        with pytest.raises(UnsupportedUse, match=case.kind) as refusal:
            use()
        assert "cross" in str(refusal.value)
        assert len(str(refusal.value)) > 40, "a refusal names a remedy"


@refuses_streams
def test_l16_no_streaming_use(case):
    mixer = build(case)
    batch = alone(documents([5])[0])
    for use in (
        lambda: mixer.prefill(batch.x_BLD, batch.layout),
        lambda: mixer.extend(batch.x_BLD, batch.layout, None),
        lambda: mixer.step(batch.x_BLD[:, 0], None),
        lambda: mixer.init_state(1, torch.float64, torch.device("cpu")),
    ):
        with pytest.raises(UnsupportedUse, match=case.kind) as refusal:
            use()
        assert len(str(refusal.value)) > 40


@every
@torch.no_grad()
def test_l16_never_longer_than_the_longest(case):
    limit = case.abilities.max_length
    if limit is None:
        return
    mixer = build(case)
    (doc,) = documents([limit + 1])
    with pytest.raises(LengthError):
        mixer.forward(doc[None], Layout.dense(1, limit + 1))
    if case.abilities.streaming:
        _, state = mixer.prefill(doc[None, :limit], Layout.dense(1, limit))
        with pytest.raises(LengthError):
            mixer.step(doc[None, limit], state)


@streaming
def test_packed_rows_do_not_stream(case):
    mixer = build(case)
    batch = pack([documents([3, 2])], [0, 0])
    with pytest.raises(LayoutError):
        mixer.prefill(batch.x_BLD, batch.layout)
    _, state = mixer.prefill(torch.zeros(1, 2, WIDTH, dtype=torch.float64), Layout.dense(1, 2))
    with pytest.raises(LayoutError):
        mixer.extend(batch.x_BLD, batch.layout, state)


@every
def test_shapes_must_agree(case):
    mixer = build(case)
    with pytest.raises(LayoutError):
        mixer.forward(torch.zeros(2, 5, WIDTH, dtype=torch.float64), Layout.dense(2, 6))
