"""The truth of the orthogonal memory: the slots m_r b_r written out, one token after another."""

from __future__ import annotations

import torch

from kernels.orthogonal_memory.state import MemoryState, empty_state
from kernels.taylor.features import accumulator_dtype


def look_up(q_HK: torch.Tensor, basis_HRK: torch.Tensor, mean_hR: torch.Tensor, scale: float) -> torch.Tensor:
    """(H, K): softmax over the slots, which are keys and values at once."""
    slots_HRK = mean_hR[..., None] * basis_HRK
    a_HR = (scale * torch.einsum("hk,hrk->hr", q_HK, slots_HRK)).softmax(-1)
    return torch.einsum("hr,hrk->hk", a_HR, slots_HRK)


def memory_naive(
    q_BLHK: torch.Tensor, x_BMHK: torch.Tensor, basis_HRK: torch.Tensor, *, causal: bool, closed: int | None,
    shared: bool, lengths_B: torch.Tensor | None, context_B: torch.Tensor | None, state: MemoryState | None,
    scale: float,
) -> tuple[torch.Tensor, MemoryState]:
    """See `kernels.orthogonal_memory.orthogonal_memory`. Pads give 0."""
    (B, L, H, _), M = q_BLHK.shape, x_BMHK.shape[1]
    dtype = accumulator_dtype(q_BLHK.dtype)
    q, x, basis = q_BLHK.to(dtype), x_BMHK.to(dtype), basis_HRK.to(dtype)
    state = state or empty_state(B, H, basis.shape[1], q_BLHK.dtype, q.device, shared=shared)
    outputs, sums, counts = [], [], []
    for b in range(B):
        total, count = state.sum_BHR[b], int(state.count_B[b])
        queries = L if lengths_B is None else int(lengths_B[b])
        tokens = (M if context_B is None else int(context_B[b])) if not causal else queries
        opened = torch.zeros_like(total)  # tokens of the window that is not closed yet
        row = []
        if not causal:
            for j in range(tokens):
                total = total + project(x[b, j], basis, shared)
            count += tokens
        for i in range(queries):
            if causal and closed is None:
                total, count = total + project(x[b, i], basis, shared), count + 1
            row.append(look_up(q[b, i], basis, total / max(count, 1), scale))
            if causal and closed is not None:
                opened = opened + project(x[b, i], basis, shared)
                if (i + 1) % closed == 0:  # the state's count is a multiple of the window
                    total, count, opened = total + opened, count + closed, torch.zeros_like(total)
        row += [q.new_zeros(q.shape[2:])] * (L - queries)
        outputs.append(torch.stack(row) if row else torch.zeros_like(q[b]))
        sums.append(total)
        counts.append(count)
    if not outputs:
        return torch.zeros_like(q_BLHK), state
    return torch.stack(outputs).to(q_BLHK.dtype), MemoryState(
        torch.stack(sums), torch.tensor(counts, dtype=torch.int64, device=q.device))


def project(x_HK: torch.Tensor, basis_HRK: torch.Tensor, shared: bool) -> torch.Tensor:
    """B x: (H, R), or their sum over heads (1, R), which is one basis of full width."""
    projected_HR = torch.einsum("hrk,hk->hr", basis_HRK, x_HK)
    return projected_HR.sum(0, keepdim=True) if shared else projected_HR
