"""Feature maps of the linear attention family: each turns (B, L, H, K) into (B, L, H, F), one token at a time.

No map looks at another token: a published map that divides by a maximum over all keys is not causal, since a later key
moves what an earlier query reads. Where such a constant is wanted it comes in as an argument (`shift`), fixed beforehand.
Maps with an exponential compute and return float32 (float64 for float64): in bfloat16 exp(8) is off by 3%.

Shape letters: K head width, F features, J rows of a projection, which is (J, K) or one a head (H, J, K).
"""

from __future__ import annotations

import math

import torch

from kernels.taylor.features import accumulator_dtype, without_autocast


def elu1(x: torch.Tensor) -> torch.Tensor:
    """elu(x) + 1, positive (Katharopoulos et al. 2020). F = K."""
    return torch.nn.functional.elu(x) + 1


def relu(x: torch.Tensor, *, eps: float = 0.0) -> torch.Tensor:
    """max(x, 0) + eps; cosFormer eps 0, EVA's `relu-only` 0.1. F = K."""
    return torch.relu(x) + eps


def dpfp(x: torch.Tensor, *, rolls: int = 1) -> torch.Tensor:
    """Products of [max(x, 0), max(-x, 0)] with itself rolled by 1..rolls places (Schlag et al. 2021). F = 2·K·rolls."""
    halves = torch.cat((torch.relu(x), torch.relu(-x)), dim=-1)
    return torch.cat([halves * halves.roll(places, -1) for places in range(1, rolls + 1)], dim=-1)


def squares(x: torch.Tensor, *, scale: float | None = None) -> torch.Tensor:
    """All different products x_i x_j, so that the weight is (scale q·k)^2 (ReBased's kernel). F = K(K+1)/2; scale K^-1/2."""
    width = x.shape[-1]
    scale = width**-0.5 if scale is None else scale
    first, second = torch.triu_indices(width, width, device=x.device)
    weight = torch.full(first.shape, scale * math.sqrt(2.0), dtype=x.dtype, device=x.device)
    weight[first == second] = scale
    return x[..., first] * x[..., second] * weight


def relu_projected(x: torch.Tensor, projection: torch.Tensor, *, scale: float | None = None, eps: float = 1e-3) -> torch.Tensor:
    """max(J^-1/2 W x', 0) + eps of x' = sqrt(scale) x (Performer's generalised ReLU features; EVA eps 1e-3). F = J."""
    directions, _ = projected(x, projection, scale)
    return torch.relu(directions * directions.shape[-1] ** -0.5) + eps


def favor_plus(
    x: torch.Tensor, projection: torch.Tensor, *, scale: float | None = None, eps: float = 0.0, own_maximum: bool = False,
    shift: torch.Tensor | float = 0.0,
) -> torch.Tensor:
    """Positive random features of exp(scale q·k): J^-1/2 (exp(W x' - |x'|^2/2 - shift) + eps), x' = sqrt(scale) x. F = J.

    Args:
        projection: rows drawn from N(0, I), orthogonal in blocks (Choromanski et al. 2021).
        scale: of q·k; default K^-1/2.
        eps: added to each feature before the factor; performer-pytorch and CAB 1e-4. Pads must be left out after the map.
        own_maximum: for queries: subtract the token's greatest W x', which cancels in the output but for `eps`.
        shift: for keys: a constant; each row of W bounds its exponent by |w|^2/2, so that float32 holds without one to K 128.
    """
    directions, half_norm = projected(x, projection, scale)
    if own_maximum:
        shift = directions.amax(-1, keepdim=True).detach()
    return directions.shape[-1] ** -0.5 * ((directions - half_norm - shift).exp() + eps)


def random_fourier(
    x: torch.Tensor, projection: torch.Tensor, *, scale: float | None = None, unit: bool = True, amplitude: bool = False,
    shift: torch.Tensor | float = 0.0,
) -> torch.Tensor:
    """Signed random features J^-1/2 [sin(W x'), cos(W x')] (RFA, Peng et al. 2021). F = 2J; give the operation a floor.

    Args:
        scale: x' = sqrt(scale) x; default K^-1/2. RFA's temperature sigma is scale = sigma^-2.
        unit: divide x by its norm first, as RFA does; then q·k = 1 - |q-k|^2/2 and the features need no amplitude.
        amplitude: without `unit`: multiply by exp(|x'|^2/2 - shift), which makes the weight that of exp(scale q·k). It
            grows without bound: for published settings only, where the caller knows a shift.
    """
    if unit:
        x = torch.nn.functional.normalize(x.to(accumulator_dtype(x.dtype)), dim=-1)
    directions, half_norm = projected(x, projection, scale)
    waves = torch.cat((directions.sin(), directions.cos()), dim=-1) * directions.shape[-1] ** -0.5
    return waves * (half_norm - shift).exp() if amplitude else waves


def cosine_weighted(x: torch.Tensor, position: torch.Tensor, max_length: int | float) -> torch.Tensor:
    """[x sin(a), x cos(a)] with a = pi·position / (2 max_length): multiplies the weight by cos(a_i - a_j). F = 2K.

    Source: cosFormer. position (L,) or (B, L); the paper counts from 1 and takes max_length = the row's length, which
    changes prefixes, so that a causal model fixes it. The weight stays positive while 0 <= position <= max_length;
    callers refuse longer rows.
    """
    angle = position.to(accumulator_dtype(x.dtype)) * (math.pi / (2 * max_length))
    angle = angle[..., :, None, None]
    return torch.cat((x * angle.sin(), x * angle.cos()), dim=-1)


def projected(x: torch.Tensor, projection: torch.Tensor, scale: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(W x' (..., H, J), |x'|^2/2 (..., H, 1)) of x' = sqrt(scale) x, in the accumulator dtype, autocast off."""
    with without_autocast(x.device):
        x = x.to(accumulator_dtype(x.dtype)) * (x.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
        directions = torch.einsum("...hk,hjk->...hj" if projection.dim() == 3 else "...k,jk->...j", x, projection.to(x.dtype))
        return directions, x.square().sum(-1, keepdim=True) / 2
