"""Bounded memory: the chunk form against the token loop, forward, backward and streaming; logits of every size."""

import pytest
import torch

from kernels.bounded_memory import SlotState, bounded_memory, bounded_step, empty_state
from kernels.errors import LayoutError, UnsupportedUse
from tests.kernels.agreement import TOLERANCE, draw, error, with_gradients

B, H, K, V, R = 2, 2, 4, 3, 5


def inputs(n, streams=2, dtype=torch.float64, scale=1.0, gradient=True):
    shapes = ((B, n, H, K), (B, n, H, K), (B, n, H, V), *[(B, n, H, R)] * streams)
    drawn = [draw(*shape, seed=i, gradient=False) * (scale if i > 2 else 1) for i, shape in enumerate(shapes)]
    return [t.to(dtype).requires_grad_(gradient) for t in drawn]


def attend(leaves, **settings):
    """The operation over inputs of one stream of weights or two."""
    return bounded_memory(*leaves[:4], value_logits_BLHR=leaves[4] if len(leaves) > 4 else None, **settings)


def state_of(n, streams, scale=1.0):
    """A state after n tokens, detached."""
    _, state = attend(inputs(n, streams, scale=scale, gradient=False), backend="naive", return_state=True)
    return state


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("chunk", [1, 3, 16, 64, None])
@pytest.mark.parametrize("n", [1, 33])
def test_chunks_are_the_loop(n, chunk, streams):
    leaves, lengths_B = inputs(n, streams), torch.tensor([n, n // 2])
    held = [t.requires_grad_() for t in state_of(7, streams)]
    real = (torch.arange(n) < lengths_B[:, None])[..., None, None]
    results = []
    for backend in ("chunked", "naive"):
        def call(backend=backend):
            y, after = attend(leaves, lengths_B=lengths_B, state=SlotState(*held), chunk=chunk, backend=backend,
                              return_state=True)
            return [y * real, *after]

        weights = [draw(*t.shape, seed=9, gradient=False) for t in call()]
        results.append(with_gradients(call, [*leaves, *held], weights))
    assert error(*results) <= 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_precisions(dtype):
    low = inputs(100, dtype=dtype, gradient=False)
    y = attend(low)
    assert y.dtype == dtype
    assert error([y], [attend([t.double() for t in low], backend="naive")]) <= TOLERANCE[dtype]


@pytest.mark.parametrize("scale", [30.0, 1e4])
@pytest.mark.parametrize("order", ["drawn", "rising", "falling"])
def test_logits_of_every_size(order, scale):
    """A late logit thousands above the earlier ones leaves earlier outputs what they were."""
    leaves = inputs(50, scale=scale, gradient=False)
    if order != "drawn":
        leaves[3:] = [logits.sort(1, descending=order == "falling").values for logits in leaves[3:]]
    leaves = [t.requires_grad_() for t in leaves]
    got, expected = (with_gradients(lambda backend=backend: [attend(leaves, backend=backend)], leaves,
                                    [draw(B, 50, H, V, gradient=False)]) for backend in ("chunked", "naive"))
    assert error(got[:1], expected[:1]) <= 1e-10 and error(got, expected) <= 1e-10
    single = attend([t.float() for t in leaves])
    assert single.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("streams", [1, 2])
def test_streaming(streams):
    """Pieces, steps and the whole; a row without tokens keeps its state bit for bit."""
    row = inputs(40, streams, gradient=False)
    whole, final = attend(row, return_state=True)
    state, outputs = empty_state(B, H, R, K, V, torch.float64, streams=streams), []
    for part in (slice(0, 1), slice(1, 20), slice(20, 37)):
        y, state = attend([t[:, part] for t in row], state=state, return_state=True)
        outputs.append(y)
    for i in range(37, 40):
        now = [t[:, i] for t in row]
        y, state = bounded_step(*now[:4], state, value_logits_BHR=now[4] if streams == 2 else None)
        outputs.append(y[:, None])
    assert error([torch.cat(outputs, 1), *state], [whole, *final]) <= 1e-12
    _, kept = attend([t[:, :9] for t in row], state=state, lengths_B=torch.tensor([0, 4]), return_state=True)
    assert all(torch.equal(a[0], b[0]) and not torch.equal(a[1], b[1]) for a, b in zip(kept[:3], state[:3]))


def test_what_a_slot_is():
    """One slot: every output is the weighted mean of the values so far, whatever the query."""
    q, k, v, logits = inputs(9, 1, gradient=False)
    y = bounded_memory(q, k, v, logits[..., :1])
    for i in range(9):
        weight = logits[:, : i + 1, :, :1].softmax(1)
        torch.testing.assert_close(y[:, i], (weight * v[:, : i + 1]).sum(1))


def test_refusals():
    q, k, v, logits, value_logits = inputs(5, gradient=False)
    with pytest.raises(LayoutError, match=r"expected \(B, L, H, R\)"):
        bounded_memory(q, k, v, logits[:, :, :1])
    with pytest.raises(LayoutError, match="value_logits"):
        bounded_memory(q, k, v, logits, value_logits_BLHR=value_logits[..., :2])
    with pytest.raises(LayoutError, match="state"):
        bounded_memory(q, k, v, logits, state=empty_state(B, H, R, K, V, torch.float64, streams=2))
    with pytest.raises(UnsupportedUse, match="fla"):
        bounded_memory(q, k, v, logits, backend="fla")
    y, state = bounded_memory(q[:, :0], k[:, :0], v[:, :0], logits[:, :0], return_state=True)
    assert y.shape == (B, 0, H, V) and not state.total_BHSR.any()
