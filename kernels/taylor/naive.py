"""The truth of Taylor attention: explicit features, one token after another, any floating dtype. Slow on purpose."""

from __future__ import annotations

import torch

from kernels.taylor.state import TaylorState, empty_state


def feature_map(x: torch.Tensor, scale: float) -> torch.Tensor:
    """phi(x) = [1, x', x'_i x'_j (i < j) and x'_i^2 / sqrt(2)] of x' = sqrt(scale) x; pairs row-major: (..., K) -> (..., F).

    phi(q)·phi(k) = 1 + s + s^2/2 with s = scale q·k (JRT's map with equal pairs merged).
    """
    x = x * scale**0.5
    first, second = torch.triu_indices(x.shape[-1], x.shape[-1], device=x.device)
    pairs = x[..., first] * x[..., second]
    pairs = torch.where(first == second, pairs / 2**0.5, pairs)
    return torch.cat((torch.ones_like(x[..., :1]), x, pairs), dim=-1)


def taylor_naive(
    q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor, *, state: TaylorState | None = None,
    lengths_B: torch.Tensor | None = None, scale: float, eps: float, decay_H: torch.Tensor | None = None,
) -> tuple[torch.Tensor, TaylorState]:
    """Reads the row token by token; returns (y_BLHV, state after each row's own length). See `kernels.taylor.taylor`."""
    B, L, H, K = q_BLHK.shape
    V = v_BLHV.shape[-1]
    kv, z = state or empty_state(B, H, K, V, q_BLHK.dtype, q_BLHK.device)
    phi_q_BLHF, phi_k_BLHF = (feature_map(x.to(kv.dtype), scale) for x in (q_BLHK, k_BLHK))
    if lengths_B is not None:  # pads leave every sum after the feature map: before it they would keep weight 1
        real_BL = torch.arange(L, device=lengths_B.device) < lengths_B[:, None]
        phi_k_BLHF = phi_k_BLHF * real_BL[:, :, None, None]
    outputs = []
    for t in range(L):
        if decay_H is not None:
            faded = kv * decay_H.to(kv)[:, None, None]
            kv = faded if lengths_B is None else torch.where(real_BL[:, t, None, None, None], faded, kv)
        kv = torch.addcmul(kv, phi_k_BLHF[:, t, :, :, None], v_BLHV[:, t, :, None, :].to(kv.dtype))
        z = z + phi_k_BLHF[:, t]
        phi_q = phi_q_BLHF[:, t]
        numerator, divisor = (phi_q[..., None, :] @ kv).squeeze(-2), (phi_q * z).sum(-1, keepdim=True)
        outputs.append(numerator / (divisor + eps))
    y = torch.stack(outputs, dim=1) if outputs else torch.zeros_like(v_BLHV)
    return y.to(v_BLHV.dtype), TaylorState(kv, z)
