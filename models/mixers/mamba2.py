"""Mamba-2: a state space with one decay a head (SSD), which is linear attention that fades; a state of constant size."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import nn

from kernels.errors import ConfigError
from kernels.gated_scan import empty_state, gated_scan, gated_step
from kernels.layout import Layout
from models.decayed_attention import decayed_attention, is_short
from models.initialise import DRAWN, Linear
from models.mixer import Abilities, Cost, Mixer
from models.state import State
from models.state_space import CausalConv, StateSpaceConfig, draw_log, draw_step_bias


class Config(StateSpaceConfig):
    """The published layer (Dao and Gu, arXiv 2405.21060)."""

    kind: Literal["mamba2"] = "mamba2"
    state_size: int = Field(128, ge=1, description="N, rows of state a head (published: 128)")
    head_dim: int = Field(64, ge=1, description="Channels of a head; must divide expand * width (published: 64)")
    n_groups: int = Field(1, ge=1, description="Heads of a group share B and C, and a norm; must divide the heads "
                                               "(published models: 1; transformers' default 8)")
    decay_range: tuple[float, float] = Field((1.0, 16.0), description="-A of a head at first, drawn uniformly between these "
                                                                      "(published: 1 to 16; transformers: 1, 2, 3 ...)")
    dt_limit: tuple[float, float | None] = Field((0.0, None), description="Δ is held between these (transformers' "
                                                                          "time_step_limit); None: no upper limit")
    norm_eps: float = Field(1e-5, gt=0, description="Added under the root of the gated norm (published: 1e-5)")

    @model_validator(mode="after")
    def _ranges_are_ranges(self) -> Config:
        low, high = self.decay_range
        if not 0 < low <= high:
            raise ValueError(f"decay_range {self.decay_range}: expected 0 < least <= greatest")
        least, most = self.dt_limit
        if least < 0 or (most is not None and most <= least):
            raise ValueError(f"dt_limit {self.dt_limit}: expected 0 <= least < greatest, or None for no upper limit")
        return self

    @classmethod
    def cases(cls) -> dict[str, Config]:
        open_gates = {"dt_min": 0.05, "dt_max": 0.1, "decay_range": (0.5, 2.0)}
        return {
            "published": cls(state_size=6, head_dim=8, **open_gates),
            "groups": cls(state_size=4, head_dim=4, n_groups=2, bias=True, conv_width=3, **open_gates),
            "limits": cls(state_size=5, head_dim=16, expand=1, conv_bias=False, dt_limit=(0.02, 0.4), **open_gates),
        }


class GatedNorm(nn.Module):
    """RMSNorm of y silu(gate) within each group of channels, in float32 at least."""

    def __init__(self, channels: int, groups: int, eps: float):
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, y: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """In the gate's dtype."""
        wide = Mixer.sum_dtype(gate.dtype)
        y = (y.to(wide) * F.silu(gate.to(wide))).unflatten(-1, (self.groups, -1))
        return (F.rms_norm(y, y.shape[-1:], eps=self.eps).flatten(-2) * self.weight.to(wide)).to(gate.dtype)


