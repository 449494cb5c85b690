"""L12 gradient, L13 edges, L14 numerics."""

import pytest
import torch

from kernels.layout import Layout
from tests.contracts.batches import (
    POISONS,
    SIDES,
    T16,
    T64,
    alone,
    compare_states,
    cotangents,
    dense,
    documents,
    error,
    place,
    run,
    run_alone,
    sizes,
    tolerance,
)
from tests.contracts.cases import WIDTH, all_cases, build, every, select, streaming

constant = select(streaming=True, growth="constant")


@every
def test_l12_gradients_are_derivatives(case):
    """Central differences in float64, input and parameters, on ragged rows with a prefix."""
    mixer = build(case)
    docs = documents([5, 2])
    batch = place(docs, "left", 0.0, 3 if case.abilities.prefix else 0, spare=1)
    names = [name for name, p in mixer.named_parameters() if p.requires_grad]

    def forward(x_BLD, *values):
        return torch.func.functional_call(mixer, dict(zip(names, values)), (x_BLD, batch.layout))

    values = [dict(mixer.named_parameters())[name].detach().clone().requires_grad_() for name in names]
    x_BLD = batch.x_BLD.clone().requires_grad_()
    torch.autograd.gradcheck(forward, (x_BLD, *values), fast_mode=True, atol=1e-6, rtol=1e-4)


@streaming
def test_l13_no_rows_and_no_tokens(case):
    mixer = build(case)
    for B, L in ((0, 5), (2, 0), (0, 0)):
        x_BLD = torch.zeros(B, L, WIDTH, dtype=torch.float64, requires_grad=True)
        assert mixer.forward(x_BLD, Layout.dense(B, L)).shape == (B, L, WIDTH)
        y_BLD, state = mixer.prefill(x_BLD, Layout.dense(B, L))
        assert y_BLD.shape == (B, L, WIDTH)
        assert state.count_B.tolist() == [L] * B
        more_BLD, state = mixer.extend(x_BLD, Layout.dense(B, L), state)
        assert more_BLD.shape == (B, L, WIDTH)
        y_BD, state = mixer.step(torch.ones(B, WIDTH, dtype=torch.float64), state)
        assert y_BD.shape == (B, WIDTH) and y_BD.isfinite().all()
    assert mixer.forward(torch.zeros(2, 0, WIDTH, dtype=torch.float64), Layout.right_padded([0, 0], 0)).shape == (2, 0, WIDTH)


@every
def test_l13_short_rows(case):
    """Lengths below the window and the chunk, one token, and rows of pads only, in one batch and alone."""
    mixer = build(case)
    for lengths in ([0, 0], [1], [0, 1, 0], [1, case.window - 1, case.chunk - 1, 0]):
        for M in case.prefixes:
            for side in SIDES:
                batch = place(documents(lengths), side, POISONS["nan"], M, spare=2)
                got = run(mixer, batch, cotangents(documents(lengths)))
                assert got.y_BLD.shape == batch.x_BLD.shape
                assert got.y_BLD.isfinite().all() and got.dx_BLD.isfinite().all()
                assert all(gradient.isfinite().all() for gradient in got.parameters.values())


@every
def test_l14_large_inputs_stay_finite(case):
    for scale in (1e3, 1e-3, 0.0):
        mixer = build(case, torch.float32)
        docs = documents([33, 7], torch.float32, scale=scale)
        got = run(mixer, place(docs, "left", POISONS["huge"], case.prefixes[-1]), cotangents(docs))
        assert got.y_BLD.isfinite().all(), scale
        assert got.dx_BLD.isfinite().all(), scale
        assert all(gradient.isfinite().all() for gradient in got.parameters.values()), scale


@streaming
@torch.no_grad()
def test_l14_large_inputs_equal_the_recurrence(case):
    mixer = build(case)
    for scale in (1e3, 1.0, 1e-3):
        (doc,) = documents([40], scale=scale)
        one = alone(doc)
        parallel = mixer.forward(one.x_BLD, one.layout)[0]
        state, steps = mixer.init_state(1, torch.float64, torch.device("cpu")), []
        for x_D in doc:
            y_BD, state = mixer.step(x_D[None], state)
            steps.append(y_BD)
        assert error([parallel], [torch.cat(steps)]) <= 10 * T64, scale


@every
def test_l14_bfloat16_stays_near_float64(case):
    docs = documents([7, 40, 130])
    g = cotangents(docs)
    M = 20 if case.abilities.prefix else 0
    mixer = build(case, torch.bfloat16)
    # the same rounded weights and inputs, so that only the arithmetic differs
    reference = build(case)
    reference.load_state_dict({k: v.double() if v.is_floating_point() else v for k, v in mixer.state_dict().items()})
    half = [doc.bfloat16() for doc in docs]
    batch = place(half, "left", POISONS["nan"], M)
    got = run(mixer, batch, [c.bfloat16() for c in g])
    assert got.y_BLD.dtype == torch.bfloat16
    expected = run_alone(reference, [doc.double() for doc in half], [M] * 3, [c.bfloat16().double() for c in g])
    for ours, theirs in ((got.y, expected.y), (got.dx, expected.dx)):
        a, b = (torch.cat([t.double().flatten() for t in tensors]) for tensors in (ours, theirs))
        assert (a - b).norm() / b.norm() <= T16


