"""What the slots hold, and the one-token step.

Letters: B rows, H heads, R slots, K and V widths of keys and values, S streams of weights (1 shared, 2 apart).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.checks import check_step, sizes
from kernels.taylor.features import accumulator_dtype, without_autocast


class SlotState(NamedTuple):
    """Weighted sums over the tokens read so far, float32 (float64 for float64 inputs).

    Weights are relative to the greatest logit of the slot so far, so that none exceeds 1 and `total` is at least 1 once
    there is a token; 0 before. A slot's key is keys / total.
    """

    keys_BHRK: torch.Tensor
    values_BHRV: torch.Tensor
    total_BHSR: torch.Tensor
    peak_BHSR: torch.Tensor  # greatest logit; 0 before the first token


def empty_state(
    B: int, H: int, R: int, K: int, V: int, dtype: torch.dtype, device: torch.device | str = "cpu", *, streams: int = 1,
) -> SlotState:
    """State before the first token, for inputs of `dtype`."""
    kept = accumulator_dtype(dtype)
    return SlotState(*(torch.zeros(B, H, *shape, dtype=kept, device=device)
                       for shape in ((R, K), (R, V), (streams, R), (streams, R))))


def stacked(logits: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Streams (..., H, R) -> (..., H, S, R) of `dtype`."""
    return torch.stack([stream.to(dtype) for stream in logits], -2)


def nonzero(total: torch.Tensor) -> torch.Tensor:
    """A sum of weights to divide by: 1 where there is no token, whose sums are 0."""
    return torch.where(total == 0, 1, total)


def bounded_step(
    q_BHK: torch.Tensor, k_BHK: torch.Tensor, v_BHV: torch.Tensor, logits_BHR: torch.Tensor, state: SlotState, *,
    value_logits_BHR: torch.Tensor | None = None, scale: float | None = None,
) -> tuple[torch.Tensor, SlotState]:
    """One token: it enters the slots, then its query reads them. 4·R·(K+V) FLOPs a head, whatever the length so far.

    LayoutError: a token or state that does not fit; a state of two streams wants `value_logits_BHR`.
    """
    (B, H, K), R, V = sizes("q_BHK", q_BHK, "BHK"), logits_BHR.shape[-1], v_BHV.shape[-1]
    streams = (B, H, 1 if value_logits_BHR is None else 2, R)
    check_step("bounded_step", (
        ("k_BHK", k_BHK, (B, H, K)), ("v_BHV", v_BHV, (B, H, V)), ("logits_BHR", logits_BHR, (B, H, R)),
        ("value_logits_BHR", value_logits_BHR, (B, H, R))), (
        ("keys_BHRK", state.keys_BHRK, (B, H, R, K)), ("values_BHRV", state.values_BHRV, (B, H, R, V)),
        ("total_BHSR", state.total_BHSR, streams), ("peak_BHSR", state.peak_BHSR, streams)), accumulator_dtype(q_BHK.dtype))
    with without_autocast(q_BHK.device):
        keys, values, total, peak = state
        q, k, v = (t.to(keys.dtype) for t in (q_BHK, k_BHK, v_BHV))
        logits = stacked([logits_BHR] if value_logits_BHR is None else [logits_BHR, value_logits_BHR], keys.dtype)
        highest = torch.where(total == 0, logits, torch.maximum(peak, logits))
        kept = torch.where(total == 0, 0, peak - highest).exp()
        weight = (logits - highest).exp()
        keys = kept[:, :, 0, :, None] * keys + weight[:, :, 0, :, None] * k[:, :, None]
        values = kept[:, :, -1, :, None] * values + weight[:, :, -1, :, None] * v[:, :, None]
        total = kept * total + weight
        scores = (keys @ q[..., None]).squeeze(-1) / total[:, :, 0] * (K**-0.5 if scale is None else scale)
        y = ((scores.softmax(-1) / total[:, :, -1])[:, :, None] @ values).squeeze(2)
    return y.to(v_BHV.dtype), SlotState(keys, values, total, highest)
