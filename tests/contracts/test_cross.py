"""L17, reading a context: L1 to L3, L9, L10, L13 and L16 for every mixer in mode cross, and that targets never mix."""

import pytest
import torch

from kernels.errors import StateError, UnsupportedUse
from kernels.layout import Layout
from models.state import State
from tests.contracts.batches import (
    POISONS,
    SIDES,
    T16,
    alone,
    documents,
    error,
    pack,
    place,
    same_states,
    tolerance,
)
from tests.contracts.cases import WIDTH, build, crossing

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
TARGETS, CONTEXTS = [3, 0, 7, 1, 5], [9, 4, 0, 13, 1]


def gradients(mixer, targets, contexts, weights) -> tuple[list[torch.Tensor], ...]:
    """(y, d targets, d contexts, d parameters) of document s reading context s, by batches of both."""
    mixer.zero_grad(set_to_none=True)
    x_BLD, context_BND = targets.x_BLD.clone().requires_grad_(), contexts.x_BLD.clone().requires_grad_()
    y_BLD = mixer.read(x_BLD, targets.layout, mixer.encode(context_BND, contexts.layout))
    y_BLD.backward(targets.spread(weights, 1.0))
    for batch, tensors in ((targets, (y_BLD, x_BLD.grad)), (contexts, (context_BND.grad,))):
        pads = ~batch.layout.real_BL
        assert not any(tensor[pads].any() for tensor in tensors), "something at a pad"
    return (targets.collect(y_BLD.detach()), targets.collect(x_BLD.grad), contexts.collect(context_BND.grad),
            [p.grad.clone() for p in mixer.parameters() if p.grad is not None])


def by_themselves(mixer, targets, contexts, weights):
    """The same, pair by pair; without tokens on either side there is nothing to add."""
    total = ([], [], [], None)
    for x, context, weight in zip(targets, contexts, weights):
        if not len(x) or not len(context):
            parts = [torch.zeros_like(x)], [torch.zeros_like(x)], [torch.zeros_like(context)], None
        else:
            parts = gradients(mixer, alone(x), alone(context), [weight])
        for own, new in zip(total[:3], parts[:3]):
            own += new
        if parts[3] is not None:
            sums = parts[3] if total[3] is None else [a + b for a, b in zip(total[3], parts[3])]
            total = (*total[:3], sums)
    return total


@DTYPES
@crossing
def test_l1_padding_on_either_side_does_not_exist(case, dtype):
    mixer = build(case, dtype)
    targets, contexts = documents(TARGETS, dtype), documents(CONTEXTS, dtype, seed=1)
    weights = documents(TARGETS, dtype, seed=5)
    expected = by_themselves(mixer, targets, contexts, weights)
    for side, other, poison in zip(SIDES, SIDES[1:] + SIDES[:1], POISONS.values()):
        got = gradients(mixer, place(targets, side, poison), place(contexts, other, poison), weights)
        for ours, theirs in zip(got, expected):
            assert error(ours, theirs) <= tolerance(dtype, case), (side, other)


@crossing
def test_l2_packed_documents_read_their_own_context(case):
    mixer = build(case)
    targets, contexts = documents([5, 1, 9, 13]), documents([4, 7, 2, 11], seed=1)
    weights = documents([5, 1, 9, 13], seed=5)
    expected = by_themselves(mixer, targets, contexts, weights)
    for interior in (False, True):
        got = gradients(mixer, pack([targets[:3], targets[3:]], [0] * 4, interior, POISONS["nan"]),
                        pack([contexts[:1], contexts[1:]], [0] * 4, interior, POISONS["inf"]), weights)
        for ours, theirs in zip(got, expected):
            assert error(ours, theirs) <= tolerance(torch.float64, case), interior


@crossing
@torch.no_grad()
def test_l3_a_pair_does_not_see_its_batch(case):
    mixer = build(case)
    targets, contexts = documents([5, 3]), documents([9, 4], seed=1)
    loud = documents([7, 11], seed=2, scale=100.0)
    y = [mixer.read(x[None], alone(x).layout, mixer.encode(c[None], alone(c).layout))[0]
         for x, c in zip(targets, contexts)]
    together = place([loud[0], targets[1], targets[0]], "left")
    memory = mixer.encode((batch := place([loud[1], contexts[1], contexts[0]], "right")).x_BLD, batch.layout)
    got = together.collect(mixer.read(together.x_BLD, together.layout, memory))
    assert error([got[2], got[1]], y) <= tolerance(torch.float64, case)


@crossing
def test_l17_targets_never_mix(case):
    """The gradient of one output with respect to any other target is exactly 0."""
    mixer = build(case)
    x_LD, context = documents([6])[0].requires_grad_(), documents([9], seed=1)[0]
    y_LD = mixer.read(x_LD[None], alone(x_LD).layout, mixer.encode(context[None], alone(context).layout))[0]
    for i in range(6):
        (gradient,) = torch.autograd.grad(y_LD[i].sum(), x_LD, retain_graph=True)
        assert gradient[i].any() and not gradient[[j for j in range(6) if j != i]].any(), i