@every
def test_l14_autocast(case):
    """float32 weights under bfloat16 autocast, as in training: near float64, sums still in float32."""
    docs = documents([7, 90])
    g = cotangents(docs)
    M = 20 if case.abilities.prefix else 0
    expected = run_alone(build(case), docs, [M] * 2, g)
    mixer = build(case, torch.float32)
    batch = place([doc.float() for doc in docs], "left", POISONS["nan"], M)
    with torch.autocast("cpu", torch.bfloat16):
        got = run(mixer, batch, [c.float() for c in g])
        assert got.y_BLD.dtype == torch.float32
        if case.abilities.streaming:
            with torch.no_grad():
                _, state = mixer.prefill(batch.x_BLD, batch.layout)
                _, state = mixer.step(torch.stack([doc[0] for doc in docs]).float(), state)
            assert {t.dtype for t in state.tensors().values()} <= {torch.float32, torch.int64}
            assert state.nbytes >= 2 * mixer.cost(0, torch.float32).state_bytes
    for ours, theirs in ((got.y, expected.y), (got.dx, expected.dx)):
        a, b = (torch.cat([t.double().flatten() for t in tensors]) for tensors in (ours, theirs))
        assert (a - b).norm() / b.norm() <= T16


@every
def test_strides_do_not_matter(case):
    """x as a view of another memory order, and a cotangent that is one number expanded."""
    mixer = build(case)
    docs = documents([9, 13])
    batch = place(docs, "left", 0.0, case.prefixes[-1])
    results = []
    for x_BLD in (batch.x_BLD.clone(), batch.x_BLD.transpose(0, 1).clone().transpose(0, 1)):
        x_BLD.requires_grad_()
        y_BLD = mixer.forward(x_BLD, batch.layout)
        results.append([y_BLD, *torch.autograd.grad(y_BLD.sum(), [x_BLD, *mixer.parameters()], allow_unused=True)])
    ones, twos = ([t for t in tensors if t is not None] for tensors in results)
    assert error(twos, ones) <= tolerance(torch.float64, case)


@streaming
@torch.no_grad()
def test_l14_bfloat16_sums_do_not_stall(case):
    """200 equal tokens after 600 others: a sum kept in bfloat16 has stopped growing by then."""
    mixer = build(case, torch.bfloat16)
    reference = build(case)
    reference.load_state_dict({k: v.double() if v.is_floating_point() else v for k, v in mixer.state_dict().items()})
    head, token = documents([600, 1], torch.bfloat16, seed=1)
    one = alone(torch.cat([head, token.expand(200, WIDTH)]).double())
    expected = reference.forward(one.x_BLD, one.layout)[0, -50:]
    _, state = mixer.prefill(head[None], Layout.dense(1, 600))
    outputs = []
    for _ in range(200):
        y_BD, state = mixer.step(token, state)
        outputs.append(y_BD)
    assert (torch.cat(outputs[-50:]).double() - expected).norm() / expected.norm() <= T16


@constant
@torch.no_grad()
def test_l14_long_float32_state(case):
    """131,072 tokens (the first case of a kind; the others fewer) in four pieces, against float64."""
    first = next(other for other in all_cases() if other.kind == case.kind)
    n, pieces = 131_072 if case == first else 16_384, 4
    if case.abilities.max_length and case.abilities.max_length < n:
        pytest.skip(f"{case.id} reads at most {case.abilities.max_length} tokens")
    states = []
    for dtype in (torch.float32, torch.float64):
        mixer = build(case, torch.float32).to(dtype)  # the same weights: rounded to float32, then widened
        (doc,) = documents([n], torch.float32)
        state = mixer.init_state(1, dtype, torch.device("cpu"))
        for part in doc.to(dtype).chunk(pieces):
            _, state = mixer.extend(part[None], Layout.dense(1, n // pieces), state)
        states.append(state)
    tensors = [state.tensors() for state in states]
    assert all(t.dtype in (torch.float32, torch.int64, torch.int32) for t in tensors[0].values())
    assert compare_states(states[0], states[1]) <= 2e-5


@streaming
@torch.no_grad()
def test_l14_sums_are_kept_in_float32(case):
    """For bfloat16 inputs only cached tokens may be bfloat16; whatever adds up is float32."""
    mixer = build(case, torch.bfloat16)
    batch = dense(documents([9], torch.bfloat16))
    longer = dense(documents([10], torch.bfloat16))
    a = mixer.prefill(batch.x_BLD, batch.layout)[1].tensors()
    double = build(case).prefill(longer.x_BLD.double(), longer.layout)[1].tensors()
    for name, tensor in a.items():
        if tensor.dtype == torch.bfloat16:
            cached = double[name].dim() >= 3  # (row, slot, ...): tokens
            assert cached, f"{name} is kept in bfloat16"


@every
@torch.no_grad()
def test_same_input_same_bits(case):
    mixer = build(case, torch.float32)
    batch = place(documents(sizes(case), torch.float32), "left", 0.0, case.prefixes[-1])
    assert torch.equal(mixer.forward(batch.x_BLD, batch.layout), mixer.forward(batch.x_BLD, batch.layout))
