"""What mamba and mamba2 share: their settings, the convolution before the scan, and how step sizes are drawn.

Letters: K taps of the convolution, P = K - 1 cached inputs. Names are those of transformers' mixers.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import nn

from kernels.layout import Layout
from kernels.short_conv import short_conv, short_conv_step
from models.initialise import DRAWN, draw_uniform
from models.mixer import MixerConfig
from models.mixers.sliding_window import last_tokens
from models.state import State


class StepConfig(MixerConfig):
    """Settings of the step size Δ at first; Δ A is a token's log-decay."""

    dt_min: float = Field(0.001, gt=0, description="Least step size at first; drawn log-uniformly (all three papers: 0.001)")
    dt_max: float = Field(0.1, gt=0, description="Greatest step size at first (all three papers: 0.1)")

    @model_validator(mode="after")
    def _has_a_range(self) -> StepConfig:
        if self.dt_min > self.dt_max:
            raise ValueError(f"dt_min {self.dt_min} is above dt_max {self.dt_max}: step sizes are drawn between them")
        return self


class StateSpaceConfig(StepConfig):
    """Settings of Mamba and Mamba-2 alike."""

    expand: int = Field(2, ge=1, description="Channels of the scan over the model's width (published: 2)")
    conv_width: int = Field(4, ge=1, description="Tokens that the convolution before the scan reads, the current one included "
                                                 "(published: 4)")
    dt_floor: float = Field(1e-4, ge=0, description="Step sizes at first are at least this (published: 1e-4)")
    conv_bias: bool = Field(True, description="A bias in the convolution (published: yes)")
    bias: bool = Field(False, description="Biases of in_proj and out_proj (published: no)")


def drawn_log_steps(count: int, config: StepConfig, generator: torch.Generator) -> torch.Tensor:
    """ln Δ, uniform between those of dt_min and dt_max: (count,)."""
    low, high = math.log(config.dt_min), math.log(config.dt_max)
    return low + (high - low) * torch.rand(count, generator=generator, **DRAWN)


def draw_step_bias(bias: nn.Parameter, config: StateSpaceConfig, generator: torch.Generator) -> None:
    """Fill with the numbers whose softplus is a drawn Δ. On the meta device nothing is drawn."""
    if bias.device.type != "meta":
        steps = drawn_log_steps(bias.numel(), config, generator).double().exp().clamp(min=config.dt_floor)
        with torch.no_grad():
            bias.copy_(steps + (-torch.expm1(-steps)).log())


def draw_log(parameter: nn.Parameter, values: torch.Tensor) -> None:
    """Fill with ln of `values`, broadcast. On the meta device nothing is written."""
    if parameter.device.type != "meta":
        with torch.no_grad():
            parameter.copy_(values.double().log())


class CausalConv(nn.Module):
    """silu of a depthwise convolution over the last K tokens; `weight` (D, 1, K) as torch's Conv1d keeps it."""

    def __init__(self, channels: int, taps: int, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, taps))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    def draw(self, generator: torch.Generator) -> None:
        """Uniform in +-K^-1/2, as torch's Conv1d."""
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                draw_uniform(parameter, self.weight.shape[-1]**-0.5, generator)

    def forward(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(y_BLD, the last P inputs of real tokens or None). `state` holds those before as `inputs`."""
        past = None if state is None or layout.offset_B is None else state["inputs"]
        y = F.silu(short_conv(x_BLD, self.weight.squeeze(1), bias_D=self.bias, past_BPD=past))
        return y, None if state is None else last_tokens(state["inputs"], x_BLD, layout)

    def step(self, x_BD: torch.Tensor, state: State) -> tuple[torch.Tensor, torch.Tensor]:
        """(y_BD, the last P inputs)."""
        y, kept = short_conv_step(x_BD, self.weight.squeeze(1), state["inputs"], bias_D=self.bias)
        return F.silu(y), kept

    def flops(self) -> int:
        """Of one token."""
        return 2 * self.weight.numel()