@crossing
@torch.no_grad()
def test_l17_every_context_token_matters(case):
    mixer = build(case)
    x, context = documents([4])[0], documents([9], seed=1)[0]
    expected = mixer.read(x[None], alone(x).layout, mixer.encode(context[None], alone(context).layout))
    for j, token in enumerate(documents([9], seed=7)[0]):
        changed = context.clone()
        changed[j] = token
        memory = mixer.encode(changed[None], alone(changed).layout)
        assert (mixer.read(x[None], alone(x).layout, memory) - expected).abs().max() > 1e-9, j


@crossing
@torch.no_grad()
def test_l9_a_memory_is_a_state(case):
    """Rows chosen with repeats, rows joined, a copy, a round trip through tensors; and reading uses nothing up."""
    mixer = build(case)
    contexts, x = documents([9, 4, 2], seed=1), documents([5] * 4)
    batch = place(contexts, "left")
    memory = mixer.encode(batch.x_BLD, batch.layout)
    assert memory.count_B.tolist() == [9, 4, 2]
    before = memory.clone()
    rows = torch.tensor([2, 0, 0, 1])
    targets = place(x, "right")
    got = targets.collect(mixer.read(targets.x_BLD, targets.layout, memory.select(rows)))
    expected = [mixer.read(x[i][None], alone(x[i]).layout, mixer.encode(contexts[r][None], alone(contexts[r]).layout))[0]
                for i, r in enumerate(rows.tolist())]
    assert error(got, expected) <= tolerance(torch.float64, case)
    assert same_states(memory, before)
    joined = State.cat([mixer.encode(contexts[r][None], alone(contexts[r]).layout) for r in rows.tolist()])
    for memory in (joined, joined.clone(), joined):
        got = targets.collect(mixer.read(targets.x_BLD, targets.layout, memory))
        assert error(got, expected) <= tolerance(torch.float64, case)


@crossing
@torch.no_grad()
def test_l10_declared_bytes_are_held(case):
    mixer = build(case, torch.float32)
    held = {}
    for n in (64, 257, 1024):
        if case.abilities.max_length is None or n <= case.abilities.max_length:
            (context,) = documents([n], torch.float32)
            held[n] = mixer.encode(context[None], alone(context).layout).nbytes
            assert held[n] == mixer.cost(n, torch.float32).state_bytes, n
    assert (len(set(held.values())) == 1) == (case.abilities.growth == "constant"), held


@crossing
@torch.no_grad()
def test_l13_nothing_to_read(case):
    """No context gives exactly 0, whatever stands in the slots; no rows and no slots give their shape."""
    mixer = build(case)
    x = documents([3, 2])
    batch = place(x, "left", POISONS["nan"])
    for slots in (0, 5):
        nothing = torch.full((2, slots, WIDTH), float("nan"), dtype=torch.float64)
        memory = mixer.encode(nothing, Layout.right_padded([0, 0], slots))
        y_BLD = mixer.read(batch.x_BLD, batch.layout, memory)
        assert torch.equal(y_BLD, torch.zeros_like(y_BLD))
    for B, L in ((0, 4), (2, 0)):
        empty = torch.zeros(B, L, WIDTH, dtype=torch.float64)
        memory = mixer.encode(empty, Layout.dense(B, L))
        assert mixer.read(empty, Layout.dense(B, L), memory).shape == (B, L, WIDTH)


@crossing
@torch.no_grad()
def test_l14_large_inputs_and_bfloat16(case):
    for scale in (1e3, 0.0):
        mixer = build(case, torch.float32)
        x, context = documents([7], torch.float32, scale=scale)[0], documents([33], torch.float32, seed=1, scale=scale)[0]
        memory = mixer.encode(context[None], alone(context).layout)
        assert mixer.read(x[None], alone(x).layout, memory).isfinite().all(), scale
    mixer, x, context = build(case, torch.bfloat16), documents([40])[0].bfloat16(), documents([90], seed=1)[0].bfloat16()
    reference = build(case)
    reference.load_state_dict({k: v.double() if v.is_floating_point() else v for k, v in mixer.state_dict().items()})
    y, expected = (m.read(q[None], alone(q).layout, m.encode(c[None], alone(c).layout))
                   for m, q, c in ((mixer, x, context), (reference, x.double(), context.double())))
    assert y.dtype == torch.bfloat16
    assert (y.double() - expected).norm() / expected.norm() <= T16


@crossing
def test_l16_what_a_reader_cannot_do(case):
    mixer = build(case)
    x_BLD, layout = torch.zeros(2, 3, WIDTH, dtype=torch.float64), Layout.dense(2, 3)
    with pytest.raises(UnsupportedUse, match=f"{case.kind}.*encode and read"):
        mixer(x_BLD, layout)
    memory = mixer.encode(x_BLD, layout)
    with pytest.raises(StateError, match="2 rows"):
        mixer.read(x_BLD[:1], Layout.dense(1, 3), memory)
    with pytest.raises(StateError, match="2 rows"):
        mixer.read(x_BLD[:1], Layout.packed([[1, 1, 1]], 3), memory)
    with pytest.raises(StateError, match="float64"):
        mixer.read(x_BLD.float(), layout, memory)
    with pytest.raises(StateError, match=case.kind):
        mixer.read(x_BLD, layout, None)
