"""The Triton form of Taylor attention, interpreted, against the token-by-token truth in float64."""

import pytest
import torch

from kernels.errors import LayoutError, UnsupportedUse
from kernels.taylor import TaylorState, empty_state, expanded_width, feature_map, taylor, taylor_step
from kernels.taylor.triton import attend, readable
from kernels.taylor.triton_blocks import from_blocks, row_count, tables, to_blocks
from kernels.taylor.triton_config import sequence_parts
from kernels.taylor.triton_limits import why_not
from tests.interpreter.agreement import TOLERANCE, cut, draw, errors, poisoned, results, some_state

__all__ = ["cut"]


def row(B, L, H, K, V, dtype=torch.float32):
    return [draw(B, L, H, width, seed=seed, dtype=dtype) for seed, width in enumerate((K, K, V))]


def both(L, K, V, *, B=1, H=2, chunk=None, lengths=None, state=False, read_output=True, **settings):
    """Errors of y, last state and every gradient: Triton in float32 against naive in float64."""
    lengths_B = None if lengths is None else torch.tensor(lengths)
    real_BL = torch.ones(B, L, dtype=torch.bool) if lengths is None else torch.arange(L) < lengths_B[:, None]
    found = []
    for backend, dtype in (("triton", torch.float32), ("naive", torch.float64)):
        leaves = row(B, L, H, K, V, dtype)
        start = some_state(B, H, K, V, dtype) if state else None

        def call(leaves=leaves, start=start, backend=backend):
            return taylor(*leaves, state=start, lengths_B=lengths_B, chunk=chunk, backend=backend, return_state=True,
                          **settings)

        with poisoned():
            found.append(results(call, (*leaves, *(start or ())), real_BL, read_output))
    return errors(*found)


@pytest.mark.parametrize("L, K, V, chunk", [
    (1, 16, 16, None), (63, 8, 5, None), (100, 4, 64, 64), (200, 16, 16, 64), (513, 8, 16, None), (65, 28, 80, 64)])
def test_rows_and_gradients(L, K, V, chunk):
    assert max(both(L, K, V, chunk=chunk, H=2 if L == 63 else 1)) <= TOLERANCE


def test_the_shapes_of_float32_operands(monkeypatch):
    """On a GPU float32 goes in smaller blocks, one gradient at a time, and through sums instead of 0/1 products."""
    from kernels.taylor import triton_launch, triton_operands

    for module in (triton_launch, triton_operands):
        monkeypatch.setattr(module, "single", lambda dtype: True)
    assert max(both(70, 16, 16, H=1, chunk=64, state=True)) <= TOLERANCE


def test_rows_without_any_state(monkeypatch):
    """Up to a segment the quadratic part is all there is: no sums are made, forward or backward."""
    from kernels.taylor.triton_launch import Call

    monkeypatch.setattr(Call, "scan", None)
    leaves, truth = row(2, 90, 1, 16, 16), row(2, 90, 1, 16, 16, torch.float64)
    weight = draw(2, 90, 1, 16, seed=9, dtype=torch.float64).detach()
    found = []
    for backend, tensors in (("triton", leaves), ("naive", truth)):
        with poisoned():
            y = taylor(*tensors, backend=backend)
            found.append([y, *torch.autograd.grad((y * weight).sum(), tensors)])
    assert max(errors(*found)) <= TOLERANCE


def test_state_in_and_out_of_uneven_rows(cut):
    assert max(both(150, 8, 16, B=3, H=1, chunk=64, lengths=(150, 70, 0), state=True)) <= TOLERANCE


@pytest.mark.parametrize("L, chunk", [(90, None), (130, 64)])
def test_gradients_that_come_from_the_last_state_alone(L, chunk):
    assert max(both(L, 8, 16, H=1, chunk=chunk, lengths=(L - 3,), state=True, read_output=False)[3:]) <= TOLERANCE


def test_scale_and_eps_are_arguments():
    assert max(both(130, 8, 16, H=1, chunk=64, state=True, scale=0.7, eps=5.0)) <= TOLERANCE


def test_pads_are_never_read(cut):
    """Neither values nor gradients at pads reach a real token or a state, not even NaN; pads get zeros."""
    q, k, v = row(2, 100, 1, 8, 16)
    lengths_B = torch.tensor([100, 33])
    pads = (torch.arange(100) >= lengths_B[:, None])[..., None, None]
    weight = draw(2, 100, 1, 16, seed=3, dtype=torch.float32).detach()
    found = []
    for filling in (0.0, torch.nan):
        leaves = [torch.where(pads, filling, x.detach()).requires_grad_() for x in (q, k, v)]
        with poisoned():
            y, state = taylor(*leaves, lengths_B=lengths_B, chunk=64, backend="triton", return_state=True)
            gradients = torch.autograd.grad(
                (y, *state), leaves, (torch.where(pads, filling, weight), *(torch.ones_like(x) for x in state)))
        found.append([y, *state, *gradients])
        for x in (y, *gradients):
            assert not torch.where(pads, x, 0.0).any()
    assert all(map(torch.equal, *found))


