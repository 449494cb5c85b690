"""The memory itself: a sum of R numbers a head and a count, compressing a context, and the one-token step."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.checks import check_counts
from kernels.errors import LayoutError
from kernels.orthogonal_memory.read import read
from kernels.taylor.features import accumulator_dtype, first_tokens, without_autocast


class MemoryState(NamedTuple):
    """What is known of the tokens read so far. The mean is sum / count, divided last; no tokens, mean 0."""

    sum_BHR: torch.Tensor  # sum of B x, float32 (float64 for float64 inputs); (B, 1, R) if the heads share one
    count_B: torch.Tensor  # int64


def empty_state(
    B: int, H: int, R: int, dtype: torch.dtype, device: torch.device | str = "cpu", *, shared: bool = False,
) -> MemoryState:
    """State before the first token, for inputs of `dtype`."""
    return MemoryState(
        torch.zeros(B, 1 if shared else H, R, dtype=accumulator_dtype(dtype), device=device),
        torch.zeros(B, dtype=torch.int64, device=device))


def compress(
    x_BMHK: torch.Tensor, basis_HRK: torch.Tensor, *, lengths_B: torch.Tensor | None = None, shared: bool = False,
    state: MemoryState | None = None,
) -> MemoryState:
    """The memory of a context: the sum of B x over its first `lengths_B` tokens, added to a state's."""
    B, M, H, _ = x_BMHK.shape
    check_counts("lengths_B", lengths_B, B, most=M)
    lengths_B = within(lengths_B, M)
    dtype = accumulator_dtype(x_BMHK.dtype)
    with without_autocast(x_BMHK.device):
        keep_BM = first_tokens(lengths_B, M)
        kept = x_BMHK if keep_BM is None else x_BMHK * keep_BM[..., None, None]
        total_BHK = kept.sum(1, dtype=dtype)
        sum_BHR = torch.einsum("bhk,hrk->bhr", total_BHK, basis_HRK.to(dtype))
        if shared:
            sum_BHR = sum_BHR.sum(1, keepdim=True)
    state = state or empty_state(B, H, basis_HRK.shape[1], x_BMHK.dtype, x_BMHK.device, shared=shared)
    return MemoryState(state.sum_BHR + sum_BHR, state.count_B + (M if lengths_B is None else lengths_B))


def read_memory(
    q_BLHK: torch.Tensor, basis_HRK: torch.Tensor, state: MemoryState, *, scale: float = 1.0, reader=read,
) -> torch.Tensor:
    """y_BLHK in q's dtype: what each query finds in one memory, whatever the number of tokens behind it."""
    if q_BLHK.numel() == 0:
        return torch.zeros_like(q_BLHK)
    with without_autocast(q_BLHK.device):
        mean_Bh1R = mean_of(state).unsqueeze(2)
        return reader(q_BLHK, basis_HRK, mean_Bh1R, max(q_BLHK.shape[1], 1), scale)


def memory_step(
    q_BHK: torch.Tensor, x_BHK: torch.Tensor, basis_HRK: torch.Tensor, state: MemoryState, *, shared: bool = False,
    scale: float = 1.0,
) -> tuple[torch.Tensor, MemoryState]:
    """One token: it enters the memory, then its query reads it. 6·R·K FLOPs a head, whatever the length so far.

    Raises:
        LayoutError: tokens, a basis or a state that do not belong together.
    """
    check_step(q_BHK, x_BHK, basis_HRK, state, shared)
    state = compress(x_BHK.unsqueeze(1), basis_HRK, shared=shared, state=state)
    return read_memory(q_BHK.unsqueeze(1), basis_HRK, state, scale=scale).squeeze(1), state


def mean_of(state: MemoryState) -> torch.Tensor:
    """(B, h, R); 0 where there are no tokens."""
    return state.sum_BHR / state.count_B.clamp(min=1)[:, None, None]


def within(lengths_B: torch.Tensor | None, most: int) -> torch.Tensor | None:
    """Lengths that enter a count. Those on a CPU were checked; on a GPU nobody reads them, so they are cut."""
    return lengths_B if lengths_B is None or lengths_B.device.type == "cpu" else lengths_B.clamp(0, most)


def check_step(q: torch.Tensor, x: torch.Tensor, basis: torch.Tensor, state: MemoryState, shared: bool) -> None:
    """q and x (B, H, K) of one token, a basis of these heads, the state of these rows."""
    if q.dim() != 3 or q.shape != x.shape:
        raise LayoutError(f"expected q and x (B, H, K); got q {tuple(q.shape)}, x {tuple(x.shape)}")
    B, H, K = q.shape
    if basis.dim() != 3 or (basis.shape[0], basis.shape[2]) != (H, K):
        raise LayoutError(f"basis: got {tuple(basis.shape)}, expected ({H}, R, {K})")
    shape, kept = (B, 1 if shared else H, basis.shape[1]), accumulator_dtype(x.dtype)
    if state.sum_BHR.shape != shape or state.sum_BHR.dtype != kept:
        raise LayoutError(f"state.sum_BHR: got {state.sum_BHR.dtype} {tuple(state.sum_BHR.shape)}, expected {kept} {shape}")
    check_counts("state.count_B", state.count_B, B)
