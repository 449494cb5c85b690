"""The memory of closed windows: a token reads the mean over the windows that ended before its own began.

Only one sum a window is needed, so x meets the basis once a window instead of once a token.
"""

from __future__ import annotations

import torch

from kernels.orthogonal_memory.read import read
from kernels.orthogonal_memory.state import MemoryState
from kernels.taylor.features import accumulator_dtype


def closed_memory(
    q_BLHK, x_BLHK, basis_HRK, state: MemoryState, *, window: int, shared: bool, lengths_B, scale: float, reader=read,
) -> tuple[torch.Tensor, MemoryState]:
    """See `kernels.orthogonal_memory.orthogonal_memory`, `closed`. Windows of real tokens only ever enter the state.

    `reader`: the form of `read` that answers the queries.
    """
    dtype = accumulator_dtype(q_BLHK.dtype)
    L = q_BLHK.shape[1]
    full = L // window
    sums_BNHK = x_BLHK[:, : full * window].unflatten(1, (full, window)).sum(2, dtype=dtype)
    features = torch.einsum("bnhk,hrk->bhnr", sums_BNHK, basis_HRK.to(dtype))
    if shared:
        features = features.sum(1, keepdim=True)
    before = state.sum_BHR.unsqueeze(2)
    sums = torch.cat((before, before + features.cumsum(2)), 2)  # (B, h, full + 1, R), the sum before each window
    count_BN = state.count_B[:, None] + window * torch.arange(full + 1, device=q_BLHK.device)
    mean = sums / count_BN.clamp(min=1)[:, None, :, None]
    y_BLHK = reader(q_BLHK, basis_HRK, mean, window, scale)
    if lengths_B is None:
        return y_BLHK, MemoryState(sums[:, :, -1].clone(), state.count_B + full * window)
    ended_B = lengths_B // window
    index = ended_B.view(-1, 1, 1, 1).expand(-1, sums.shape[1], 1, sums.shape[3])
    return y_BLHK, MemoryState(sums.gather(2, index).squeeze(2), state.count_B + ended_B * window)
