"""Taylor attention in pure torch: the quadratic form for short rows, the chunk loop for long rows and for states."""

from __future__ import annotations

import torch

from kernels.taylor.decayed import decayed_chunked
from kernels.taylor.features import expanded_width, first_tokens
from kernels.taylor.forward import scan_forward
from kernels.taylor.quadratic import Quadratic
from kernels.taylor.scan import Scan
from kernels.taylor.state import TaylorState, join, split


def short(keys: int, K: int) -> bool:
    """Whether a row of this many keys is cheaper in the quadratic form (measured, README.md)."""
    return keys <= 64 + 4 * expanded_width(K)


def default_chunk(K: int) -> int:
    """Tokens a step of the chunk loop: narrow features are cheap, so that small chunks pay (measured, README.md)."""
    return 64 if K <= 8 else 128


def differentiable(*tensors: torch.Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def causal_scan(
    q_BLHK, k_BLHK, v_BLHV, initial, *, lengths_B, scale, eps, chunk, return_state,
) -> tuple[torch.Tensor, TaylorState | None]:
    """The chunk loop from initial sums (G, F, V+1) or None."""
    B, L = q_BLHK.shape[:2]
    # in aligned rows pads come last, so that only the state can see them
    keep_BL = first_tokens(lengths_B, L) if return_state else None
    if differentiable(q_BLHK, k_BLHK, v_BLHV, initial):
        y_BLHV, sums = Scan.apply(q_BLHK, k_BLHK, v_BLHV, initial, keep_BL, scale, eps, chunk, return_state)
    else:
        y_BLHV, sums = scan_forward(
            q_BLHK, k_BLHK, v_BLHV, initial, keep_BL, scale=scale, eps=eps, chunk=chunk, want_sums=return_state)
    return y_BLHV, split(sums, B) if return_state else None


def taylor_chunked(
    q_BLHK, k_BLHK, v_BLHV, *, state, lengths_B, scale, eps, decay_H, chunk, return_state,
) -> tuple[torch.Tensor, TaylorState | None]:
    """See `kernels.taylor.taylor`. `chunk` None: chosen by length; a number forces the chunk loop of that size."""
    if decay_H is not None:
        return decayed_chunked(
            q_BLHK, k_BLHK, v_BLHV, state=state, lengths_B=lengths_B, scale=scale, eps=eps, decay_H=decay_H,
            chunk=chunk or default_chunk(q_BLHK.shape[-1]))
    if state is None and not return_state and chunk is None and short(q_BLHK.shape[1], q_BLHK.shape[-1]):
        needs = differentiable(q_BLHK, k_BLHK, v_BLHV)
        return Quadratic.apply(q_BLHK, k_BLHK, v_BLHV, None, None, None, scale, eps, needs), None
    return causal_scan(
        q_BLHK, k_BLHK, v_BLHV, join(state), lengths_B=lengths_B, scale=scale, eps=eps,
        chunk=chunk or default_chunk(q_BLHK.shape[-1]), return_state=return_state)
