"""The recurrent state of second-order Taylor attention, and the one-token step that advances it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.backends import choose_backend
from kernels.taylor.features import accumulator_dtype, augmented, expand, expanded_width, without_autocast
from kernels.taylor.limits import check_decay, check_scale, check_step
from kernels.taylor.triton_limits import why_no_step


class TaylorState(NamedTuple):
    """Sums over the tokens read so far, float32 (float64 for float64 inputs); 4·F·(V+1) bytes a head in float32."""

    kv_BHFV: torch.Tensor  # sum of phi(k) v^T
    z_BHF: torch.Tensor  # sum of phi(k), the normaliser


def empty_state(B: int, H: int, K: int, V: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> TaylorState:
    """State before the first token: zeros of the accumulator dtype that belongs to inputs of `dtype`."""
    F, kept = expanded_width(K), accumulator_dtype(dtype)
    return TaylorState(
        torch.zeros(B, H, F, V, dtype=kept, device=device), torch.zeros(B, H, F, dtype=kept, device=device))


def join(state: TaylorState | None) -> torch.Tensor | None:
    """(B, H, F, V) and (B, H, F) -> one private (B·H, F, V+1) tensor, the form that the chunk loop works on."""
    if state is None:
        return None
    return torch.cat((state.kv_BHFV, state.z_BHF.unsqueeze(-1)), dim=-1).flatten(0, 1)


def split(sums_GFV1: torch.Tensor, B: int) -> TaylorState:
    """The inverse of `join`, into two tensors with storage of their own (a view would keep both alive)."""
    sums = sums_GFV1.unflatten(0, (B, -1))
    return TaylorState(sums[..., :-1].clone(memory_format=torch.contiguous_format), sums[..., -1].clone())


def taylor_step(
    q_BHK: torch.Tensor, k_BHK: torch.Tensor, v_BHV: torch.Tensor, state: TaylorState, *,
    scale: float | None = None, eps: float = 1e-12, decay_H: torch.Tensor | None = None, backend: str = "auto",
) -> tuple[torch.Tensor, TaylorState]:
    """One token: the state takes phi(k) v in, the query reads it. In place when gradients are off.

    `scale`, `decay_H` and `backend` as in `taylor`, without "naive"; the Triton form has no gradients.
    Cost 4·F·(V+1) FLOPs a head, whatever the length so far.

    Raises:
        LayoutError: tokens, a state or settings that do not belong together. UnsupportedUse: as `taylor`.
    """
    check_step(q_BHK, k_BHK, v_BHV, state)
    check_scale(scale)
    check_decay(decay_H, q_BHK.shape[1])
    B, H, K = q_BHK.shape
    V = v_BHV.shape[-1]
    scale = K**-0.5 if scale is None else scale
    fast = {"triton": why_no_step(q_BHK, k_BHK, v_BHV, decay_H)}
    if choose_backend("taylor", backend, q_BHK.device, fast=fast) == "triton":
        from kernels.taylor.triton_step import taylor_step_triton

        return taylor_step_triton(q_BHK, k_BHK, v_BHV, state, scale=scale, eps=eps)
    factor = scale**0.5
    with without_autocast(q_BHK.device):
        q1, k1 = augmented(q_BHK.unsqueeze(1), factor), augmented(k_BHK.unsqueeze(1), factor)
        features_k = expand(k1).view(B * H, -1, 1)
        values = v_BHV.reshape(B * H, 1, V).to(features_k.dtype)
        # rows that share storage (an expanded state) must not write over each other: such a state is copied
        kv, z = state.kv_BHFV.contiguous().view(B * H, -1, V), state.z_BHF.contiguous()
        if decay_H is not None:
            kv = kv * decay_H.to(kv).repeat(B).view(B * H, 1, 1)
        if torch.is_grad_enabled():
            kv, z = torch.baddbmm(kv, features_k, values), z + features_k.view(B, H, -1)
        else:
            kv.baddbmm_(features_k, values)
            z.add_(features_k.view(B, H, -1))
        features_q = expand(q1)
        divisor = torch.bmm(features_q, z.view(B * H, -1, 1)) + eps
        y = (torch.bmm(features_q, kv) / divisor).view(B, H, V).to(v_BHV.dtype)
    return y, TaylorState(kv.view(B, H, -1, V), z)
