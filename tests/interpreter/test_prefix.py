"""The Triton form of prefix attention, interpreted, against the token-by-token truth in float64."""

import pytest
import torch

from kernels.errors import UnsupportedUse
from kernels.prefix import prefix
from kernels.taylor import taylor, taylor_step
from tests.interpreter.agreement import TOLERANCE, cut, draw, errors, poisoned, results, some_state

__all__ = ["cut"]


def row(B, L, M, H, K, V, dtype=torch.float32):
    shapes = ((L, K), (L, K), (L, V), (M, K), (M, V))
    return [draw(B, length, H, width, seed=seed, dtype=dtype) for seed, (length, width) in enumerate(shapes)]


def both(L, M, prefixes, K, V, *, H=1, chunk=None, lengths=None, state=False):
    """Errors of y, last state and every gradient: Triton in float32 against naive in float64."""
    B, prefix_B = len(prefixes), torch.tensor(prefixes)
    lengths_B = None if lengths is None else torch.tensor(lengths)
    real_BL = torch.ones(B, L, dtype=torch.bool) if lengths is None else torch.arange(L) < lengths_B[:, None]
    found = []
    for backend, dtype in (("triton", torch.float32), ("naive", torch.float64)):
        leaves = row(B, L, M, H, K, V, dtype)
        start = some_state(B, H, K, V, dtype) if state else None

        def call(leaves=leaves, start=start, backend=backend):
            return prefix(*leaves, prefix_B, state=start, lengths_B=lengths_B, chunk=chunk, backend=backend,
                          return_state=True)

        with poisoned():
            found.append(results(call, (*leaves, *(start or ())), real_BL))
    return errors(*found)


@pytest.mark.parametrize("L, M, prefixes, K, V, chunk", [
    (63, 40, (40, 0, 7), 16, 16, None), (100, 100, (100, 31), 8, 64, 64), (200, 65, (65,), 16, 5, 64),
    (1, 1, (1, 0), 4, 16, None)])
def test_rows_and_gradients(L, M, prefixes, K, V, chunk):
    assert max(both(L, M, prefixes, K, V, chunk=chunk)) <= TOLERANCE


def test_state_in_and_out_of_uneven_rows(cut):
    assert max(both(150, 80, (80, 33, 0), 8, 16, chunk=64, lengths=(150, 70, 0), state=True)) <= TOLERANCE


def test_what_stands_beyond_a_prefix_is_never_read(cut):
    q, k, v, k_enc, v_enc = (x.detach() for x in row(2, 40, 70, 1, 8, 16))
    prefix_B = torch.tensor([66, 20])
    beyond = (torch.arange(70) >= prefix_B[:, None])[..., None, None]
    found = []
    for filling in (0.0, torch.nan):
        encoder = [torch.where(beyond, filling, x).requires_grad_() for x in (k_enc, v_enc)]
        with poisoned():
            y = prefix(q, k, v, *encoder, prefix_B, chunk=64, backend="triton")
            gradients = torch.autograd.grad(y.square().sum(), encoder)
        found.append([y, *gradients])
        assert not any(torch.where(beyond, x, 0.0).any() for x in gradients)
    assert all(map(torch.equal, *found))


def test_a_row_without_prefix_is_causal():
    q, k, v, k_enc, v_enc = (x.detach() for x in row(2, 70, 20, 1, 16, 16))
    y = prefix(q, k, v, k_enc, v_enc, torch.tensor([20, 0]), backend="triton")
    causal = taylor(q, k, v, backend="triton")
    assert max(errors([y[1]], [causal[1]])) <= 1e-6 and max(errors([y[0]], [causal[0]])) > 1e-2


def test_decoding_goes_on_from_the_merged_state():
    leaves = [x.detach() for x in row(2, 12, 6, 2, 8, 16)]
    m = torch.tensor([6, 4])
    whole = prefix(*(x.double() for x in leaves), m, backend="naive")
    q, k, v, k_enc, v_enc = leaves
    with torch.no_grad():
        _, state = prefix(q[:, :6], k[:, :6], v[:, :6], k_enc, v_enc, m, backend="triton", return_state=True)
        for t in range(6, 12):
            y, state = taylor_step(q[:, t], k[:, t], v[:, t], state, backend="triton")
            assert max(errors([y], [whole[:, t]])) <= TOLERANCE


def test_refusals():
    q, k, v, k_enc, v_enc = (x.detach() for x in row(1, 5, 4, 1, 16, 16))
    with pytest.raises(UnsupportedUse, match="one for all inputs"):
        prefix(q, k, v, k_enc.bfloat16(), v_enc, torch.tensor([4]), backend="triton")


def test_a_row_without_tokens_still_reads_its_prefix():
    leaves = [x.detach() for x in row(1, 0, 4, 1, 16, 16)]
    found = [prefix(*leaves, torch.tensor([3]), backend=backend, return_state=True)[1] for backend in ("naive", "triton")]
    assert max(errors(found[1], found[0])) <= TOLERANCE and found[0].z_BHF.any()


def test_the_default_type_does_not_matter():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert max(both(70, 20, [9], 16, 16, chunk=64)) <= TOLERANCE
    finally:
        torch.set_default_dtype(before)
