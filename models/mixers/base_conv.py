"""BaseConv: a gated short convolution, the mixer that gives Based and JRT models their sense of order."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from kernels.layout import Layout
from kernels.short_conv import short_conv, short_conv_step
from models.initialise import Linear, draw_uniform
from models.mixer import Abilities, Cost, Mixer, MixerConfig
from models.mixers.sliding_window import last_tokens
from models.state import State


class Config(MixerConfig):
    """`released`: out_proj(silu(conv(u1)) * u2) of (u1, u2) = in_proj(x), each expand/2 times as wide as x.

    `synthetic`, the mixer of the set intersection experiments: compress(conv(expand(x))) * projection(x) + x.
    """

    kind: Literal["base_conv"] = "base_conv"
    variant: Literal["released", "synthetic"] = Field("released", description="Language models, or JRT's synthetics")
    expand: int = Field(4, ge=2, multiple_of=2, description="Width of in_proj's output over the model's (released: 4); "
                                                            "the synthetic variant keeps the width")
    kernel: int = Field(3, ge=1, description="Tokens that the convolution reads, the current one included (released: 3)")

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {"released": cls(), "synthetic": cls(variant="synthetic"), "four_taps": cls(kernel=4, expand=2)}


class BaseConv(Mixer):
    """The state holds the last kernel - 1 inputs of the convolution (the released cache keeps one more)."""

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        self.released = config.variant == "released"
        self.inner = width * config.expand // 2 if self.released else width
        if self.released:
            self.in_proj = Linear(width, 2 * self.inner)
        else:
            self.expand, self.projection = Linear(width, width), Linear(width, width)
        self.conv_weight = nn.Parameter(torch.empty(self.inner, config.kernel))
        self.conv_bias = None if self.released else nn.Parameter(torch.empty(self.inner))
        self.keep_init = frozenset({"conv_weight"} if self.released else {"conv_weight", "conv_bias"})
        self.out_proj = Linear(self.inner, width)  # the synthetic variant's `compress`

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return Abilities(native_packing=True, reach=config.kernel - 1)

    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
        inputs, gate = self._inputs(x_BLD)
        past = None if state is None or layout.offset_B is None else state["inputs"]
        y = short_conv(inputs, self.conv_weight, bias_D=self.conv_bias, past_BPD=past,
                       position_BL=layout.position_BL if layout.packed else None)
        if state is not None:
            state = state.advanced(layout.lengths_B, inputs=last_tokens(state["inputs"], inputs, layout))
        return self._outputs(y, gate, x_BLD), state

    def mix_step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        inputs, gate = self._inputs(x_BD)
        y, kept = short_conv_step(inputs, self.conv_weight, state["inputs"], bias_D=self.conv_bias)
        return self._outputs(y, gate, x_BD), state.advanced(layout.lengths_B, inputs=kept)

    def _inputs(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.released:
            return self.in_proj(x).chunk(2, dim=-1)
        return self.expand(x), self.projection(x)

    def _outputs(self, y: torch.Tensor, gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if self.released:
            return self.out_proj(F.silu(y) * gate)
        return self.out_proj(y) * gate + x

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Matrices as the base draws them; the convolution uniform in +-kernel^-1/2, as torch's Conv1d."""
        super().reset_parameters(generator)
        draw_uniform(self.conv_weight, self.config.kernel**-0.5, generator)
        if self.conv_bias is not None:
            draw_uniform(self.conv_bias, self.config.kernel**-0.5, generator)

    def init_state(self, B: int, dtype: torch.dtype, device: Any) -> State:
        return self.new_state(B, dtype, device, inputs=torch.zeros(
            B, self.config.kernel - 1, self.inner, dtype=dtype, device=device))

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        step = 2 * self.inner * self.config.kernel + 2 * self.width * self.inner * 3
        return Cost(
            parameters=self.parameter_count(), flops=length * step, step_flops=step,
            state_bytes=(self.config.kernel - 1) * self.inner * dtype.itemsize + 8)
