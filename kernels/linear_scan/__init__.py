"""Linear attention over vectors that already went through a feature map: one prefix sum for the whole family.

    y_i = sum_j (q_i·k_j) v_j / divisor(sum_j q_i·k_j),   over j <= i (causal) or over every real key

elu+1, ReLU, FAVOR+, random Fourier, cosine-weighted and other maps stand in features.py.
"""

from __future__ import annotations

import torch

from kernels.backends import choose_backend
from kernels.checks import check_chunk, check_counts
from kernels.errors import LayoutError
from kernels.linear_scan.chunked import linear_scan_chunked
from kernels.linear_scan.naive import linear_scan_naive
from kernels.linear_scan.state import Divisor, ScanState, empty_state, linear_step
from kernels.taylor.features import without_autocast

__all__ = ["ScanState", "empty_state", "linear_scan", "linear_step"]


def linear_scan(
    q_BLHF: torch.Tensor, k_BMHF: torch.Tensor, v_BMHV: torch.Tensor, *, causal: bool = True,
    lengths_B: torch.Tensor | None = None, state: ScanState | None = None, eps: float = 1e-12, floor: float | None = None,
    normalise: bool = True, chunk: int | None = None, backend: str = "auto", return_state: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, ScanState]:
    """Attention over rows whose real tokens come first.

    Args:
        q_BLHF, k_BMHF: feature-mapped queries and keys, float32, float64 or bfloat16; pads hold finite values.
        v_BMHV: values; its dtype is the output's, and may differ from that of the features.
        causal: query i reads keys 0..i (M must equal L). False: every query reads every real key; M is free, 0 included.
        lengths_B: real keys of each row; the others count as features of zero, whatever they hold. None: all are real.
        state: sums to start from; consumed (may be overwritten when gradients are off). None: zeros.
        eps: added to the sum of weights; for features that are never negative. With 0, a query that no key weighs on gets 0.
        floor: for signed features, instead of `eps`: the sum of weights is held at least so far from zero, sign kept.
        normalise: False gives the numerator alone.
        chunk: tokens per step of the chunk loop; changes speed, never the result. None: chosen by length.
        backend: "auto" | "naive" | "chunked".
    Returns:
        y_BLHV in v's dtype, or (y_BLHV, ScanState) with `return_state`; outputs at causal pads mean nothing.
    Raises:
        LayoutError: shapes that do not belong together, counts beyond the row, a floor or chunk that is not positive. UnsupportedUse: an unknown backend.
    """
    check_inputs(q_BLHF, k_BMHF, v_BMHV, causal, lengths_B, state, floor)
    check_chunk("linear_scan", chunk)
    backend = choose_backend("linear_scan", backend, q_BLHF.device)
    divisor, out = Divisor(eps, floor, normalise), v_BMHV.dtype
    if torch.float64 in (q_BLHF.dtype, k_BMHF.dtype, v_BMHV.dtype):
        q_BLHF, k_BMHF, v_BMHV = q_BLHF.double(), k_BMHF.double(), v_BMHV.double()
    (B, L, H, F), V = q_BLHF.shape, v_BMHV.shape[-1]
    if q_BLHF.numel() == k_BMHF.numel() == 0:
        y = v_BMHV.new_zeros(B, L, H, V, dtype=out)
        state = state or empty_state(B, H, F, V, q_BLHF.dtype, q_BLHF.device)
        return (y, state) if return_state else y
    with without_autocast(q_BLHF.device):
        if backend == "naive":
            y, state = linear_scan_naive(
                q_BLHF, k_BMHF, v_BMHV, causal=causal, lengths_B=lengths_B, state=state, divisor=divisor)
        else:
            y, state = linear_scan_chunked(
                q_BLHF, k_BMHF, v_BMHV, causal=causal, lengths_B=lengths_B, state=state, divisor=divisor, chunk=chunk,
                return_state=return_state)
    y = y.to(out)
    return (y, state) if return_state else y


def check_inputs(q, k, v, causal: bool, lengths_B, state: ScanState | None, floor: float | None) -> None:
    """q (B, L, H, F), k (B, M, H, F) and v (B, M, H, V) of the same rows and heads; sums that fit them."""
    fits = q.dim() == k.dim() == v.dim() == 4 and q.shape[0::2] == k.shape[0::2] and k.shape[:3] == v.shape[:3]
    if not fits or q.shape[3] != k.shape[3]:
        raise LayoutError(
            f"linear_scan: expected q (B, L, H, F), k (B, M, H, F) and v (B, M, H, V); got q {tuple(q.shape)}, "
            f"k {tuple(k.shape)}, v {tuple(v.shape)}")
    if causal and q.shape[1] != k.shape[1]:
        raise LayoutError(
            f"linear_scan: a causal row has as many queries as keys; got {q.shape[1]} and {k.shape[1]} (causal=False reads "
            "any number of keys)")
    B, _, H, F = q.shape
    check_counts("lengths_B", lengths_B, B, most=k.shape[1])
    if state is not None and (state.kv_BHFV.shape != (B, H, F, v.shape[-1]) or state.z_BHF.shape != (B, H, F)):
        raise LayoutError(
            f"linear_scan: expected sums of shape {(B, H, F, v.shape[-1])} and {(B, H, F)}; got "
            f"{tuple(state.kv_BHFV.shape)} and {tuple(state.z_BHF.shape)}")
    wide = torch.float64 in (q.dtype, k.dtype, v.dtype)
    if state is not None and {x.dtype for x in state} != {torch.float64 if wide else torch.float32}:
        raise LayoutError(
            f"linear_scan: expected sums in {'float64' if wide else 'float32'}; got {state.kv_BHFV.dtype}, {state.z_BHF.dtype}")
    if floor is not None and floor <= 0:
        raise LayoutError(f"linear_scan: floor is {floor}, expected a positive number, or None to add eps instead")
