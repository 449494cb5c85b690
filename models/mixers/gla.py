"""Gated linear attention (GLA): every key channel of the state fades by a gate of its own, read from the token."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from kernels.gated_scan import gated_scan, gated_step
from models.initialise import Linear
from models.matrix_memory import MatrixConfig, MatrixMixer
from models.mixer import Abilities


class Config(MatrixConfig):
    """Yang et al., arXiv 2312.06635, section 4.4; sizes as in flash-linear-attention 0.6.0's GatedLinearAttention."""

    kind: Literal["gla"] = "gla"
    heads: int = Field(4, ge=1, description="H; must divide expand_k and expand_v times the width (paper: 4)")
    expand_k: float = Field(0.5, gt=0, description="Width of all keys over the model's (paper: d/2)")
    expand_v: float = Field(1.0, gt=0, description="Width of all values over the model's (paper: d)")
    conv: int | None = Field(None, ge=2, description="Tokens of a causal convolution of q, k and v with silu behind it (the "
                                                     "layer's conv_size: 4, off as in the paper); None = none")
    gate: bool = Field(True, description="The output is multiplied by silu(proj_gate(x)) (paper's Eq. 10, its bias left out as "
                                         "in the layer)")
    decay_rank: int = Field(16, ge=1, description="Width between the two projections of the decay (paper: 16)")
    decay_divisor: float = Field(16.0, gt=0, description="tau: a channel keeps sigmoid(.)^(1/tau) a token (paper: 16)")

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {
            "published": cls(heads=2, decay_rank=3),
            "convolved": cls(heads=2, expand_k=1, conv=3, gate=False),
        }


class GLA(MatrixMixer):
    """S = diag(a) S + k v^T with log a = logsigmoid(proj_decay(proj_decay_low(x))) / tau, y = q S / sqrt(K)."""

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        self.proj_decay_low = Linear(width, config.decay_rank, bias=False)
        self.proj_decay = Linear(config.decay_rank, config.heads * self.key_width)

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return Abilities()

    def log_decay(self, x: torch.Tensor) -> torch.Tensor:
        """(..., H, K), at most 0."""
        logits = self.proj_decay(self.proj_decay_low(x)).unflatten(-1, (self.config.heads, -1))
        return F.logsigmoid(logits.to(self.sum_dtype(logits.dtype))) / self.config.decay_divisor

    def scan(self, x_BLD: torch.Tensor, q_BLHK, k_BLHK, v_BLHV, **options: Any) -> Any:
        return gated_scan(q_BLHK, k_BLHK, v_BLHV, self.log_decay(x_BLD), **options)

    def scan_step(self, x_BD: torch.Tensor, q_BHK, k_BHK, v_BHV, memory_BHKV) -> tuple[torch.Tensor, torch.Tensor]:
        return gated_step(q_BHK, k_BHK, v_BHV, self.log_decay(x_BD), memory_BHKV)
