"""The trunk's laws on a toy mixer in float64: padding, packing, causality, splits, initialisation, refusals."""

import pytest
import torch

from kernels.errors import LayoutError, LengthError, StateError
from models import LanguageModel, Layout, ModelConfig
from models.initialise import seeded

pytestmark = pytest.mark.usefixtures("toy_kind")
TIGHT = 1e-12


def config(**changes) -> ModelConfig:
    return ModelConfig.model_validate(dict(width=8, vocabulary=19, mixers={"toy": {"kind": "toy_mixer"}},
                                           plan=["toy*3"], mlp=12, init_std=0.3, seed=4) | changes)


def model_of(**changes) -> LanguageModel:
    model = LanguageModel(config(**changes)).double()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, generator=seeded("bias", name))
    return model


def tokens(*lengths: int) -> list[torch.Tensor]:
    return [torch.randint(0, 19, (n,), generator=seeded("ids", row)) for row, n in enumerate(lengths)]


def close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return got.shape == expected.shape and bool((got - expected).abs().max() < TIGHT)


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal"])
@pytest.mark.parametrize("side", ["left", "right", "interior"])
def test_padding_is_as_if_removed(side, positions):
    model = model_of(positions=positions, max_length=9)
    rows = tokens(9, 5, 1)
    mask = torch.zeros(3, 11, dtype=torch.bool)
    for b, row in enumerate(rows):
        slots = {"left": range(11 - len(row), 11), "right": range(len(row)),
                 "interior": torch.randperm(11, generator=seeded(b))[:len(row)].sort().values.tolist()}[side]
        mask[b, list(slots)] = True
    ids = torch.full((3, 11), -7)
    for b, row in enumerate(rows):
        ids[b, mask[b]] = row
    layout = Layout.from_mask(mask).with_prefix(3)
    logits = model(ids, layout)
    assert torch.equal(logits[~mask], torch.zeros_like(logits[~mask]))
    last, state = model.prefill(ids, layout)
    for b, row in enumerate(rows):
        alone = model(row[None], Layout.dense(1, len(row)).with_prefix(3))[0]
        assert close(logits[b, mask[b]], alone)
        assert close(last[b], alone[-1])
    assert state.count_B.tolist() == [9, 5, 1]


def test_packed_rows_are_documents_alone_in_value_and_gradient():
    model = model_of()
    documents = tokens(4, 1, 6, 3)
    ids = torch.stack([torch.cat([documents[0], documents[1], documents[2]]),
                       torch.cat([documents[3], torch.full((8,), 5)])])
    layout = Layout.packed([[4, 1, 6], [3]], 11).with_prefix([[2, 1, 0], [9]])
    logits = model(ids, layout)
    weights = torch.randn(11, 24, generator=seeded(9), dtype=torch.float64)
    (logits[0] * weights).sum().backward()
    packed = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    start = 0
    for document, m in zip(documents[:3], (2, 1, 0)):
        alone = model(document[None], Layout.dense(1, len(document)).with_prefix(m))[0]
        assert close(logits[0, start:start + len(document)], alone)
        (alone * weights[start:start + len(document)]).sum().backward()
        start += len(document)
    assert close(logits[1, :3], model(documents[3][None], Layout.dense(1, 3).with_prefix(3))[0])
    for name, parameter in model.named_parameters():
        assert (parameter.grad - packed[name]).abs().max() < 1e-11, name


def test_the_future_cannot_be_seen_and_the_past_can():
    model = model_of()
    ids = tokens(9)[0][None]
    layout = Layout.dense(1, 9).with_prefix(3)
    logits = model(ids, layout)
    changed = ids.clone()
    changed[0, 5:] = (changed[0, 5:] + 7) % 19
    assert close(model(changed, layout)[0, :5], logits[0, :5])
    changed = ids.clone()
    changed[0, 2] = (changed[0, 2] + 7) % 19
    assert (model(changed, layout)[0] - logits[0]).abs().amax(-1).min() > 1e-4


@pytest.mark.parametrize("m", [0, 3, 9])
@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal"])
def test_prefill_extend_step_are_the_forward_cut_in_pieces(m, positions):
    model = model_of(positions=positions, max_length=9)
    ids = torch.stack(tokens(9, 9, 9))
    whole = model(ids, Layout.dense(3, 9).with_prefix(m))
    first, second = [max(m, 1), max(m, 4), 9], [2, 0, 0]
    second[0] = min(2, 9 - first[0])
    logits, state = model.prefill(ids, Layout.dense(3, 9).with_prefix(m).cut(first), all_logits=True)
    for b, n in enumerate(first):
        assert close(logits[b, :n], whole[b, :n])
    more = torch.stack([torch.cat([ids[b, n:n + 2], torch.full((2 - len(ids[b, n:n + 2]),), 3)])
                        for b, n in enumerate(first)])
    logits, state = model.extend(more, Layout.right_padded(second, 2), state)
    done = [a + b for a, b in zip(first, second)]
    for b in range(3):
        assert close(logits[b], whole[b, done[b] - 1] if second[b] else torch.zeros_like(logits[b]))
    active = [b for b in range(3) if done[b] < 9]
    state = state.select(active)
    while active:
        logits, state = model.step(ids[active, [done[b] for b in active]], state)
        for i, b in enumerate(active):
            assert close(logits[i], whole[b, done[b]])
            done[b] += 1
        keep = [i for i, b in enumerate(active) if done[b] < 9]
        active, state = [active[i] for i in keep], state.select(keep)