class Mamba2(Mixer):
    """in_proj for gate, x, B, C and Δ, a convolution over x, B, C, the scan, gated norm, out_proj; parameter names and
    shapes of transformers' Mamba2Mixer. The state: the convolution's last inputs and h."""

    no_decay = frozenset({"A_log", "D", "dt_bias"})

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        self.inner, shared = config.expand * width, config.n_groups * config.state_size
        if self.inner % config.head_dim:
            raise ConfigError(f"mamba2: {self.inner} channels (expand {config.expand} times width {width}) are not a multiple of "
                              f"head_dim {config.head_dim}; change one of them")
        self.heads = self.inner // config.head_dim
        if self.heads % config.n_groups:
            raise ConfigError(f"mamba2: {self.heads} heads are not a multiple of n_groups {config.n_groups}; change one of them")
        self.parts = (self.inner, shared, shared)
        self.in_proj = Linear(width, self.inner + sum(self.parts) + self.heads, bias=config.bias)
        self.conv1d = CausalConv(sum(self.parts), config.conv_width, config.conv_bias)
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.empty(self.heads)) for _ in range(3))
        self.norm = GatedNorm(self.inner, config.n_groups, config.norm_eps)
        self.out_proj = Linear(self.inner, width, bias=config.bias)
        self.keep_init = frozenset({"A_log", "D", "dt_bias", "conv1d.weight", "conv1d.bias"})

    def reset_parameters(self, generator: torch.Generator) -> None:
        """As published: -A uniform in decay_range, D and norm 1, Δ log-uniform; matrices N(0, 1/fan_in)."""
        super().reset_parameters(generator)
        self.conv1d.draw(generator)
        draw_step_bias(self.dt_bias, self.config, generator)
        low, high = self.config.decay_range
        draw_log(self.A_log, low + (high - low) * torch.rand(self.heads, generator=generator, **DRAWN))
        nn.init.ones_(self.D)
        nn.init.ones_(self.norm.weight)

    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
        gate, x, step = self._entered(x_BLD)
        x, inputs = self.conv1d(x, layout, state)
        x, q, k, v, log_decay = self._scanned(x, step)
        if state is None and is_short(*x.shape[:3]):
            return self._output(decayed_attention(q, k, v, log_decay), x, gate), None
        scanned = self._for_heads(q), self._for_heads(k), v, log_decay
        if state is None:
            return self._output(gated_scan(*scanned, scale=1.0), x, gate), None
        y, h = gated_scan(*scanned, scale=1.0, lengths_B=layout.lengths_B, return_state=True,
                          state=None if layout.offset_B is None else state["h"])
        return self._output(y, x, gate), state.advanced(layout.lengths_B, inputs=inputs, h=h)

    def mix_step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        gate, x, step = self._entered(x_BD)
        x, inputs = self.conv1d.step(x, state)
        x, q, k, v, log_decay = self._scanned(x, step)
        y, h = gated_step(self._for_heads(q), self._for_heads(k), v, log_decay, state["h"], scale=1.0)
        return self._output(y, x, gate), state.advanced(layout.lengths_B, inputs=inputs, h=h)

    def _entered(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The gate, what the convolution reads, Δ before its bias."""
        return self.in_proj(x).split((self.inner, sum(self.parts), self.heads), dim=-1)

    def _scanned(self, x: torch.Tensor, step: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x of each head, q = C and k = B of each group, v = Δ x and the log-decay Δ A of each head; Δ in float32 at least."""
        x, entering, leaving = x.split(self.parts, dim=-1)
        x, wide = x.unflatten(-1, (self.heads, -1)), self.sum_dtype(x.dtype)
        delta = F.softplus(step.to(wide) + self.dt_bias.to(wide)).clamp(*self.config.dt_limit)
        q, k = (part.unflatten(-1, (self.config.n_groups, -1)) for part in (leaving, entering))
        return x, q, k, (x * delta.unsqueeze(-1)).to(x.dtype), -delta * self.A_log.to(wide).exp()

    def _for_heads(self, x: torch.Tensor) -> torch.Tensor:
        """(..., groups, N) to (..., heads, N)."""
        x = x.unsqueeze(-2)
        return x.expand(*x.shape[:-2], self.heads // self.config.n_groups, -1).flatten(-3, -2)

    def _output(self, y: torch.Tensor, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return self.out_proj(self.norm((y + self.D.unsqueeze(-1) * x).flatten(-2), gate))

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return Abilities()

    def init_state(self, B: int, dtype: torch.dtype, device: Any) -> State:
        inputs = torch.zeros(B, self.config.conv_width - 1, sum(self.parts), dtype=dtype, device=device)
        h = empty_state(B, self.heads, self.config.state_size, self.config.head_dim, dtype, device)
        return self.new_state(B, dtype, device, inputs=inputs, h=h)

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        numbers, taps = self.inner * self.config.state_size, self.config.conv_width
        step = 2 * (self.in_proj.weight.numel() + self.out_proj.weight.numel()) + self.conv1d.flops() + 4 * numbers + 2 * self.inner
        cached = (taps - 1) * sum(self.parts) * dtype.itemsize
        return Cost(parameters=self.parameter_count(), flops=length * step, step_flops=step,
                    state_bytes=cached + numbers * self.sum_dtype(dtype).itemsize + 8)
