"""Linear attention in pure torch: which form runs, and the causal loop where no backward will follow."""

from __future__ import annotations

import torch

from kernels.linear_scan.scan import Scan, divide, heads_first, scan_forward
from kernels.linear_scan.state import Divisor, ScanState, join, split
from kernels.linear_scan.whole import Whole, whole_forward
from kernels.taylor.features import accumulator_dtype, first_tokens, placed_values

CHUNK = 64  # tokens a step of the chunk loop (measured, README.md)
SHORT = 128  # up to here a row without a backward is cheaper as one masked quadratic form (measured, README.md)


def linear_scan_chunked(
    q_BLHF, k_BMHF, v_BMHV, *, causal: bool, lengths_B, state: ScanState | None, divisor: Divisor, chunk: int | None,
    return_state: bool,
) -> tuple[torch.Tensor, ScanState | None]:
    """See `kernels.linear_scan.linear_scan`. `chunk` None: chosen by length."""
    B, L, H, _ = q_BLHF.shape
    given = (q_BLHF, k_BMHF, v_BMHV, *(state or ()))
    differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    sums = join(state)
    if not causal:
        keep_BM = first_tokens(lengths_B, k_BMHF.shape[1])
        whole = Whole.apply if differentiable else whole_forward
        y_BLHV, sums = whole(q_BLHF, k_BMHF, v_BMHV, sums, keep_BM, divisor, chunk or 4 * CHUNK)
        return y_BLHV, split(sums, B, H) if return_state else None
    if chunk is None:
        chunk = CHUNK if differentiable or L > SHORT else L
    # in aligned rows pads come last, so that only the state can see them
    keep_BL = first_tokens(lengths_B, L) if return_state else None
    form = Scan.apply if differentiable else forward_only
    y_BLHV, sums = form(q_BLHF, k_BMHF, v_BMHV, sums, keep_BL, divisor, chunk, return_state)
    return y_BLHV, split(sums, B, H) if return_state else None


def forward_only(q_BLHF, k_BLHF, v_BLHV, sums, keep_BL, divisor, chunk, want_sums):
    """The chunk loop without a backward: everything but the output stays the size of a chunk."""
    L, dtype = q_BLHF.shape[1], accumulator_dtype(q_BLHF.dtype)
    y_BLHV = torch.empty(*q_BLHF.shape[:3], v_BLHV.shape[-1], dtype=v_BLHV.dtype, device=v_BLHV.device)
    for start in range(0, L, chunk):
        part = slice(start, min(start + chunk, L))
        total, sums = scan_forward(
            heads_first(q_BLHF[:, part], dtype), heads_first(k_BLHF[:, part], dtype),
            placed_values(v_BLHV[:, part], None if keep_BL is None else keep_BL[:, part]),
            sums, chunk, want_sums or part.stop < L)
        divide(total, divisor, y_BLHV[:, part])
    return y_BLHV, sums
