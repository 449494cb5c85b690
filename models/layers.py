"""The trunk's own layers: norms, MLPs, and the block that joins them with a mixer. Letters: B L D."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from kernels.layout import Layout
from models.config import ModelConfig
from models.initialise import Linear
from models.mixer import Mixer
from models.state import State


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, in x's dtype (the residual's), given out in the weight's."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.to(x.dtype)
        return F.rms_norm(x, weight.shape, weight, self.eps).to(self.weight.dtype)


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias, in x's dtype, given out in the weight's (fairseq, GPT-2)."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return F.layer_norm(x, weight.shape, weight, bias, self.eps).to(self.weight.dtype)


NORMS = {"rms": RMSNorm, "layer": LayerNorm}


class SwiGLU(nn.Module):
    """SwiGLU without biases: fc1 gives (y, gate), fc2 reads y * silu(gate) (JRT's released block)."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.fc1 = Linear(width, 2 * hidden, bias=False)
        self.fc2 = Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, gate = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(y * F.silu(gate))


class GELU(nn.Module):
    """fc1, GELU (exact), fc2, with biases (fairseq's transformer_lm_gpt)."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.fc1, self.fc2 = Linear(width, hidden), Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


MLPS = {"swiglu": SwiGLU, "gelu": GELU}


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)). x is the residual stream, float32 or wider.

    `clean`: without biases in norm and MLP what is 0 at pads stays 0, and nobody need zero it again.
    """

    def __init__(self, mixer: Mixer, config: ModelConfig):
        super().__init__()
        norm, eps, mlp = NORMS[config.norm], config.norm_eps, config.mlp
        self.clean = config.norm == "rms" and (mlp is None or config.mlp_kind == "swiglu")
        self.norm1, self.mixer = norm(config.width, eps), mixer
        self.norm2 = norm(config.width, eps) if mlp else None
        self.mlp = MLPS[config.mlp_kind](config.width, mlp) if mlp else None

    def forward(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
        y_BLD, state = self.mixer.run(self.norm1(x_BLD), layout, state, clean=self.clean)
        return self._feed(x_BLD + y_BLD), state

    def step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        """One token a row."""
        y_BD, state = self.mixer.run_step(self.norm1(x_BD), layout, state)
        return self._feed(x_BD + y_BD), state

    def _feed(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.mlp is None else x + self.mlp(self.norm2(x))
