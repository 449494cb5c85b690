"""Bounded memory: R slots, each the mean of all tokens so far under weights of its own; queries attend to the slots.

    k~_r = sum_j w_jr k_j,  v~_r = sum_j w'_jr v_j   (w, w' softmax over j <= i of each token's logits, slot by slot)
    y_i = sum_r softmax_r(scale q_i·k~_r) v~_r       (ABC, Peng et al. 2021)
"""

from __future__ import annotations

import torch

from kernels.backends import choose_backend
from kernels.bounded_memory.chunked import memory_chunked
from kernels.bounded_memory.naive import memory_naive
from kernels.bounded_memory.state import SlotState, bounded_step, empty_state
from kernels.checks import check_chunk, check_counts
from kernels.errors import LayoutError
from kernels.taylor import check_inputs
from kernels.taylor.features import accumulator_dtype, without_autocast

__all__ = ["SlotState", "bounded_memory", "bounded_step", "empty_state"]


def bounded_memory(
    q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor, logits_BLHR: torch.Tensor, *,
    value_logits_BLHR: torch.Tensor | None = None, lengths_B: torch.Tensor | None = None, state: SlotState | None = None,
    scale: float | None = None, chunk: int | None = None, backend: str = "auto", return_state: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, SlotState]:
    """Causal attention through R slots, over rows whose real tokens come first.

    Args:
        q_BLHK, k_BLHK, v_BLHV: float32, float64 or bfloat16; pads hold finite values.
        logits_BLHR: logarithm of the weight of each token in each slot, of any size.
        value_logits_BLHR: those of the values' means, where they are not the keys'.
        lengths_B: real tokens of each row; the others have weight 0. None: all are real.
        state: what was read before; consumed. None: nothing.
        scale: of q·k~; default K^-1/2.
        chunk: tokens per step of the chunk loop; changes speed, never the result.
        backend: "auto" | "naive" | "chunked".
    Returns:
        y_BLHV in v's dtype, or (y_BLHV, SlotState) with `return_state`; outputs at pads mean nothing and are finite.
    Raises:
        LayoutError: shapes that do not belong together, counts beyond the row, a chunk below 1. UnsupportedUse: an unknown backend.
    """
    check_inputs(q_BLHK, k_BLHK, v_BLHV)
    B, L, H, K = q_BLHK.shape
    check_rows(q_BLHK, logits_BLHR, value_logits_BLHR, lengths_B)
    check_chunk("bounded_memory", chunk)
    logits = [logits_BLHR] if value_logits_BLHR is None else [logits_BLHR, value_logits_BLHR]
    S, R = len(logits), logits_BLHR.shape[3]
    check_state(state, (B, H, R, K), v_BLHV.shape[-1], S, accumulator_dtype(q_BLHK.dtype))
    backend = choose_backend("bounded_memory", backend, q_BLHK.device)
    if q_BLHK.numel() == 0:
        state = state or empty_state(B, H, R, K, v_BLHV.shape[-1], q_BLHK.dtype, q_BLHK.device, streams=S)
        return (torch.zeros_like(v_BLHV), state) if return_state else torch.zeros_like(v_BLHV)
    settings = {"lengths_B": lengths_B, "state": state, "scale": K**-0.5 if scale is None else scale}
    with without_autocast(q_BLHK.device):
        if backend == "naive":
            y, state = memory_naive(q_BLHK, k_BLHK, v_BLHV, logits, **settings)
        else:
            y, state = memory_chunked(q_BLHK, k_BLHK, v_BLHV, logits, chunk=chunk, **settings)
    return (y, state) if return_state else y


def check_rows(q: torch.Tensor, logits: torch.Tensor, value_logits: torch.Tensor | None, lengths_B: torch.Tensor | None) -> None:
    rows = tuple(q.shape[:3])
    if logits.dim() != 4 or tuple(logits.shape[:3]) != rows or logits.shape[3] < 1:
        raise LayoutError(f"logits: got {tuple(logits.shape)}, expected (B, L, H, R) with B, L, H = {rows}")
    if value_logits is not None and value_logits.shape != logits.shape:
        raise LayoutError(f"value_logits: got {tuple(value_logits.shape)}, expected the logits' {tuple(logits.shape)}")
    check_counts("lengths_B", lengths_B, len(q), most=q.shape[1])


def check_state(state: SlotState | None, keys: tuple[int, ...], V: int, S: int, dtype: torch.dtype) -> None:
    if state is None:
        return
    B, H, R, _ = keys
    expected = (keys, (B, H, R, V), (B, H, S, R), (B, H, S, R))
    if tuple(tuple(tensor.shape) for tensor in state) != expected or {tensor.dtype for tensor in state} != {dtype}:
        raise LayoutError(f"state: got {[(tuple(tensor.shape), tensor.dtype) for tensor in state]}, expected {expected} in "
                          f"{dtype}")
