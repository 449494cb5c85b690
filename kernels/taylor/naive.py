"""The truth of Taylor attention: explicit features, one token after another, any floating dtype. Slow on purpose."""

from __future__ import annotations

import torch

from kernels.taylor.state import TaylorState, empty_state


def feature_map(x: torch.Tensor, scale: float) -> torch.Tensor:
    """phi(x) = [1, x', x'_i x'_j (i < j) and x'_i^2 / sqrt(2)] of x' = sqrt(scale) x; pairs row-major: (..., K) -> (..., F).

    phi(q)·phi(k) = 1 + s + s^2/2 with s = scale q·k (JRT's map with equal pairs merged).
    """
    x = x * scale**0.5
    columns = [torch.ones_like(x[..., 0])]
    columns += [x[..., i] for i in range(x.shape[-1])]
    for i in range(x.shape[-1]):
        columns.append(x[..., i] ** 2 / 2**0.5)
        columns += [x[..., i] * x[..., j] for j in range(i + 1, x.shape[-1])]
    return torch.stack(columns, dim=-1)


def taylor_naive(
    q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor, *, state: TaylorState | None = None,
    lengths_B: torch.Tensor | None = None, scale: float, eps: float, decay_H: torch.Tensor | None = None,
) -> tuple[torch.Tensor, TaylorState]:
    """Reads the row token by token; returns (y_BLHV, state after each row's own length). See `kernels.taylor.taylor`."""
    B, L, H, K = q_BLHK.shape
    V = v_BLHV.shape[-1]
    kv, z = state or empty_state(B, H, K, V, q_BLHK.dtype, q_BLHK.device)
    lengths_B = torch.full((B,), L, device=q_BLHK.device) if lengths_B is None else lengths_B
    keep = torch.ones(H, device=kv.device, dtype=kv.dtype) if decay_H is None else decay_H.to(kv)
    outputs = []
    for t in range(L):
        phi_q, phi_k = (feature_map(x[:, t].to(kv.dtype), scale) for x in (q_BLHK, k_BLHK))
        grown = kv * keep[:, None, None] + phi_k[..., :, None] * v_BLHV[:, t].to(kv.dtype)[..., None, :]
        real = t < lengths_B
        kv = torch.where(real[:, None, None, None], grown, kv)
        z = torch.where(real[:, None, None], z + phi_k, z)
        numerator = (phi_q[..., None] * kv).sum(-2)
        outputs.append(numerator / ((phi_q * z).sum(-1, keepdim=True) + eps))
    y = torch.stack(outputs, dim=1) if outputs else torch.zeros_like(v_BLHV)
    return y.to(v_BLHV.dtype), TaylorState(kv, z)
