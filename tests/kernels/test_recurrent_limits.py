"""What the operations with a state hold in common: which chunks, counts, tokens and states are refused, and whose memory
is written to."""

import pytest
import torch

from kernels.bounded_memory import bounded_memory, bounded_step
from kernels.bounded_memory import empty_state as empty_slots
from kernels.delta_scan import delta_scan, delta_step
from kernels.errors import LayoutError
from kernels.gated_scan import gated_scan, gated_step
from kernels.linear_scan import ScanState, linear_scan, linear_step
from kernels.selective_scan import selective_scan, selective_step
from tests.kernels.agreement import draw, error

B, L, H, K, V, R = 2, 7, 3, 4, 5, 6


def tokens(*shape, n=L, seed=0):
    return draw(B, n, *shape, dtype=torch.float32, seed=seed, gradient=False)


def state_of(*shapes, B=B, dtype=torch.float32):
    return [draw(B, *shape, seed=9, gradient=False).abs().to(dtype) for shape in shapes]


A = -tokens(K, R, n=1, seed=5)[0, 0].abs()


def heads():
    return tokens(H, K).abs(), tokens(H, K, seed=1).abs(), tokens(H, V, seed=2)


def channels():
    return tokens(K), 0.1 * tokens(K, seed=1).abs(), tokens(R, seed=2), tokens(R, seed=3)


# name: row's inputs, the scan and the step over them and a state's tensors, the shapes of those
OPERATIONS = {
    "linear": (heads, lambda given, state, **o: linear_scan(*given, state=state and ScanState(*state), **o),
               lambda given, state: linear_step(*given, ScanState(*state)), [(H, K, V), (H, K)]),
    "gated": (lambda: (*heads(), -tokens(H, seed=3).abs()),
              lambda given, state, **o: gated_scan(*given, state=state and state[0], **o),
              lambda given, state: gated_step(*given, state[0]), [(H, K, V)]),
    "gated channels": (lambda: (*heads(), -tokens(H, K, seed=3).abs()),
                       lambda given, state, **o: gated_scan(*given, state=state and state[0], **o),
                       lambda given, state: gated_step(*given, state[0]), [(H, K, V)]),
    "delta": (lambda: (*heads(), 0.1 * tokens(H, seed=3).sigmoid()),
              lambda given, state, **o: delta_scan(*given, state=state and state[0], **o),
              lambda given, state: delta_step(*given, state[0]), [(H, K, V)]),
    "selective": (channels, lambda given, state, **o: selective_scan(*given[:2], A, *given[2:], state=state and state[0], **o),
                  lambda given, state: selective_step(*given[:2], A, *given[2:], state[0]), [(K, R)]),
    "bounded": (lambda: (*heads(), tokens(H, R, seed=3)),
                lambda given, state, **o: bounded_memory(*given, state=state and type(EMPTY)(*state), **o),
                lambda given, state: bounded_step(*given, type(EMPTY)(*state)), [(H, R, K), (H, R, V), (H, 1, R), (H, 1, R)]),
}
EMPTY = empty_slots(B, H, R, K, V, torch.float32)
EVERY = pytest.mark.parametrize("name", OPERATIONS)


def results(outcome):
    """Output and state tensors in one list."""
    y, state = outcome
    return [y, *(state if isinstance(state, tuple) else [state])]


@EVERY
@pytest.mark.parametrize("chunk", [0, -1])
def test_a_chunk_has_a_token(name, chunk):
    inputs, scan, _, _ = OPERATIONS[name]
    with pytest.raises(LayoutError, match=f"chunk is {chunk}"):
        scan(inputs(), None, chunk=chunk)


@EVERY
@pytest.mark.parametrize("backend", ["naive", "chunked"])
@pytest.mark.parametrize("lengths", [[3, L + 1], [-1, 3]])
def test_no_more_tokens_than_the_row(name, backend, lengths):
    inputs, scan, _, _ = OPERATIONS[name]
    with pytest.raises(LayoutError, match="lengths_B: got numbers from"):
        scan(inputs(), None, lengths_B=torch.tensor(lengths), backend=backend)
    scan(inputs(), None, lengths_B=torch.tensor([0, L]), backend=backend)


@EVERY
@pytest.mark.parametrize("grads", [True, False], ids=["grads", "no grads"])
def test_a_step_refuses_another_state(name, grads):
    """Other rows, one row for all, axes swapped, another width, another type."""
    inputs, _, step, shapes = OPERATIONS[name]
    given = [x[:, 0] for x in inputs()]
    with torch.set_grad_enabled(grads):
        step(given, state_of(*shapes))
        for other in (state_of(*shapes, B=1), state_of(*shapes, B=B + 1), [x.transpose(0, 1) for x in state_of(*shapes)],
                      [x[..., :1] for x in state_of(*shapes)], state_of(*shapes, dtype=torch.float64),
                      state_of(*shapes, dtype=torch.bfloat16)):
            with pytest.raises(LayoutError, match="_step: .* got torch"):
                step(given, other)


@EVERY
def test_a_step_refuses_tokens_that_do_not_belong_together(name):
    inputs, _, step, shapes = OPERATIONS[name]
    given = [x[:, 0] for x in inputs()]
    for index in range(len(given)):
        for wrong in (given[index][:1], given[index][..., :1], given[index].unsqueeze(0)):
            with pytest.raises(LayoutError, match="got"):
                step([*given[:index], wrong, *given[index + 1 :]], state_of(*shapes))


@EVERY
@torch.no_grad()
def test_states_of_any_layout(name):
    """An expanded state, whose entries share memory, and a transposed one give what a copy gives."""
    inputs, scan, step, shapes = OPERATIONS[name]
    row = inputs()
    token = [x[:, 0] for x in row]
    for axis in (0, 1, -1):
        shared = [x.narrow(axis, 0, 1).expand(x.shape) for x in state_of(*shapes)]
        for run in (lambda state: step(token, state), lambda state: scan(row, state, return_state=True)):
            expected = results(run([x.clone(memory_format=torch.contiguous_format) for x in shared]))
            turned = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in shared]
            for state in (shared, turned):
                assert error(results(run(state)), expected) <= 1e-6
