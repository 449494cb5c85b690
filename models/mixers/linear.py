"""Linear attention with the feature map elu + 1 (Katharopoulos et al. 2020) and a state of constant size."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field

from kernels.linear_scan.features import elu1
from models.linear_attention import FeatureMixer
from models.mixer import MixerConfig, Mode
from models.modes import mode_field


class Config(MixerConfig):
    """The published layer; no positions of its own."""

    kind: Literal["linear"] = "linear"
    mode: Mode = mode_field()
    heads: int = Field(4, ge=1, description="H; must divide the width")
    feature_dim: int | None = Field(None, ge=1, description="K, width of q and k per head = features; None = width / heads")
    eps: float = Field(1e-6, ge=0, description="Added to the sum of weights (published 1e-6; flash-linear-attention 1e-10)")
    bias: bool = Field(True, description="Of the projections q, k, v and out (published: yes)")

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {"plain": cls(heads=2), "narrow": cls(heads=4, feature_dim=6, eps=1e-10, bias=False),
                "both_ways": cls(heads=2, mode="non_causal"),
                "cross": cls(heads=4, feature_dim=6, mode="cross", bias=False)}


class LinearAttention(FeatureMixer):
    """proj_q, proj_k, proj_v, elu + 1, one running sum, out_proj."""

    def features(self, x: torch.Tensor, position: torch.Tensor, is_query: bool) -> torch.Tensor:
        return elu1(x)

    @property
    def divisor(self) -> dict[str, Any]:
        return {"eps": self.config.eps}
