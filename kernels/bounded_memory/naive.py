"""The truth: one token after another, slots kept as means beside the logarithm of their weights' sum."""

from __future__ import annotations

import torch

from kernels.bounded_memory.state import SlotState, empty_state, nonzero, stacked
from kernels.taylor.features import accumulator_dtype


def memory_naive(q_BLHK, k_BLHK, v_BLHV, logits, *, lengths_B, state, scale) -> tuple[torch.Tensor, SlotState]:
    """See `kernels.bounded_memory.bounded_memory`."""
    (B, L, H, K), V = q_BLHK.shape, v_BLHV.shape[-1]
    dtype = accumulator_dtype(q_BLHK.dtype)
    q, k, v = (t.to(dtype) for t in (q_BLHK, k_BLHK, v_BLHV))
    logits = stacked(logits, dtype)
    S, R = logits.shape[3:]
    state = state or empty_state(B, H, R, K, V, dtype, q.device, streams=S)
    mean_k = state.keys_BHRK / nonzero(state.total_BHSR[:, :, 0])[..., None]
    mean_v = state.values_BHRV / nonzero(state.total_BHSR[:, :, -1])[..., None]
    log_sum = torch.where(state.total_BHSR == 0, float("-inf"), state.peak_BHSR + nonzero(state.total_BHSR).log())
    peak = torch.where(state.total_BHSR == 0, float("-inf"), state.peak_BHSR)
    outputs = []
    for t in range(L):
        after = torch.logaddexp(log_sum, logits[:, t])
        kept, new = (log_sum - after).exp(), (logits[:, t] - after).exp()
        next_k = kept[:, :, 0, :, None] * mean_k + new[:, :, 0, :, None] * k[:, t, :, None]
        next_v = kept[:, :, -1, :, None] * mean_v + new[:, :, -1, :, None] * v[:, t, :, None]
        attention = (scale * (q[:, t, :, None] * next_k).sum(-1)).softmax(-1)
        outputs.append((attention[..., None] * next_v).sum(2))
        real = torch.ones(B, dtype=torch.bool, device=q.device) if lengths_B is None else t < lengths_B
        real = real.view(B, 1, 1, 1)
        mean_k, mean_v = torch.where(real, next_k, mean_k), torch.where(real, next_v, mean_v)
        log_sum = torch.where(real, after, log_sum)
        peak = torch.where(real, torch.maximum(peak, logits[:, t]), peak)
    peak = torch.where(peak.isinf(), 0, peak)
    total = (log_sum - peak).exp()
    return torch.stack(outputs, 1).to(v_BLHV.dtype), SlotState(
        mean_k * total[:, :, 0, :, None], mean_v * total[:, :, -1, :, None], total, peak)
