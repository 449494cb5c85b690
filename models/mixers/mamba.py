"""Mamba: a selective state space, whose step, input and output are read off each token; a state of constant size."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from kernels.layout import Layout
from kernels.selective_scan import empty_state, selective_scan, selective_step
from kernels.taylor.features import without_autocast
from models.initialise import Linear, draw_uniform
from models.mixer import Abilities, Cost, Mixer
from models.state import State
from models.state_space import CausalConv, StateSpaceConfig, draw_log, draw_step_bias


class Config(StateSpaceConfig):
    """The published layer (Gu and Dao, arXiv 2312.00752)."""

    kind: Literal["mamba"] = "mamba"
    state_size: int = Field(16, ge=1, description="N, numbers of state a channel (published: 16)")
    dt_rank: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="Width that Δ of all channels is projected from; auto = width / 16, rounded up (published: auto)")

    @classmethod
    def cases(cls) -> dict[str, Config]:
        open_gates = {"dt_min": 0.08, "dt_max": 0.12}
        return {
            "published": cls(state_size=4, **open_gates),
            "with_biases": cls(state_size=3, expand=1, conv_width=2, dt_rank=5, bias=True, **open_gates),
            "no_conv_bias": cls(state_size=5, conv_width=3, dt_rank=2, conv_bias=False, **open_gates),
        }


class Mamba(Mixer):
    """in_proj, convolution, x_proj and dt_proj for (Δ, B, C), the scan, a gate, out_proj; parameter names and shapes of
    transformers' MambaMixer. The state: the convolution's last inputs and h."""

    no_decay = frozenset({"A_log", "D"})

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        self.inner, N = config.expand * width, config.state_size
        self.rank = math.ceil(width / 16) if config.dt_rank == "auto" else config.dt_rank
        self.in_proj = Linear(width, 2 * self.inner, bias=config.bias)
        self.conv1d = CausalConv(self.inner, config.conv_width, config.conv_bias)
        self.x_proj = Linear(self.inner, self.rank + 2 * N, bias=False)
        self.dt_proj = Linear(self.rank, self.inner)
        self.A_log = nn.Parameter(torch.empty(self.inner, N))
        self.D = nn.Parameter(torch.empty(self.inner))
        self.out_proj = Linear(self.inner, width, bias=config.bias)
        self.keep_init = frozenset({"A_log", "D", "dt_proj.weight", "dt_proj.bias", "conv1d.weight", "conv1d.bias"})

    def reset_parameters(self, generator: torch.Generator) -> None:
        """As published: A = -1 ... -N, D = 1, Δ log-uniform and little moved by the token; matrices N(0, 1/fan_in)."""
        super().reset_parameters(generator)
        self.conv1d.draw(generator)
        draw_uniform(self.dt_proj.weight, self.rank**-0.5, generator)
        draw_step_bias(self.dt_proj.bias, self.config, generator)
        draw_log(self.A_log, torch.arange(1, self.config.state_size + 1, device=self.A_log.device))
        nn.init.ones_(self.D)

    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
        x, gate = self.in_proj(x_BLD).chunk(2, dim=-1)
        x, inputs = self.conv1d(x, layout, state)
        if state is None:
            return self._output(selective_scan(*self._selected(x), skip_D=self.D), gate), None
        y, h = selective_scan(*self._selected(x), skip_D=self.D, lengths_B=layout.lengths_B, return_state=True,
                              state=None if layout.offset_B is None else state["h"])
        return self._output(y, gate), state.advanced(layout.lengths_B, inputs=inputs, h=h)

    def mix_step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        x, gate = self.in_proj(x_BD).chunk(2, dim=-1)
        x, inputs = self.conv1d.step(x, state)
        y, h = selective_step(*self._selected(x), state["h"], skip_D=self.D)
        return self._output(y, gate), state.advanced(layout.lengths_B, inputs=inputs, h=h)

    def _selected(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x, Δ, A, B, C of the scan; Δ and A in float32 at least, as exp(Δ A) magnifies their rounding."""
        N, wide = self.config.state_size, self.sum_dtype(x.dtype)
        rank, entering, leaving = self.x_proj(x).split((self.rank, N, N), dim=-1)
        with without_autocast(x.device):
            delta = F.softplus(F.linear(rank.to(wide), self.dt_proj.weight.to(wide), self.dt_proj.bias.to(wide)))
            return x, delta, -self.A_log.to(wide).exp(), entering, leaving

    def _output(self, y: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return self.out_proj(y * F.silu(gate))

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return Abilities()

    def init_state(self, B: int, dtype: torch.dtype, device: Any) -> State:
        inputs = torch.zeros(B, self.config.conv_width - 1, self.inner, dtype=dtype, device=device)
        return self.new_state(B, dtype, device, inputs=inputs,
                              h=empty_state(B, self.inner, self.config.state_size, dtype, device))

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        N, taps = self.config.state_size, self.config.conv_width
        matrices = sum(layer.weight.numel() for layer in (self.in_proj, self.x_proj, self.dt_proj, self.out_proj))
        step = 2 * matrices + self.conv1d.flops() + self.inner * (6 * N + 2)  # fade, write and read of h; D x
        return Cost(
            parameters=self.parameter_count(), flops=length * step, step_flops=step,
            state_bytes=self.inner * ((taps - 1) * dtype.itemsize + N * self.sum_dtype(dtype).itemsize) + 8)