def test_views_are_read_where_they_lie():
    q, k, v = (x.detach() for x in row(2, 33, 2, 16, 16))
    expected = taylor(q, k, v, backend="triton", return_state=True)
    fused = torch.stack((q, k, v), 2).unbind(2)  # neighbours in one projection
    heads_first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    columns = [x.transpose(1, 3).contiguous().transpose(1, 3) for x in (q, k, v)]
    for views in (fused, heads_first, columns):
        y, state = taylor(*views, backend="triton", return_state=True)
        assert torch.equal(y, expected[0]) and all(map(torch.equal, state, expected[1]))


def test_offsets_beyond_int32():
    """Tokens 2^23 numbers apart: the last ones lie beyond 2^31. Untouched memory is never committed."""
    L, apart = 330, 2**23
    room = torch.empty(L * apart, dtype=torch.float16)
    parts = [x.detach().half() for x in row(1, L, 1, 8, 8)]
    views = [room[32 * index:].as_strided((1, L, 1, 8), (L * apart, apart, 8, 1)) for index in range(3)]
    for view, part in zip(views, parts, strict=True):
        view.copy_(part)
        assert readable(view) is view, "not copied together first"
    far, far_state = taylor(*views, chunk=64, backend="triton", return_state=True)
    near, near_state = taylor(*parts, chunk=64, backend="triton", return_state=True)
    assert torch.equal(far, near) and all(map(torch.equal, far_state, near_state))


@pytest.mark.parametrize("K, V", [(16, 32), (5, 4)])
def test_steps_are_the_row(K, V):
    q, k, v = (x.detach() for x in row(1, 7, 2, K, V))
    expected, last = taylor(q.double(), k.double(), v.double(), backend="naive", return_state=True)
    with torch.no_grad(), poisoned():
        _, state = taylor(q[:, :3], k[:, :3], v[:, :3], backend="triton", return_state=True)
        first = state.z_BHF
        for t in range(3, 7):
            y, state = taylor_step(q[:, t], k[:, t], v[:, t], state, backend="triton")
            assert max(errors([y], [expected[:, t]])) <= TOLERANCE
    assert max(errors(state, last)) <= TOLERANCE
    assert state.z_BHF is first, "advanced in place"


def test_bfloat16_operands_are_rounded_as_on_a_gpu():
    leaves = row(1, 200, 1, 16, 16, torch.bfloat16)
    truth = [x.detach().double().requires_grad_() for x in leaves]
    found = []
    for backend, tensors in (("triton", leaves), ("naive", truth)):
        y, state = taylor(*tensors, chunk=64, backend=backend, return_state=True)
        found.append([y, *state, *torch.autograd.grad((y * y.detach()).sum(), tensors)])
    y_error, *others = errors(*found)
    assert found[0][0].dtype == torch.bfloat16 and found[0][1].dtype == torch.float32
    assert y_error <= 1e-2 and max(others) <= 2e-2
    assert max(others[:2]) > 1e-5, "features were rounded"


def test_float16_keeps_sums_beyond_its_range():
    """Features of 64 times larger vectors sum to 10^5, where float16 ends at 65,504."""
    q, k, v = (x.detach().half() for x in row(1, 130, 1, 16, 16))
    y, state = taylor(q, 64 * k, v, chunk=64, backend="triton", return_state=True)
    expected, last = taylor(q.double(), (64 * k).double(), v.double(), backend="naive", return_state=True)
    assert y.dtype == torch.float16 and last.z_BHF.max() > 65504
    assert max(errors([y], [expected])) <= 1e-3 and max(errors(state, last)) <= TOLERANCE


