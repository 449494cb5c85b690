"""Performer (FAVOR+, Choromanski et al. 2021): positive random features of the softmax kernel, drawn once.

Published code divides the keys' features by the greatest exponent over all keys, which lets a later key move earlier
outputs. Here keys take none: a row w of the projection bounds its exponent by |w|^2/2.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import Field

from kernels.linear_scan.features import favor_plus, projected
from models.linear_attention import FeatureMixer
from models.mixer import Abilities, MixerConfig, Mode
from models.modes import abilities_in, mode_field


class Config(MixerConfig):
    """Directions are orthogonal in blocks of K, their lengths those of Gaussian vectors; another seed draws others."""

    kind: Literal["performer"] = "performer"
    mode: Mode = mode_field()
    heads: int = Field(4, ge=1, description="H; must divide the width")
    features: int | None = Field(None, ge=1, description="F a head; None = K ln K (the paper's order, performer-pytorch); CAB 16")
    feature_dim: int | None = Field(None, ge=1, description="K, width of q and k per head before the map; None = width / heads")
    feature_eps: float = Field(1e-4, ge=0, description="Added to every feature (performer-pytorch, CAB: 1e-4)")
    eps: float = Field(1e-6, ge=0, description="Added to the sum of weights (performer-pytorch: 1e-6)")
    floor: float | None = Field(None, gt=0, description="Instead of eps: the sum of weights is held at least so large (CAB 0.1, "
                                                        "EVA 1e-2)")
    bias: bool = Field(False, description="Of the projections q, k, v and out (CAB: yes)")

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {"plain": cls(heads=2), "floor": cls(heads=4, features=11, feature_dim=6, floor=1e-2, bias=True),
                "bare": cls(heads=2, features=24, feature_eps=0.0),
                "both_ways": cls(heads=2, features=12, mode="non_causal"),
                "cross": cls(heads=4, features=9, floor=1e-2, bias=True, mode="cross")}


class Performer(FeatureMixer):
    """proj_q, proj_k, proj_v, random features, one running sum, out_proj. `projection_HFK` is a buffer of the checkpoint."""

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        self.register_buffer("projection_HFK", torch.empty(config.heads, self.feature_width, self.key_width))

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return abilities_in(config.mode, randomness="features")

    @property
    def feature_width(self) -> int:
        return self.config.features or max(1, int(self.key_width * math.log(self.key_width)))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Matrices as the base draws them, then the features."""
        super().reset_parameters(generator)
        if not self.projection_HFK.is_meta:
            with torch.no_grad():
                self.projection_HFK.copy_(orthogonal_features(*self.projection_HFK.shape, generator))

    def features(self, x: torch.Tensor, position: torch.Tensor, is_query: bool) -> torch.Tensor:
        """A query's greatest exponent is taken off: it cancels, but for the two eps, and keeps far queries from vanishing."""
        shift = 0.0
        if is_query:
            directions, half_norm = projected(x, self.projection_HFK, None)
            shift = directions.amax(-1, keepdim=True) - half_norm
        return favor_plus(x, self.projection_HFK, eps=self.config.feature_eps, shift=shift)

    @property
    def divisor(self) -> dict[str, Any]:
        return {"eps": self.config.eps, "floor": self.config.floor}

    def map_flops(self, is_query: bool) -> int:
        return (4 if is_query else 2) * self.config.heads * self.feature_width * self.key_width


def orthogonal_features(H: int, F: int, K: int, generator: torch.Generator) -> torch.Tensor:
    """(H, F, K) float64: rows orthogonal in blocks of K, each as long as a Gaussian vector of K numbers."""
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")

    blocks = -(-F // K)
    q, r = torch.linalg.qr(normal(H, blocks, K, K))
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    directions = q.transpose(-1, -2).reshape(H, blocks * K, K)[:, :F]
    return directions * normal(H, F, K).norm(dim=-1, keepdim=True)
