"""Retention (RetNet): linear attention whose state fades by a constant of the head, with rotary positions."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from kernels.gated_scan import gated_scan, gated_step
from kernels.layout import Layout
from models.matrix_memory import MatrixConfig, MatrixMixer
from models.mixer import Abilities
from models.mixers.attention import rotated


class Config(MatrixConfig):
    """Sun et al., arXiv 2307.08621, section 2; sizes as in flash-linear-attention 0.6.0's MultiScaleRetention."""

    kind: Literal["retnet"] = "retnet"
    heads: int = Field(8, ge=1, description="H; must divide expand_k and expand_v times the width (the layer: 8; paper: heads "
                                            "of 256)")
    expand_k: float = Field(1.0, gt=0, description="Width of all keys over the model's (paper: d)")
    expand_v: float = Field(2.0, gt=0, description="Width of all values over the model's (paper: 2d)")
    conv: int | None = Field(None, ge=2, description="Tokens of a causal convolution of q, k and v with silu behind it (the "
                                                     "layer's conv_size: 4, off as in the paper); None = none")
    gate: bool = Field(True, description="The output is multiplied by silu(proj_gate(x)) (paper's Eq. 8)")
    decay_start: float = Field(5.0, gt=0, description="Head h keeps 1 - 2^-(decay_start + h) a token (paper's Eq. 8: 5)")
    rotary_fraction: float = Field(1.0, ge=0, le=1, description="Share of each head of q and k that turns (paper's Eq. 3, "
                                                                "xPos without its scale, which the decay replaces: 1)")
    rotary_base: float = Field(10_000.0, gt=1, description="Base of the rotary wavelengths (the layer: 10000)")
    norm: Literal["rms", "group"] = Field(
        "rms", description="Of a head's output. rms: RMSNorm, one weight for all heads (the layer). group: GroupNorm, mean and "
                           "variance of each head, weights and biases of its own (paper's Eq. 8)")

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {
            "published": cls(heads=2),
            "group_norm": cls(heads=4, expand_v=1, norm="group", rotary_fraction=0.5),
            "convolved": cls(heads=2, expand_v=1, conv=4, gate=False, rotary_fraction=0, decay_start=3),
        }


class RetNet(MatrixMixer):
    """S = (1 - 2^-(5 + h)) S + k v^T, y = q S / sqrt(K); q and k turned by their positions."""

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        self.rotary_width = int(self.key_width * config.rotary_fraction) // 2 * 2

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return Abilities()

    def head_norm(self) -> nn.Module:
        if self.config.norm == "rms":
            return super().head_norm()
        return GroupNorm(self.config.heads, self.value_width, self.config.norm_eps)

    def placed(self, q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
        return rotated(self, q_BLHK, layout), rotated(self, k_BLHK, layout)

    def log_decay(self, x: torch.Tensor) -> torch.Tensor:
        """(..., H), the same for every token of x (..., D)."""
        heads = torch.arange(self.config.heads, dtype=torch.float64, device=x.device)
        log_decay_H = torch.log1p(-(2.0 ** -(self.config.decay_start + heads))).to(self.sum_dtype(x.dtype))
        return log_decay_H.expand(*x.shape[:-1], -1)

    def scan(self, x_BLD: torch.Tensor, q_BLHK, k_BLHK, v_BLHV, **options: Any) -> Any:
        return gated_scan(q_BLHK, k_BLHK, v_BLHV, self.log_decay(x_BLD), **options)

    def scan_step(self, x_BD: torch.Tensor, q_BHK, k_BHK, v_BHV, memory_BHKV) -> tuple[torch.Tensor, torch.Tensor]:
        return gated_step(q_BHK, k_BHK, v_BHV, self.log_decay(x_BD), memory_BHKV)


class GroupNorm(nn.Module):
    """(y - mean) / sqrt(variance + eps) over the channels of each head, then a weight and a bias a channel; y (..., H, V)."""

    def __init__(self, heads: int, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight, self.bias = (nn.Parameter(torch.empty(heads * width)) for _ in range(2))

    def reset_parameters(self) -> None:
        """Weights of 1, biases of 0."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        wide = MatrixMixer.sum_dtype(y.dtype)
        weight, bias = (parameter.to(wide).view(y.shape[-2:]) for parameter in (self.weight, self.bias))
        return (F.layer_norm(y.to(wide), y.shape[-1:], eps=self.eps) * weight + bias).to(y.dtype)
