"""DeltaNet: a write replaces what the state held under its key, by as much as the token says."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from kernels.delta_scan import delta_scan, delta_step
from kernels.layout import Layout
from models.initialise import Linear
from models.matrix_memory import MatrixConfig, MatrixMixer, unit
from models.mixer import Abilities


class Config(MatrixConfig):
    """Yang et al., arXiv 2406.06484; sizes as in flash-linear-attention 0.6.0's DeltaNet."""

    kind: Literal["delta_net"] = "delta_net"
    heads: int = Field(4, ge=1, description="H; must divide expand_k and expand_v times the width (the layer: 4)")
    expand_k: float = Field(1.0, gt=0, description="Width of all keys over the model's (the layer: 1)")
    expand_v: float = Field(1.0, gt=0, description="Width of all values over the model's (the layer: 1)")
    conv: int | None = Field(4, ge=2, description="Tokens of a causal convolution of q, k and v, with silu behind it (the layer: "
                                                  "4); None = silu alone")
    gate: bool = Field(False, description="The output is multiplied by silu(proj_gate(x)) (the layer: no)")
    negative_eigenvalues: bool = Field(False, description="A write's strength is up to 2 instead of 1, so that it can turn what "
                                                          "the state held round (arXiv 2411.12537; the layer: no)")

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {
            "published": cls(heads=2),
            "bare": cls(heads=2, expand_v=0.5, conv=None, gate=True, negative_eigenvalues=True),
        }


class DeltaNet(MatrixMixer):
    """S = S + b k (v - S^T k)^T, y = q S / sqrt(K); q and k of length 1, b = sigmoid(proj_beta(x))."""

    silu = True

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        self.proj_beta = Linear(width, config.heads, bias=False)

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return Abilities()

    def memory_flops(self) -> int:
        """The recall before the write is a third product."""
        return 6 * self.key_width * self.value_width

    def placed(self, q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
        return unit(q_BLHK), unit(k_BLHK)

    def beta(self, x: torch.Tensor, projection: nn.Module | None = None) -> torch.Tensor:
        """(..., H): strength of the token's write, by proj_beta unless another projection is given."""
        logits = (projection or self.proj_beta)(x)
        return logits.to(self.sum_dtype(logits.dtype)).sigmoid() * (2 if self.config.negative_eigenvalues else 1)

    def scan(self, x_BLD: torch.Tensor, q_BLHK, k_BLHK, v_BLHV, **options: Any) -> Any:
        return delta_scan(q_BLHK, k_BLHK, v_BLHV, self.beta(x_BLD), **options)

    def scan_step(self, x_BD: torch.Tensor, q_BHK, k_BHK, v_BHV, memory_BHKV) -> tuple[torch.Tensor, torch.Tensor]:
        return delta_step(q_BHK, k_BHK, v_BHV, self.beta(x_BD), memory_BHKV)
