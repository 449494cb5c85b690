"""Gated DeltaNet: the delta rule on a state that fades first, by a gate read from the token."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from kernels.delta_scan import delta_scan, delta_step
from models.initialise import Linear
from models.matrix_memory import MatrixConfig
from models.mixers.delta_net import DeltaNet

DECAY_RATES = (0.0, 16.0)      # exp(A_log) at first: uniform between these (Mamba-2's, kept by the layer)
TIME_STEPS = (0.001, 0.1)      # softplus(dt_bias) at first: log-uniform between these (likewise)


class GatedDeltaConfig(MatrixConfig):
    """Yang et al., arXiv 2412.06464; sizes as in flash-linear-attention 0.6.0's GatedDeltaNet."""

    heads: int = Field(6, ge=1, description="H; must divide expand_k and expand_v times the width (the layer: 6)")
    expand_k: float = Field(0.75, gt=0, description="Width of all keys over the model's (the layer: 6 heads of 256 at width 2048)")
    expand_v: float = Field(1.5, gt=0, description="Width of all values over the model's (the layer: twice the keys')")
    conv: int | None = Field(4, ge=2, description="Tokens of a causal convolution of q, k and v, with silu behind it (the layer: "
                                                  "4); None = silu alone")
    gate: bool = Field(True, description="The output is multiplied by silu(proj_gate(x)) (the layer: yes)")
    negative_eigenvalues: bool = Field(False, description="A write's strength is up to 2 instead of 1, so that it can turn what "
                                                          "the state held round (arXiv 2411.12537; the layer: no)")


class Config(GatedDeltaConfig):
    """Gated DeltaNet as published."""

    kind: Literal["gated_delta_net"] = "gated_delta_net"

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {
            "published": cls(heads=2),
            "bare": cls(heads=2, expand_k=1, expand_v=1, conv=None, gate=False, negative_eigenvalues=True),
        }


class GatedDeltaNet(DeltaNet):
    """S = a S, then S = S + b k (v - S^T k)^T, y = q S / sqrt(K); q and k of length 1, b = sigmoid(proj_beta(x)),
    log a = -exp(A_log) softplus(proj_decay(x) + dt_bias)."""

    no_decay = frozenset({"A_log", "dt_bias"})
    keep_init = DeltaNet.keep_init | no_decay

    def __init__(self, config: GatedDeltaConfig, width: int, layer: int):
        super().__init__(config, width, layer)
        self.proj_decay = Linear(width, config.heads, bias=False)
        self.A_log, self.dt_bias = (nn.Parameter(torch.empty(config.heads)) for _ in range(2))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Rates and time steps of the decay as Mamba-2 draws them, the rest as matrix mixers do."""
        super().reset_parameters(generator)
        if self.A_log.device.type == "meta":
            return
        rate, step = (torch.rand(self.config.heads, generator=generator, dtype=torch.float64, device="cpu") for _ in range(2))
        rate = (DECAY_RATES[0] + rate * (DECAY_RATES[1] - DECAY_RATES[0])).clamp(min=1e-4)
        step = (math.log(TIME_STEPS[0]) + step * math.log(TIME_STEPS[1] / TIME_STEPS[0])).exp()
        with torch.no_grad():
            self.A_log.copy_(rate.log())
            self.dt_bias.copy_(step.expm1().log())  # softplus of it is the step

    def log_decay(self, x: torch.Tensor) -> torch.Tensor:
        """(..., H), at most 0."""
        logits = self.proj_decay(x)
        wide = self.sum_dtype(logits.dtype)
        return -self.A_log.to(wide).exp() * F.softplus(logits.to(wide) + self.dt_bias.to(wide))

    def scan(self, x_BLD: torch.Tensor, q_BLHK, k_BLHK, v_BLHV, **options: Any) -> Any:
        return delta_scan(q_BLHK, k_BLHK, v_BLHV, self.beta(x_BLD), log_decay_BLH=self.log_decay(x_BLD), **options)

    def scan_step(self, x_BD: torch.Tensor, q_BHK, k_BHK, v_BHV, memory_BHKV) -> tuple[torch.Tensor, torch.Tensor]:
        return delta_step(q_BHK, k_BHK, v_BHV, self.beta(x_BD), memory_BHKV, log_decay_BH=self.log_decay(x_BD))