def test_state_select_cat_clone_and_round_trip():
    model = model_of()
    ids = torch.stack(tokens(5, 5, 5))
    _, state = model.prefill(ids, Layout.right_padded([5, 3, 1], 5).with_prefix(2))
    twice = state.select([2, 0, 0])
    joined = type(state).cat([twice, state.clone()])
    rebuilt = state.clone().with_tensors({name: t.clone() for name, t in state.tensors().items()})
    logits, _ = model.step(torch.tensor([1, 2, 3]), state)
    assert close(model.step(torch.tensor([3, 1, 1]), twice)[0], logits[[2, 0, 0]])
    assert close(model.step(torch.tensor([3, 1, 1, 1, 2, 3]), joined)[0], logits[[2, 0, 0, 0, 1, 2]])
    assert torch.equal(model.step(torch.tensor([1, 2, 3]), rebuilt)[0], logits)
    with pytest.raises(StateError, match="already advanced"):
        model.step(torch.tensor([1, 2, 3]), state)
    for use in ("clone", "detach", "tensors"):
        with pytest.raises(StateError, match="already advanced"):
            getattr(state, use)()


def test_refusals_come_before_arithmetic():
    model = model_of(positions="learned", max_length=6)
    ids = torch.stack(tokens(5, 5))
    _, state = model.prefill(ids, Layout.dense(2, 5))
    with pytest.raises(LayoutError, match="packed rows"):
        model.prefill(ids, Layout.packed([[2, 3], [5]], 5))
    with pytest.raises(LayoutError, match="row 1: got 0 tokens"):
        model.prefill(ids, Layout.right_padded([2, 0], 5))
    with pytest.raises(LayoutError, match="prefix"):
        model.extend(ids, Layout.dense(2, 5).with_prefix(1), state)
    with pytest.raises(LengthError, match="10 tokens"):
        model.extend(ids, Layout.dense(2, 5), state)
    with pytest.raises(LayoutError, match=r"shape: got \(2, 5\)"):
        model(ids, Layout.dense(2, 4))
    with pytest.raises(LayoutError, match="device"):
        model(ids, Layout.dense(2, 5).to("meta"))
    with pytest.raises(StateError, match="2 rows"):
        model.step(ids[:1, 0], state)
    with pytest.raises(StateError, match="float64"):
        model_of().float().step(ids[:, 0], state)
    assert not state.spent


def test_the_seed_alone_decides_the_weights_and_the_global_generator_stays():
    before = torch.get_rng_state()
    first, second, other = LanguageModel(config()), LanguageModel(config()), LanguageModel(config(seed=5))
    first(tokens(4)[0][None], Layout.dense(1, 4))
    assert torch.equal(before, torch.get_rng_state())
    for (name, a), b, c in zip(first.named_parameters(), second.parameters(), other.parameters()):
        assert torch.equal(a, b), name
        assert a.ndim < 2 or not torch.equal(a, c), name


def test_initial_deviations_and_parameter_roles():
    model = LanguageModel(config(width=96, mlp=96, init_std=0.05, tie=False))
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            assert parameter.eq(0 if name.endswith("bias") else 1).all(), name
            continue
        if name.endswith("scale"):          # the mixer's keep_init: U(-2, 2) as it drew it
            assert 1.5 < parameter.abs().max() < 2
            continue
        wanted = 0.05 / 6 ** 0.5 if name.endswith(("out_proj.weight", "fc2.weight")) else 0.05
        assert abs(parameter.std().item() / wanted - 1) < 0.06, name
    assert "blocks.0.mixer.in_proj.weight" in model.matrices() and "blocks.2.mlp.fc2.weight" in model.matrices()
    assert not {"embedding.weight", "head_proj.weight", "blocks.0.norm1.weight", "blocks.0.mixer.scale"} & model.matrices()
    assert model.lr_scale() == {f"blocks.{layer}.mixer.scale": 0.5 for layer in range(3)}
    assert {"embedding.weight", "blocks.0.norm1.weight", "blocks.0.mixer.in_proj.bias"} <= model.no_decay()
    assert not model.no_decay() & model.matrices()


def test_meta_device_counts_without_memory():
    with torch.device("meta"):
        model = LanguageModel(config())
    assert model.embedding.weight.is_meta
    cost = model.cost(7)
    assert cost.parameters == sum(p.numel() for p in LanguageModel(config()).parameters())
    assert cost.flops == 7 * cost.step_flops and cost.state_bytes == 3 * (8 * 4 + 16)


def test_bfloat16_stays_near_float64_and_keeps_a_wide_residual():
    wide = model_of()
    narrow = model_of().bfloat16()
    ids = torch.stack(tokens(9, 9))
    expected, got = wide(ids, Layout.dense(2, 9)), narrow(ids, Layout.dense(2, 9))
    assert got.dtype == torch.bfloat16
    assert (got.double() - expected).norm() / expected.norm() < 3e-2
    logits, state = narrow.prefill(ids, Layout.dense(2, 9))
    assert state.layers[0]["sum"].dtype == torch.float32
    seen = []
    narrow.norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].dtype))
    narrow(ids, Layout.dense(2, 9))
    assert seen == [torch.float32]
    narrow.step(ids[:, 0], state)


def test_empty_batches_and_rows():
    model = model_of()
    assert model(torch.zeros(0, 4, dtype=torch.int64), Layout.dense(0, 4)).shape == (0, 4, 24)
    assert model(torch.zeros(2, 0, dtype=torch.int64), Layout.dense(2, 0)).shape == (2, 0, 24)
    _, state = model.prefill(torch.stack(tokens(3, 3)), Layout.dense(2, 3))
    kept = state.clone()
    logits, state = model.extend(torch.full((2, 4), 99), Layout.right_padded([0, 0], 4), state)
    assert not logits.any() and all(torch.equal(t, kept.tensors()[name]) for name, t in state.tensors().items())
    _, state = model.step(torch.zeros(0, dtype=torch.int64), state.select([]))
    assert state.rows == 0
