"""The entry of the operation: checks, and which form runs."""

from __future__ import annotations

import torch

from kernels.backends import choose_backend
from kernels.checks import check_chunk, check_counts, check_shape
from kernels.errors import LayoutError
from kernels.orthogonal_memory.closed import closed_memory
from kernels.orthogonal_memory.limits import triton_refusal
from kernels.orthogonal_memory.naive import memory_naive
from kernels.orthogonal_memory.scan import causal_memory
from kernels.orthogonal_memory.state import MemoryState, compress, empty_state, read_memory, within
from kernels.taylor.features import accumulator_dtype, first_tokens, without_autocast


def orthogonal_memory(
    q_BLHK: torch.Tensor, x_BMHK: torch.Tensor, basis_HRK: torch.Tensor, *, causal: bool = True,
    closed: int | None = None, shared: bool = False, lengths_B: torch.Tensor | None = None,
    context_B: torch.Tensor | None = None, state: MemoryState | None = None, scale: float = 1.0,
    chunk: int | None = None, backend: str = "auto", return_state: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, MemoryState]:
    """What each query finds in the memory of x, over rows whose real tokens come first (LAVO Eq. 3-6).

    Args:
        q_BLHK, x_BMHK: float32, float64 or bfloat16; pads hold finite values. M = L where causal.
        basis_HRK: rows b_r of each head, orthonormal by the caller's care; R is free here.
        causal: the token at position p (the state's count + its slot) reads the mean over positions 0..p. False: every
            query reads one mean, over all of x: a document's own, or another's (cross attention).
        closed: w: the token at p reads the mean over the (p // w)·w tokens of the windows that are closed by then. The
            state holds closed windows only: its count must be a multiple of w, and tokens of a last window that does
            not end here do not enter it.
        shared: one memory for all heads: the basis of head h is the slice of one (R, H·K) basis, B x sums over heads.
        lengths_B: real tokens of each row of q (causal: and of x); the rest never enters the state.
        context_B: real tokens of each row of x, where not causal.
        state: what was read before; consumed.
        scale: of the slot scores; LAVO's equations have none.
        chunk: tokens per span; changes speed, never the result.
        backend: "auto" | "naive" | "chunked" | "triton".
    Returns:
        y_BLHK in q's dtype (0 from a memory of no tokens), or (y_BLHK, MemoryState) with `return_state`.
    Raises:
        LayoutError: shapes or settings that do not belong together. UnsupportedUse: a backend that cannot run.
    """
    check_memory(q_BLHK, x_BMHK, basis_HRK, state, causal=causal, closed=closed, shared=shared, context_B=context_B)
    check_counts("lengths_B", lengths_B, len(q_BLHK), most=q_BLHK.shape[1])
    check_counts("context_B", context_B, len(q_BLHK), most=x_BMHK.shape[1])
    check_chunk("chunk", chunk)
    lengths_B, context_B = within(lengths_B, q_BLHK.shape[1]), within(context_B, x_BMHK.shape[1])
    backend = choose_backend("orthogonal_memory", backend, q_BLHK.device,
                             fast={"triton": triton_refusal(q_BLHK, basis_HRK, shared)})
    B, L, H, _ = q_BLHK.shape
    with without_autocast(q_BLHK.device):
        if q_BLHK.numel() == 0 and (causal or not return_state):
            y = torch.zeros_like(q_BLHK)
            state = state or empty_state(B, H, basis_HRK.shape[1], q_BLHK.dtype, q_BLHK.device, shared=shared)
        elif backend == "naive":
            y, state = memory_naive(
                q_BLHK, x_BMHK, basis_HRK, causal=causal, closed=closed, shared=shared, lengths_B=lengths_B,
                context_B=context_B, state=state, scale=scale)
        elif backend == "triton" and q_BLHK.numel():
            from kernels.orthogonal_memory.gpu import memory_triton  # loads Triton

            y, state = memory_triton(q_BLHK, x_BMHK, basis_HRK, causal=causal, closed=closed, lengths_B=lengths_B,
                                     context_B=context_B, state=state, scale=scale)
        elif not causal:
            state = compress(x_BMHK, basis_HRK, lengths_B=context_B, shared=shared, state=state)
            y = read_memory(q_BLHK, basis_HRK, state, scale=scale)
        else:
            y, state = memory_chunked(
                q_BLHK, x_BMHK, basis_HRK, closed=closed, shared=shared, lengths_B=lengths_B, state=state, scale=scale,
                chunk=chunk, return_state=return_state)
    return (y, state) if return_state else y


def memory_chunked(
    q_BLHK, x_BLHK, basis_HRK, *, closed, shared, lengths_B, state, scale, chunk, return_state,
) -> tuple[torch.Tensor, MemoryState]:
    """The causal forms in torch."""
    B, L, H, _ = q_BLHK.shape
    fresh = state is None
    state = state or empty_state(B, H, basis_HRK.shape[1], q_BLHK.dtype, q_BLHK.device, shared=shared)
    if closed is not None:
        return closed_memory(q_BLHK, x_BLHK, basis_HRK, state, window=closed, shared=shared, lengths_B=lengths_B,
                             scale=scale)
    # pads come after the tokens: only the state can see them
    keep_BL = first_tokens(lengths_B, L) if return_state else None
    y, sums = causal_memory(q_BLHK, x_BLHK, basis_HRK, state.sum_BHR, None if fresh else state.count_B, keep_BL, shared,
                            scale, chunk)
    return y, MemoryState(sums, state.count_B + (L if lengths_B is None else lengths_B))


def check_memory(q, x, basis, state, *, causal: bool, closed: int | None, shared: bool, context_B=None) -> None:
    if q.dim() != 4 or x.dim() != 4 or q.shape[0] != x.shape[0] or q.shape[2:] != x.shape[2:]:
        raise LayoutError(f"expected q (B, L, H, K) and x (B, M, H, K); got q {tuple(q.shape)}, x {tuple(x.shape)}")
    if basis.dim() != 3 or (basis.shape[0], basis.shape[2]) != tuple(q.shape[2:]):
        raise LayoutError(f"basis: got {tuple(basis.shape)}, expected (H, R, K) with H, K = {tuple(q.shape[2:])}")
    if causal and (q.shape[1] != x.shape[1] or context_B is not None):
        raise LayoutError("a causal memory reads its own tokens: q and x of one length, and lengths_B, not context_B")
    if closed is not None and (closed < 1 or not causal):
        raise LayoutError(f"closed: got {closed} with causal={causal}; it is a window of at least 1 token, causal only")
    if state is None:
        return
    expected = (q.shape[0], 1 if shared else q.shape[2], basis.shape[1])
    check_shape("state.sum_BHR", state.sum_BHR, expected, accumulator_dtype(q.dtype))
    check_counts("state.count_B", state.count_B, q.shape[0])
    if closed is not None and state.count_B.device.type == "cpu" and bool((state.count_B % closed).any()):
        raise LayoutError(f"state: counts {state.count_B.tolist()} are not whole windows of {closed}: the open window's "
                          f"tokens must come again, before the new ones")