@pytest.mark.parametrize("K", [1, 5, 8, 16, 24])
def test_the_layout_of_sums(K):
    """Blocks hold unscaled products; the two maps undo each other."""
    x = draw(6, K, seed=1, dtype=torch.float64).detach()
    phi = feature_map(x, 0.3)
    kv, z = phi[None, None, 2:, :, None].sum(2).expand(1, 1, -1, 5), phi[None, None, 2:].sum(2)
    blocks_kv, blocks_z = to_blocks(kv, z, K, 0.3)
    assert blocks_kv.shape == (1, row_count(K), 16) and blocks_z.shape == (1, row_count(K))
    squares = torch.einsum("ni,nj->ij", x[2:], x[2:])
    side = min(K, 8)
    first = blocks_z[0, -((-(-K // 8)) * (-(-K // 8) + 1) // 2) * 64:][:64].view(8, 8)[:side, :side]
    assert max(errors([first], [squares[:side, :side]])) <= 1e-6
    back = from_blocks(blocks_kv, blocks_z, (1, 1, K, 5), 0.3)
    assert back[1].shape[-1] == expanded_width(K) and max(errors(back, (kv, z))) <= 1e-6


def test_when_a_row_is_cut():
    assert sequence_parts(programs=1024, segments=64, processors=132) == 1
    assert sequence_parts(programs=264, segments=64, processors=132) == 1
    assert sequence_parts(programs=263, segments=64, processors=132) == 64
    assert sequence_parts(programs=4, segments=1, processors=132) == 1


def test_refusals():
    q, k, v = (x.detach() for x in row(1, 3, 1, 16, 16))
    cases = [
        ((q.double(), k.double(), v.double()), {}, "float64"), ((q, k, v.bfloat16()), {}, "one for all"),
        ((q, k, v), {"decay_H": torch.ones(1)}, "decaying"),
        ((q.repeat(1, 1, 1, 3), k.repeat(1, 1, 1, 3), v), {}, "48 and 16"),
        ((q, k, v.repeat(1, 1, 1, 9)), {}, "16 and 144")]
    for tensors, settings, message in cases:
        assert message in why_not(*tensors, **settings)
        with pytest.raises(UnsupportedUse, match=message):
            taylor(*tensors, backend="triton", **settings)
    with pytest.raises(UnsupportedUse, match="no gradients"):
        taylor_step(q[:, 0], k[:, 0], v[:, 0], empty_state(1, 1, 16, 16, torch.float32), backend="triton")


def test_nothing_to_read():
    y, state = taylor(*(x.detach() for x in row(2, 0, 1, 16, 16)), backend="triton", return_state=True)
    assert y.shape == (2, 0, 1, 16) and not state.z_BHF.any()
    y, state = taylor(*(x.detach() for x in row(0, 3, 1, 16, 16)), backend="triton", return_state=True)
    assert y.shape == (0, 3, 1, 16) and isinstance(state, TaylorState) and state.kv_BHFV.shape == (0, 1, 153, 16)


def test_counts_beyond_the_row_are_refused_or_cut():
    q, k, v = (x.detach() for x in row(1, 5, 1, 16, 16))
    with pytest.raises(LayoutError, match="lengths_B"):
        taylor(q, k, v, lengths_B=torch.tensor([6]), backend="triton")
    wide = [torch.cat((x, torch.full_like(x, torch.nan)), 1) for x in (q, k, v)]  # what lies behind the row in memory
    settings = {"state": None, "scale": 0.25, "eps": 1e-12, "chunk": None, "return_state": True}
    y, state = attend(*(x[:, :5] for x in wide), lengths_B=torch.tensor([9]), **settings)
    expected, last = attend(q, k, v, lengths_B=torch.tensor([5]), **settings)
    assert max(errors([y, *state], [expected, *last])) == 0
    _, none = attend(q, k, v, lengths_B=torch.tensor([-3]), **settings)
    assert not none.kv_BHFV.any()


def test_a_step_from_a_state_of_other_rows_or_another_type():
    q, k, v = (x.detach()[:, 0] for x in row(2, 1, 3, 16, 16))
    for wrong in (empty_state(1, 3, 16, 16, torch.float32), empty_state(2, 3, 16, 16, torch.float64)):
        with torch.no_grad(), pytest.raises(LayoutError, match="state"):
            taylor_step(q, k, v, wrong, backend="triton")


def test_a_scale_of_zero():
    """Every weight is 1. Sums here are divided by the scale, so that a state cannot be made."""
    leaves = [x.detach() for x in row(1, 5, 1, 16, 16)]
    with pytest.raises(UnsupportedUse, match="no inverse"):
        taylor(*leaves, scale=0.0, backend="triton")


def test_the_default_type_does_not_matter():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    tables.cache_clear()
    try:
        assert max(both(70, 16, 16, chunk=64, state=True)) <= TOLERANCE
        leaves = [x.detach() for x in row(1, 70, 1, 16, 16)]
        _, state = taylor(*leaves, backend="triton", return_state=True)
        with torch.no_grad():
            y, after = taylor_step(*(x[:, 0] for x in leaves), state, backend="triton")
    finally:
        torch.set_default_dtype(before)
        tables.cache_clear()
    assert {x.dtype for x in (*state, y, *after)} == {torch.float32}
