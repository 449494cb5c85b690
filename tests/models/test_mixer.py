"""The base class alone, on a toy mixer: whatever stands at pads, wherever they are, it is as if they were removed."""

import math

import pytest
import torch

from kernels.errors import LayoutError, StateError
from models import Layout, registry
from models.initialise import seeded

D = 4


@pytest.fixture
def mixer(toy_kind):
    made = registry.build(registry.config_class(toy_kind)(), D, seed=3).double()
    for name, parameter in made.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, generator=seeded(name))
    return made


def rows(*lengths: int) -> list[torch.Tensor]:
    return [torch.randn(n, D, generator=seeded("x", n), dtype=torch.float64) for n in lengths]


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("side", ["left", "right", "interior"])
def test_pads_are_as_if_removed(mixer, side, poison):
    documents = rows(5, 0, 7)
    mask = {"left": Layout.left_padded([5, 0, 7], 8).real_BL, "right": Layout.right_padded([5, 0, 7], 8).real_BL,
            "interior": torch.tensor([[0, 1, 1, 0, 1, 0, 1, 1], [0] * 8, [1, 0, 1, 1, 1, 1, 1, 1]]).bool()}[side]
    x_BLD = torch.full((3, 8, D), poison, dtype=torch.float64)
    x_BLD[mask] = torch.cat(documents)
    x_BLD.requires_grad_()
    layout = Layout.from_mask(mask).with_prefix(3)
    y_BLD = mixer(x_BLD, layout)
    y_BLD.sum().backward()
    assert not y_BLD[~mask].any() and not x_BLD.grad[~mask].any() and bool(x_BLD.grad[mask].all())
    gradients = [parameter.grad for parameter in mixer.parameters()]
    mixer.zero_grad()
    sum(mixer(x[None], Layout.dense(1, len(x)).with_prefix(3)).sum() for x in documents).backward()
    for got, parameter in zip(gradients, mixer.parameters()):
        assert torch.allclose(got, parameter.grad, atol=1e-12)
    _, state = mixer.prefill(x_BLD.detach(), layout)
    token = rows(3)[0]
    stepped, _ = mixer.step(token, state)
    for b, document in enumerate(documents):
        alone = Layout.dense(1, len(document)).with_prefix(3)
        assert torch.allclose(y_BLD[b][mask[b]], mixer(document[None], alone)[0], atol=1e-13)
        _, state = mixer.prefill(document[None], alone)
        assert torch.allclose(mixer.step(token[b:b + 1], state)[0][0], stepped[b], atol=1e-13)


def test_packed_rows_with_pads_inside(mixer):
    documents = rows(2, 3, 4)
    mask = torch.tensor([[1, 0, 1, 1, 1, 0, 1], [0, 1, 1, 1, 1, 0, 0]]).bool()
    x_BLD = torch.full((2, 7, D), math.nan, dtype=torch.float64)
    x_BLD[mask] = torch.cat(documents)
    y_BLD = mixer(x_BLD, Layout.from_mask(mask, [[2, 3], [4]]).with_prefix([[1, 2], [0]]))
    expected = [mixer(x[None], Layout.dense(1, len(x)).with_prefix(m))[0] for x, m in zip(documents, (1, 2, 0))]
    assert torch.allclose(y_BLD[mask], torch.cat(expected), atol=1e-13) and not y_BLD[~mask].any()


def test_empty_calls_keep_the_state_bit_for_bit(mixer):
    _, state = mixer.prefill(torch.stack(rows(5, 5)), Layout.dense(2, 5))
    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    y, state = mixer.extend(torch.zeros(2, 0, D, dtype=torch.float64), Layout.dense(2, 0), state)
    assert y.shape == (2, 0, D)
    y, state = mixer.extend(torch.full((2, 3, D), math.nan, dtype=torch.float64), Layout.right_padded([0, 0], 3), state)
    assert not y.any() and all(torch.equal(tensor, before[name]) for name, tensor in state.tensors().items())
    y, empty = mixer.step(torch.zeros(0, D, dtype=torch.float64), state.select([]))
    assert y.shape == (0, D) and empty.rows == 0


def test_state_mistakes(mixer):
    x = torch.stack(rows(5, 5))
    _, state = mixer.prefill(x, Layout.dense(2, 5))
    for bad, text in [(lambda: mixer.step(x[:1, 0], state), "2 rows"),
                      (lambda: mixer.step(x[:, 0].float(), state), "float64"),
                      (lambda: mixer.step(x[:, 0], None), "NoneType"),
                      (lambda: state.select([2]), "0..1"), (lambda: state.select([0.5]), "row numbers"),
                      (lambda: state.select([True, False]), "row numbers"),
                      (lambda: state.with_tensors({"sum": x}), "expected"),
                      (lambda: type(state).cat([]), "at least one"),
                      (lambda: state.advanced(x, nothing=x), "init_state")]:
        with pytest.raises(StateError, match=text):
            bad()
    with pytest.raises(LayoutError, match="width 3"):
        mixer(x[..., :3], Layout.dense(2, 5))
    assert not state.spent
    mixer.step(x[:, 0], state)
    for bad in (lambda: mixer.step(x[:, 0], state), lambda: state.select([0]), lambda: type(state).cat([state])):
        with pytest.raises(StateError, match="clone"):
            bad()


def test_bytes_are_those_of_storages(mixer):
    _, state = mixer.prefill(torch.stack(rows(5, 5)), Layout.dense(2, 5))
    assert state.nbytes == 2 * mixer.cost(5, torch.float64).state_bytes
    assert state.live_bytes(lambda n: mixer.cost(n, torch.float64)) == state.nbytes
    whole = torch.zeros(2, 10, D, dtype=torch.float64)
    view = state.with_tensors({**state.tensors(), "sum": whole[:, 3]})
    assert view.nbytes == whole.nbytes + 16 + 16


def test_cat_fills_caches_of_unequal_capacity(mixer):
    from models.state import State
    def held(B, columns):
        return State("cache", {"k": torch.ones(B, columns, 2)}, torch.full((B,), columns), torch.float32)
    joined = State.cat([held(1, 2), held(2, 3)])
    assert joined["k"].shape == (3, 3, 2) and joined["k"][0, 2].tolist() == [0, 0] and joined["k"][1:].all()
    assert joined.count_B.tolist() == [2, 3, 3]
