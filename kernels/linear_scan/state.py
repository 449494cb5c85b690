"""The recurrent state of linear attention, what its numerator is divided by, and the one-token step.

Shape letters: B batch, H heads, F feature width, V value width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.checks import check_step, sizes, writable
from kernels.taylor.features import accumulator_dtype, without_autocast


class ScanState(NamedTuple):
    """Sums over the tokens read so far, float32 (float64 for float64 inputs); 4·F·(V+1) bytes a head in float32."""

    kv_BHFV: torch.Tensor  # sum of k v^T
    z_BHF: torch.Tensor  # sum of k, the normaliser


class Divisor(NamedTuple):
    """What stands under the numerator, from the sum z of a query's weights."""

    eps: float = 1e-12
    floor: float | None = None
    normalise: bool = True

    def of(self, z: torch.Tensor) -> torch.Tensor:
        """z + eps, with eps 0 a sum of nothing being 1; with a floor, z itself or ±floor where |z| is below it (+floor for
        z = 0), without a gradient there."""
        if self.floor is None:
            return z + self.eps if self.eps else torch.where(z == 0, 1, z)
        return torch.where(z.abs() < self.floor, torch.copysign(torch.full_like(z, self.floor), z.detach()), z)

    def divide(self, numerator: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        """The output, for z with a last axis of one."""
        return numerator / self.of(z) if self.normalise else numerator


def empty_state(B: int, H: int, F: int, V: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> ScanState:
    """State before the first token: zeros of the accumulator dtype that belongs to inputs of `dtype`."""
    kept = accumulator_dtype(dtype)
    return ScanState(torch.zeros(B, H, F, V, dtype=kept, device=device), torch.zeros(B, H, F, dtype=kept, device=device))


def join(state: ScanState | None) -> torch.Tensor | None:
    """(B, H, F, V) and (B, H, F) -> one private (B·H, F, V+1) tensor, the form that the chunk loop works on."""
    if state is None:
        return None
    return torch.cat((state.kv_BHFV, state.z_BHF.unsqueeze(-1)), dim=-1).flatten(0, 1)


def split(sums_GFV1: torch.Tensor, B: int, H: int) -> ScanState:
    """The inverse of `join`, into two tensors with storage of their own (a view would keep both alive)."""
    sums = sums_GFV1.unflatten(0, (B, H))
    return ScanState(sums[..., :-1].clone(memory_format=torch.contiguous_format), sums[..., -1].clone())


def linear_step(
    q_BHF: torch.Tensor, k_BHF: torch.Tensor, v_BHV: torch.Tensor, state: ScanState, *, eps: float = 1e-12,
    floor: float | None = None, normalise: bool = True,
) -> tuple[torch.Tensor, ScanState]:
    """One token: the state takes k v in, the query reads it. In place when gradients are off.

    Settings as in `linear_scan`. Cost 4·F·(V+1) FLOPs a head, whatever the length so far. LayoutError: a token or sums of
    another shape, or sums that are not in float32 (float64 if an input is).
    """
    B, H, F = sizes("q_BHF", q_BHF, "BHF")
    V = v_BHV.shape[-1]
    wide = torch.float64 in (q_BHF.dtype, k_BHF.dtype, v_BHV.dtype)
    check_step("linear_step", (("k_BHF", k_BHF, (B, H, F)), ("v_BHV", v_BHV, (B, H, V))), (
        ("kv_BHFV", state.kv_BHFV, (B, H, F, V)), ("z_BHF", state.z_BHF, (B, H, F))),
        torch.float64 if wide else torch.float32)
    with without_autocast(q_BHF.device):
        kv, z = state.kv_BHFV.reshape(B * H, F, V), state.z_BHF
        q, k, v = (x.to(z.dtype) for x in (q_BHF, k_BHF, v_BHV))
        if torch.is_grad_enabled():
            kv, z = torch.baddbmm(kv, k.reshape(B * H, F, 1), v.reshape(B * H, 1, V)), z + k
        else:
            kv = writable(kv).baddbmm_(k.reshape(B * H, F, 1), v.reshape(B * H, 1, V))
            z = writable(z).add_(k)
        numerator = torch.bmm(q.reshape(B * H, 1, F), kv).view(B, H, V)
        y = Divisor(eps, floor, normalise).divide(numerator, (q * z).sum(-1, keepdim=True))
    return y.to(v_BHV.dtype), ScanState(kv.view(B, H, F, V), z)
