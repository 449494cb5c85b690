"""The truth of linear attention: one token after another, any floating dtype. Slow on purpose."""

from __future__ import annotations

import torch

from kernels.linear_scan.state import Divisor, ScanState, empty_state


def linear_scan_naive(
    q_BLHF: torch.Tensor, k_BMHF: torch.Tensor, v_BMHV: torch.Tensor, *, causal: bool, lengths_B: torch.Tensor | None,
    state: ScanState | None, divisor: Divisor,
) -> tuple[torch.Tensor, ScanState]:
    """Reads the row token by token; returns (y_BLHV, sums over each row's real keys). See `kernels.linear_scan.linear_scan`."""
    B, L, H, F = q_BLHF.shape
    M, V = k_BMHF.shape[1], v_BMHV.shape[-1]
    kv, z = state or empty_state(B, H, F, V, q_BLHF.dtype, q_BLHF.device)
    q, k, v = (x.to(kv.dtype) for x in (q_BLHF, k_BMHF, v_BMHV))
    outputs = []
    for t in range(M):
        key = k[:, t]
        if lengths_B is not None:
            key = key * (t < lengths_B)[:, None, None]
        kv = kv + key[..., :, None] * v[:, t, :, None, :]
        z = z + key
        if causal:
            outputs.append(read(q[:, t], kv, z, divisor))
    if not causal:
        outputs = [read(q[:, t], kv, z, divisor) for t in range(L)]
    y = torch.stack(outputs, dim=1) if outputs else v.new_zeros(B, 0, H, V)
    return y.to(v_BMHV.dtype), ScanState(kv, z)


def read(q_BHF: torch.Tensor, kv_BHFV: torch.Tensor, z_BHF: torch.Tensor, divisor: Divisor) -> torch.Tensor:
    """One query against the sums."""
    return divisor.divide((q_BHF[..., None, :] @ kv_BHFV).squeeze(-2), (q_BHF * z_BHF).sum(-1, keepdim=True))
