"""cosFormer (Qin et al. 2022): ReLU features whose weights fall with distance as a cosine, a state of constant size.

The published angle is pi/2 times a position over the row's own length, so that a longer row changes its beginning (by 0.085
between 16 and 32 tokens). Here the length is fixed, and longer documents are refused.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field

from kernels.linear_scan.features import cosine_weighted, relu
from models.linear_attention import FeatureMixer
from models.mixer import Abilities, MixerConfig, Mode
from models.modes import abilities_in, mode_field


class Config(MixerConfig):
    """The official layer; its `max_length` is the row's length, or the longer of context and targets in mode cross, whose
    positions both count from the first token."""

    kind: Literal["cosformer"] = "cosformer"
    mode: Mode = mode_field()
    heads: int = Field(4, ge=1, description="H; must divide the width")
    max_length: int = Field(8192, ge=1, description="Longest document: token p's angle is pi/2 (p + 1) / max_length [tokens]")
    feature_dim: int | None = Field(None, ge=1, description="K, width of q and k per head, half the features; None = width / heads")
    floor: float = Field(1e-6, gt=0, description="The sum of weights is held at least so large (official 1e-6; EVA's 1e-2)")
    bias: bool = Field(True, description="Of the projections q, k, v and out (official: yes)")

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {"plain": cls(heads=2, max_length=1024),
                "wide": cls(heads=2, feature_dim=12, max_length=4096, floor=1e-2),
                "both_ways": cls(heads=2, feature_dim=12, max_length=1024, floor=1e-2, mode="non_causal"),
                "cross": cls(heads=2, max_length=1024, mode="cross")}


class CosFormer(FeatureMixer):
    """proj_q, proj_k, proj_v, [relu(x) sin, relu(x) cos], one running sum, out_proj."""

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return abilities_in(config.mode, max_length=config.max_length)

    @property
    def feature_width(self) -> int:
        return 2 * self.key_width

    def features(self, x: torch.Tensor, position: torch.Tensor, is_query: bool) -> torch.Tensor:
        return cosine_weighted(relu(x), position + 1, self.config.max_length)

    @property
    def divisor(self) -> dict[str, Any]:
        return {"floor": self.config.floor}
